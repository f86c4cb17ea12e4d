import Foundation

/// How probable the model finds a given answer: `Chat.score`, `Completion.score`.
public struct Score: Sendable, Equatable {
  /// The log-probability of each token of the answer given all tokens before it, as `Piece.logProb`.
  public let logProbs: [Double]

  /// The log-probability of the whole answer: the sum of `logProbs`.
  public var logProb: Double { logProbs.reduce(0, +) }

  /// exp(-logProb / number of tokens). Lower is more probable.
  public var perplexity: Double { exp(-logProb / Double(logProbs.count)) }
}
