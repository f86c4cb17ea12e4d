import Foundation
import StreamFuseCore

/// A number that the user may set; an empty field leaves it to the bundle. The ranges are those of the library, which
/// checks them again.
public enum Field: String, CaseIterable, Sendable {
  case temperature, topK, topP, minP, repetitionPenalty, seed, maxNewTokens, threads

  /// Its name and what it does.
  public var words: (label: Word, help: Word) {
    switch self {
    case .temperature: (.temperature, .temperatureHelp)
    case .topK: (.topK, .topKHelp)
    case .topP: (.topP, .topPHelp)
    case .minP: (.minP, .minPHelp)
    case .repetitionPenalty: (.repetitionPenalty, .repetitionPenaltyHelp)
    case .seed: (.seed, .seedHelp)
    case .maxNewTokens: (.maxNewTokens, .maxNewTokensHelp)
    case .threads: (.threads, .threadsHelp)
    }
  }

  /// What an empty field means.
  public var placeholder: Word { self == .threads ? .automatic : .bundleDefault }

  /// Whether it takes no fractions.
  public var whole: Bool { ![.temperature, .topP, .minP, .repetitionPenalty].contains(self) }

  /// The smallest number, the largest one, and whether the smallest is allowed.
  private var range: (low: Decimal, high: Decimal?, lowAllowed: Bool) {
    switch self {
    case .temperature: (0, nil, true)
    case .topK: (0, Decimal(Int32.max), true)
    case .maxNewTokens: (1, Decimal(Int32.max), true)
    case .topP: (0, 1, false)
    case .minP: (0, 1, true)
    case .repetitionPenalty: (0, nil, false)
    case .seed: (0, Decimal(Int64.max), true)
    case .threads: (1, 64, true)
    }
  }

  /// Range and step of its slider, which covers the usual numbers; nil: the number is typed.
  public var slider: (range: ClosedRange<Double>, step: Double)? {
    switch self {
    case .temperature: (0...2, 0.05)
    case .topK: (0...100, 1)
    case .topP: (0.05...1, 0.05)
    case .minP: (0...0.5, 0.01)
    case .repetitionPenalty: (1...2, 0.05)
    case .seed: nil
    case .maxNewTokens: (16...2048, 16)
    case .threads: (1...16, 1)
    }
  }

  /// The number of a bundle's defaults; nil if it has none.
  func value(in config: GenerationConfig) -> Double? {
    switch self {
    case .temperature: config.temperature
    case .topK: config.topK.map(Double.init)
    case .topP: config.topP
    case .minP: config.minP
    case .repetitionPenalty: config.repetitionPenalty
    case .seed: config.seed.map(Double.init)
    case .maxNewTokens: config.maxNewTokens.map(Double.init)
    case .threads: nil
    }
  }

  /// The sampling parameters.
  static let sampling: Set<Field> = [.temperature, .topK, .topP, .minP, .repetitionPenalty]

  /// The number in a text, as plain digits; nil for an empty one. Throws `AppError` for invalid input: no number, a
  /// fraction where none is allowed, or out of range.
  public func read(_ text: String) throws -> String? {
    let plain = text.trimmingCharacters(in: .whitespacesAndNewlines).replacing(",", with: ".")
    if plain.isEmpty { return nil }
    guard plain.wholeMatch(of: /[+\-]?([0-9]{1,25}\.?[0-9]{0,12}|\.[0-9]{1,12})/) != nil,
      let number = Decimal(string: plain)
    else { throw AppError(Word.notANumber(plain)) }
    var value = number, floor = Decimal()
    NSDecimalRound(&floor, &value, 0, .down)
    if whole && floor != number { throw AppError(Word.notWhole(plain)) }
    let (low, high, lowAllowed) = range
    if number >= low && (lowAllowed || number != low) && (high.map { number <= $0 } ?? true) { return "\(number)" }
    let sentence =
      switch (high, lowAllowed) {
      case (nil, true): Word.rangeFrom(low, plain)
      case (nil, false): Word.rangeAbove(low, plain)
      case (let high?, true): Word.rangeBetween(low, high, plain)
      case (let high?, false): Word.rangeAboveTo(low, high, plain)
      }
    throw AppError(sentence)
  }
}
