import Foundation

/// How probable the model finds a given answer: `Chat.score`, `Completion.score`.
public struct Score: Sendable, Equatable {
  /// The natural logarithm of the probability of each of its tokens after all tokens before it, as `Piece.logProb`.
  public let logProbs: [Double]

  /// The natural logarithm of the probability of the whole answer.
  public var logProb: Double { logProbs.reduce(0, +) }

  /// exp(-logProb / number of tokens).
  public var perplexity: Double { exp(-logProb / Double(logProbs.count)) }
}
