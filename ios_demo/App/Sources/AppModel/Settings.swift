import Foundation
import Observation
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
    case .topK, .maxNewTokens: (self == .topK ? 0 : 1, Decimal(Int32.max), true)
    case .topP: (0, 1, false)
    case .minP: (0, 1, true)
    case .repetitionPenalty: (0, nil, false)
    case .seed: (0, Decimal(Int64.max), true)
    case .threads: (1, 64, true)
    }
  }

  /// The number in a text, as plain digits; nil where it is empty. `AppError` where it is none, or out of range.
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

/// When answers are drafted.
public enum Speculation: String, CaseIterable, Sendable {
  case auto, on, off

  /// Its name.
  public var word: Word {
    switch self {
    case .auto: .automatic
    case .on: .speculationOn
    case .off: .speculationOff
    }
  }
}

/// What the user chose. A field that is missing is the bundle's default.
public struct Settings: Sendable, Equatable {
  /// Numbers as plain digits, in range.
  public internal(set) var numbers: [Field: String] = [:]
  /// When answers are drafted.
  public internal(set) var speculation = Speculation.auto
  /// Instructions to the model.
  public internal(set) var systemPrompt = ""

  /// Threads of the engine.
  var threads: Int? { numbers[.threads].flatMap { Int($0) } }

  /// For the library.
  var config: GenerationConfig {
    var config = GenerationConfig()
    config.maxNewTokens = numbers[.maxNewTokens].flatMap { Int($0) }
    config.temperature = numbers[.temperature].flatMap { Double($0) }
    config.topK = numbers[.topK].flatMap { Int($0) }
    config.topP = numbers[.topP].flatMap { Double($0) }
    config.minP = numbers[.minP].flatMap { Double($0) }
    config.repetitionPenalty = numbers[.repetitionPenalty].flatMap { Double($0) }
    config.seed = numbers[.seed].flatMap { UInt64($0) }
    config.enableSpeculativeDecoding = speculation == .auto ? nil : speculation == .on
    return config
  }
}

/// The settings, kept among the user's defaults.
@MainActor @Observable
public final class SettingsStore {
  /// What the user chose.
  public private(set) var settings = Settings()
  /// The name of the bundle in use.
  var bundle: String? {
    get { kept.string(forKey: "bundle") }
    set { keep(newValue, "bundle") }
  }
  private let kept: UserDefaults

  /// The settings of an earlier process.
  init(_ kept: UserDefaults) {
    self.kept = kept
    for field in Field.allCases {
      // What an older version of the app kept may be out of range by now.
      settings.numbers[field] = (try? field.read(kept.string(forKey: field.rawValue) ?? "")) ?? nil
    }
    settings.speculation = kept.string(forKey: "speculation").flatMap(Speculation.init) ?? .auto
    settings.systemPrompt = kept.string(forKey: "system") ?? ""
  }

  /// Takes what the user typed. `AppError` where it is no such number; then nothing has changed.
  func set(_ field: Field, _ text: String) throws {
    settings.numbers[field] = try field.read(text)
    keep(settings.numbers[field], field.rawValue)
  }

  /// Takes what the user typed, or says why not.
  public func typed(_ field: Field, _ text: String) -> String? {
    do {
      try set(field, text)
      return nil
    } catch {
      return sentence(of: error)
    }
  }

  /// When answers are drafted.
  public func set(_ speculation: Speculation) {
    settings.speculation = speculation
    keep(speculation.rawValue, "speculation")
  }

  /// Instructions to the model.
  public func setSystemPrompt(_ text: String) {
    settings.systemPrompt = text
    keep(text, "system")
  }

  /// Everything as the bundle has it.
  public func clear() {
    settings = Settings()
    for key in Field.allCases.map(\.rawValue) + ["speculation", "system"] { keep(nil, key) }
  }

  private func keep(_ text: String?, _ key: String) {
    if let text { kept.set(text, forKey: key) } else { kept.removeObject(forKey: key) }
  }
}
