import Foundation
import StreamFuseCore

/// Text of neighbouring tokens that the same source proposed.
public struct Run: Sendable, Equatable, Codable {
  /// The text.
  public var text: String
  /// Who proposed it.
  public let source: Source

  /// Text of one source.
  public init(text: String, source: Source) {
    self.text = text
    self.source = source
  }
}

/// A message of the conversation as it is shown.
public struct Turn: Sendable, Equatable, Codable {
  /// Who says it.
  public let role: Role
  /// What is said.
  public internal(set) var runs: [Run] = []
  /// How the answer ended: the library's finish reason, or one of `End`; nil for the user's turns, and while it is written.
  public internal(set) var end: String?

  /// The whole text.
  public var text: String { runs.map(\.text).joined() }

  /// The library's form of it.
  var message: Message { Message(role: role, content: text) }

  /// What the user asks.
  static func question(_ text: String) -> Turn { Turn(role: .user, runs: [Run(text: text, source: .model)]) }

  /// Adds the next piece of an answer.
  mutating func append(_ piece: Piece) {
    if piece.text.isEmpty { return }
    if runs.last?.source == piece.source {
      runs[runs.count - 1].text += piece.text
    } else {
      runs.append(Run(text: piece.text, source: piece.source))
    }
  }
}

/// How an answer may end beside the library's `stop`, `length` and `context`.
enum End {
  /// The user stopped it.
  static let stopped = "stopped"
  /// The user left the app while it was written.
  static let left = "left"
  /// An error.
  static let failed = "failed"
}

/// What the statistics line shows; nil: not known yet.
public struct Live: Sendable, Equatable {
  var tokens = 0
  var firstTokenMs: Double?
  var tokensPerSecond: Double?
  var tokensPerPass: Double?
  var accepted = 0
  var proposed: Int?
  var fallbackReason: String?

  /// Nothing is counted yet.
  init() {}

  /// The library's own figures, once an answer has ended.
  init(_ statistics: Statistics) {
    tokens = statistics.generatedTokens
    firstTokenMs = statistics.firstTokenMs
    tokensPerSecond = statistics.decodeTokensPerSecond
    tokensPerPass = statistics.meanAcceptedTokens
    accepted = statistics.draftTokensAccepted
    proposed = statistics.draftTokensProposed
    fallbackReason = statistics.fallbackReason
  }

  /// The line under the chat, numbers as in this region; empty before the first token.
  public func line(_ locale: Locale = .current) -> String {
    func number(_ value: Double, _ digits: Int) -> String { String(format: "%.\(digits)f", locale: locale, value) }
    var parts: [String] = []
    if let firstTokenMs { parts.append(Word.firstToken(number(firstTokenMs / 1000, 2))) }
    if let tokensPerSecond { parts.append(Word.rate(number(tokensPerSecond, 1))) }
    if let tokensPerPass { parts.append(Word.perPass(number(tokensPerPass, 2))) }
    if let proposed {
      parts.append(Word.acceptedOf(accepted, proposed))
    } else if tokens > 0 {
      parts.append(Word.accepted(accepted))
    }
    if let fallbackReason { parts.append(Word.fallback(fallbackReason)) }
    return parts.joined(separator: Word.separator())
  }
}

/// Counts while an answer is written, before the library gives its own figures. Times are seconds of one clock.
struct Meter {
  private let began: Double
  private var first = 0.0
  private var tokens = 0
  private var accepted = 0

  /// Counts from here on.
  init(began: Double) { self.began = began }

  /// The figures with this piece.
  mutating func count(_ piece: Piece, now: Double) -> Live {
    if piece.token != nil {
      if tokens == 0 { first = now }
      tokens += 1
      if piece.drafted { accepted += 1 }
    }
    let passes = tokens - accepted  // each pass ends with one token of the model's own
    var live = Live()
    live.tokens = tokens
    live.firstTokenMs = tokens > 0 ? (first - began) * 1000 : nil
    live.tokensPerSecond = tokens > 1 && now > first ? Double(tokens - 1) / (now - first) : nil
    live.tokensPerPass = passes > 0 ? Double(tokens) / Double(passes) : nil
    live.accepted = accepted
    return live
  }
}
