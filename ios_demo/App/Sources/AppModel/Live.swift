import Foundation
import StreamFuseCore

/// Figures of an answer; nil: not known yet.
public struct Live: Sendable, Equatable, Codable {
  var tokens = 0
  var firstTokenMs: Double?
  var tokensPerSecond: Double?
  var tokensPerPass: Double?
  var accepted = 0
  var proposed: Int?
  var fallbackReason: String?
  /// Speed-up over plain decoding, from the measured cost of a plain pass.
  var speedup: Double?
  /// Accepted drafted tokens by who drafted them.
  var bySource: [String: Int] = [:]
  var promptTokens: Int?
  var prefillTokensPerSecond: Double?
  /// Number of old turns that were dropped to make room for this one.
  var droppedTurns = 0

  /// Figures of an answer that has no token yet.
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
    bySource = statistics.acceptedBySource
    promptTokens = statistics.promptTokens
    prefillTokensPerSecond = statistics.prefillTokensPerSecond
    droppedTurns = statistics.droppedTurns
    if accepted > 0, let cost = statistics.costMs["decode"] ?? nil, cost > 0, let tokensPerSecond {
      speedup = tokensPerSecond * cost / 1000
    }
  }

  /// The two figures under an answer, with numbers in the format of `locale`; nil if there are none.
  public func chip(_ locale: Locale = .current) -> String? {
    guard let tokensPerSecond else { return nil }
    let rate = Word.chipRate(number(tokensPerSecond, 0, locale))
    return speedup.map { rate + Word.separator() + Word.chipSpeedup(number($0, 1, locale)) } ?? rate
  }

  /// All figures, a line each.
  public func details(_ locale: Locale = .current) -> [String] {
    var lines: [String] = []
    if let firstTokenMs { lines.append(Word.firstToken(number(firstTokenMs / 1000, 2, locale))) }
    if let tokensPerSecond { lines.append(Word.rate(number(tokensPerSecond, 1, locale))) }
    if let speedup { lines.append(Word.speedup(number(speedup, 2, locale))) }
    if let tokensPerPass { lines.append(Word.perPass(number(tokensPerPass, 2, locale))) }
    if let proposed { lines.append(Word.acceptedOf(accepted, proposed)) }
    for mark in Mark.allCases {
      if let tokens = bySource[mark.source.rawValue], tokens > 0 { lines.append(Word.sourceRow(mark.word(), tokens)) }
    }
    if let promptTokens, let rate = prefillTokensPerSecond {
      lines.append(Word.promptReadAt(promptTokens, number(rate, 0, locale)))
    }
    if droppedTurns > 0 { lines.append(Word.droppedTurns(droppedTurns)) }
    if let fallbackReason { lines.append(Word.fallback(fallbackReason)) }
    return lines
  }
}

private func number(_ value: Double, _ digits: Int, _ locale: Locale) -> String {
  String(format: "%.\(digits)f", locale: locale, value)
}

/// Counts tokens while an answer is written, before the library returns its statistics. Times are in seconds.
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
