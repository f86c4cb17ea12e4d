import Foundation
import Observation
import StreamFuseCore

/// What is on or off.
public enum Switch: String, CaseIterable, Sendable {
  case showsDrafts, remembersAnswers, dropsOldest

  /// Its place among the settings.
  var path: WritableKeyPath<Settings, Bool> {
    switch self {
    case .showsDrafts: \.showsDrafts
    case .remembersAnswers: \.remembersAnswers
    case .dropsOldest: \.dropsOldest
    }
  }

  /// Its name and what it does.
  public var words: (label: Word, help: Word) {
    switch self {
    case .showsDrafts: (.showDrafts, .legendTints)
    case .remembersAnswers: (.rememberAnswers, .rememberAnswersHelp)
    case .dropsOldest: (.dropOldest, .dropOldestHelp)
    }
  }

  /// Whether it is on.
  public func isOn(_ settings: Settings) -> Bool { settings[keyPath: path] }
}

/// The settings, kept among the user's defaults.
@MainActor @Observable
public final class SettingsStore {
  /// What the user chose.
  public private(set) var settings = Settings()
  /// The name of the bundle in use.
  var bundle: String? { didSet { keep(bundle, "bundle") } }
  /// The id of the chat that was open last, saved or not.
  var chat: String? {
    get { kept.string(forKey: "chat") }
    set { keep(newValue, "chat") }
  }
  /// The address of the catalogue that was asked for last.
  var catalog: String {
    get { kept.string(forKey: "catalog") ?? "" }
    set { keep(newValue, "catalog") }
  }
  private let kept: UserDefaults

  /// The settings of an earlier process.
  init(_ kept: UserDefaults) {
    self.kept = kept
    bundle = kept.string(forKey: "bundle")
    for field in Field.allCases {
      // What an older version of the app kept may be out of range by now.
      settings.numbers[field] = (try? field.read(kept.string(forKey: field.rawValue) ?? "")) ?? nil
    }
    settings.speculation = kept.string(forKey: "speculation").flatMap(Speculation.init) ?? .auto
    settings.systemPrompt = kept.string(forKey: "system") ?? ""
    for toggle in Switch.allCases { settings[keyPath: toggle.path] = kept.bool(forKey: toggle.rawValue) }
  }

  /// Sets a number from text. Throws `AppError` for invalid input, which changes nothing.
  func set(_ field: Field, _ text: String) throws {
    settings.numbers[field] = try field.read(text)
    keep(settings.numbers[field], field.rawValue)
  }

  /// Sets a number from text. Returns the error to show for invalid input, which changes nothing; else nil.
  public func typed(_ field: Field, _ text: String) -> String? {
    do {
      try set(field, text)
      return nil
    } catch {
      return sentence(of: error)
    }
  }

  /// Sets when answers are drafted.
  public func set(_ speculation: Speculation) {
    settings.speculation = speculation
    keep(speculation.rawValue, "speculation")
  }

  /// Sets the instructions to the model.
  public func setSystemPrompt(_ text: String) {
    settings.systemPrompt = text
    keep(text, "system")
  }

  /// A number as it is shown: the user's, or the bundle's.
  public func shown(_ field: Field, _ defaults: GenerationConfig) -> String {
    if let number = settings.numbers[field] { return number }
    guard let number = field.value(in: defaults) else { return field.placeholder() }
    return Word.defaultValue(field.whole ? String(format: "%.0f", number) : "\(number)")
  }

  /// Where the slider of a number stands; within its range, whatever was typed.
  public func position(_ field: Field, _ defaults: GenerationConfig) -> Double {
    guard let range = field.slider?.range else { return 0 }
    let number = settings.numbers[field].flatMap(Double.init) ?? field.value(in: defaults) ?? range.lowerBound
    return min(max(number, range.lowerBound), range.upperBound)
  }

  /// Takes the place of a slider.
  public func slide(_ field: Field, to value: Double) {
    try? set(field, field.whole ? String(format: "%.0f", value) : String(format: "%.2f", value))
  }

  /// The bundle's own number again.
  public func reset(_ field: Field) { try? set(field, "") }

  /// The numbers of a preset.
  public func set(_ preset: Preset) {
    settings = preset.over(settings)
    for field in Field.sampling { keep(settings.numbers[field], field.rawValue) }
  }

  /// Turns a switch on or off.
  public func set(_ toggle: Switch, _ on: Bool) {
    settings[keyPath: toggle.path] = on
    kept.set(on, forKey: toggle.rawValue)
  }

  /// Restores the defaults.
  public func clear() {
    settings = Settings()
    for key in Field.allCases.map(\.rawValue) + Switch.allCases.map(\.rawValue) + ["speculation", "system"] { keep(nil, key) }
  }

  private func keep(_ text: String?, _ key: String) {
    if let text { kept.set(text, forKey: key) } else { kept.removeObject(forKey: key) }
  }
}
