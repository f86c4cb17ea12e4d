import StreamFuseCore

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

/// A choice of numbers under a name.
public enum Preset: CaseIterable, Sendable {
  case precise, balanced, creative

  /// Its name.
  public var word: Word {
    switch self {
    case .precise: .precise
    case .balanced: .balanced
    case .creative: .creative
    }
  }

  private var numbers: [Field: String] {
    switch self {
    case .precise: [.temperature: "0"]
    case .balanced: [.temperature: "0.7", .topP: "0.9"]
    case .creative: [.temperature: "1", .minP: "0.05"]
    }
  }

  /// The settings with its numbers; the other sampling parameters are the bundle's.
  func over(_ settings: Settings) -> Settings {
    var chosen = settings
    chosen.numbers = settings.numbers.filter { !Field.sampling.contains($0.key) }.merging(numbers) { $1 }
    return chosen
  }

  /// Whether these are the settings.
  public func isIn(_ settings: Settings) -> Bool { over(settings) == settings }
}

/// Settings that load the model again.
public struct LoadChoices: Sendable, Equatable {
  /// Threads of the engine; nil: it chooses.
  public var threads: Int?
  /// Whether the device keeps answers, and later ones are drafted from them.
  public var remembersAnswers = false
  /// Whether a full context drops its oldest turns, instead of refusing the next question.
  public var dropsOldest = false

  /// The library's form of `dropsOldest`.
  var contextPolicy: ContextPolicy { dropsOldest ? .dropOldest : .fail }
}

/// What the user chose. A field that is missing is the bundle's default.
public struct Settings: Sendable, Equatable {
  /// Numbers as plain digits, in range.
  public internal(set) var numbers: [Field: String] = [:]
  /// When answers are drafted.
  public internal(set) var speculation = Speculation.auto
  /// Instructions to the model.
  public internal(set) var systemPrompt = ""
  /// Whether drafted words are tinted.
  public internal(set) var showsDrafts = false
  /// Whether the device keeps answers, and later ones are drafted from them.
  public internal(set) var remembersAnswers = false
  /// Whether a full context drops its oldest turns.
  public internal(set) var dropsOldest = false

  /// The settings that load the model again.
  var loading: LoadChoices {
    LoadChoices(
      threads: numbers[.threads].flatMap { Int($0) }, remembersAnswers: remembersAnswers, dropsOldest: dropsOldest)
  }

  /// The settings of an answer.
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

extension GenerationConfig {
  /// For another answer to the same question. The most probable one would be the same again, so it is sampled.
  func another(_ defaults: GenerationConfig, seed: UInt64) -> GenerationConfig {
    var config = self
    config.seed = seed
    if (temperature ?? defaults.temperature ?? 0) == 0 {
      let sampled = Preset.balanced.over(Settings()).config
      config.temperature = sampled.temperature
      config.topP = topP ?? sampled.topP
    }
    return config
  }
}
