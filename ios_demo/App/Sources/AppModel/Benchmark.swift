import Foundation
import Observation
import StreamFuseCore
import Synchronization

/// One answer of the benchmark.
struct Measured: Sendable {
  let text: String
  let statistics: Statistics
}

/// How hot the device is: where it is hot the system slows the processor.
public enum Heat: Sendable { case normal, warm, hot }

/// What makes a device slower for a time.
public struct Power: Sendable, Equatable {
  let heat: Heat
  let isSaving: Bool

  /// As the system says.
  public init(_ heat: Heat, isSaving: Bool) {
    self.heat = heat
    self.isSaving = isSaving
  }
}

/// All answers of one benchmark, in the order of their turns.
struct Measurement: Sendable {
  let bundle: String
  let threads: Int?
  /// Before and after the answers, if the system says.
  var power: [Power] = []
  var plain: [Measured] = []
  var speculative: [Measured] = []

  /// Lossless: drafting changes no word.
  var equal: Bool { Set((plain + speculative).map(\.text)).count == 1 }
}

/// The benchmark screen: writes the same answer with and without speculation, taking turns, so that a warm device is unfair
/// to neither.
@MainActor @Observable
public final class BenchmarkModel {
  /// How often each mode answers.
  public nonisolated static let repetitions = 3

  /// Answers that are written.
  public private(set) var done = 0
  /// Answers that will be; 0 while nothing runs.
  public private(set) var total = 0
  /// The last result as text that can be shared.
  public private(set) var report: String?
  /// What went wrong last.
  public private(set) var message: String?

  /// Whether it runs.
  public var running: Bool { total > 0 }
  /// What the screen says.
  public var note: String? {
    running ? Word.benchmarkProgress(done + 1, total) : report == nil ? message : Word.benchmarkFinished()
  }

  private let chat: ChatModel
  private let settings: SettingsStore
  private let device: [String]
  private let power: @MainActor () -> Power?
  @ObservationIgnored private var task: Task<Void, Never>?

  /// A benchmark of the chat's model. `device` names the device for the report, a line each.
  init(_ chat: ChatModel, settings: SettingsStore, device: [String], power: @escaping @MainActor () -> Power?) {
    self.chat = chat
    self.settings = settings
    self.device = device
    self.power = power
  }

  /// Measures; an empty prompt is the usual one. `tokens` is what the user typed.
  @discardableResult
  public func run(prompt: String, tokens: String) -> Task<Void, Never>? {
    if running { return nil }
    (report, message, done) = (nil, nil, 0)
    let words = prompt.trimmingCharacters(in: .whitespacesAndNewlines)
    let most: Int
    do {
      most = try Field.maxNewTokens.read(tokens).flatMap { Int($0) } ?? 128
    } catch {
      message = sentence(of: error)
      return nil
    }
    total = 2 * Self.repetitions + 1
    let task = Task { [self] in
      do {
        let bundle = settings.bundle ?? ""
        let result = try await chat.lend { [self] in
          try await measure($0, bundle, words.isEmpty ? Word.benchmarkPrompt() : words, most)
        }
        report = result.map { $0.report(device) }
        message = result == nil ? Word.benchmarkNoBundle() : nil
      } catch is CancellationError {
        message = Word.benchmarkCancelled()
      } catch {
        message = sentence(of: error)
      }
      total = 0
    }
    self.task = task
    return task
  }

  /// Ends it at the next token.
  public func cancel() { task?.cancel() }

  private func measure(_ model: any OpenModel, _ bundle: String, _ prompt: String, _ tokens: Int) async throws -> Measurement {
    var config = GenerationConfig()
    config.temperature = 0
    config.repetitionPenalty = 1
    config.maxNewTokens = tokens
    func answer(drafted: Bool) async throws -> Measured {
      let session = model.session(instructions: nil, history: [])
      config.enableSpeculativeDecoding = drafted
      let text = Mutex("")
      let ask = session.ask(prompt, config)
      try await ask { piece in text.withLock { $0 += piece.text } }
      guard let statistics = try await session.statistics else { throw StreamFuseError(.broken, "an answer has no statistics") }
      done += 1
      return Measured(text: text.withLock { $0 }, statistics: statistics)
    }
    var result = Measurement(bundle: bundle, threads: model.threads)
    let before = power()
    _ = try await answer(drafted: true)  // the first one measures what passes cost, and reads the weights
    for repetition in 0..<Self.repetitions {
      for drafted in repetition % 2 == 0 ? [false, true] : [true, false] {
        let measured = try await answer(drafted: drafted)
        if drafted { result.speculative.append(measured) } else { result.plain.append(measured) }
      }
    }
    result.power = [before, power()].compactMap { $0 }
    return result
  }
}

extension Measurement {
  /// A benchmark as text that can be shared. Medians, if not said otherwise.
  func report(_ device: [String]) -> String {
    let runs = [plain, speculative].map { $0.map(\.statistics) }
    func row(_ name: Word, _ digits: Int, _ unit: String = "", _ ofRuns: ([Statistics]) -> Double) -> [String] {
      [name()] + runs.map { String(format: "%.\(digits)f", ofRuns($0)) + unit }
    }
    func rates(_ runs: [Statistics]) -> [Double] { runs.map { $0.decodeTokensPerSecond ?? 0 } }
    let rows = [
      ["", Word.reportPlain(), Word.reportSpeculative()],
      row(.reportRate, 1) { median($0, \.decodeTokensPerSecond) },
      row(.reportSlowest, 1) { rates($0).min() ?? 0 },
      row(.reportFastest, 1) { rates($0).max() ?? 0 },
      row(.reportFirstToken, 0) { median($0, \.firstTokenMs) },
      row(.reportPerPass, 2) { median($0, \.meanAcceptedTokens) },
      row(.reportAccepted, 0, " %") { 100 * median($0, \.acceptanceRate) },
      row(.reportTokens, 0) { median($0) { Double($0.generatedTokens) } },
    ]
    let speeds = runs.map { median($0, \.decodeTokensPerSecond) }
    let how = threads.map(String.init) ?? Word.automatic().lowercased()
    var lines = [Word.reportTitle()] + device
    lines += [Word.reportBundle(bundle, how)] + powerLines
    lines += [""] + table(rows) + [""]
    if speeds[0] > 0 { lines.append(Word.reportSpeedup() + String(format: ": %.2f", speeds[1] / speeds[0])) }
    lines.append(equal ? Word.reportEqual() : Word.reportDifferent())
    if let reason = runs[1].lazy.compactMap(\.fallbackReason).first { lines.append("\(Word.reportFallback()): \(reason)") }
    return lines.joined(separator: "\n") + "\n"
  }

  /// What slowed the device.
  private var powerLines: [String] {
    guard let before = power.first, let after = power.last else { return [] }
    let words: [Heat: Word] = [.normal: .heatNormal, .warm: .heatWarm, .hot: .heatHot]
    let heat = Word.reportHeat(words[before.heat]!(), words[after.heat]!())
    return [heat] + (power.contains(where: \.isSaving) ? [Word.reportSaver()] : [])
  }

  /// The first column to the left, the others to the right.
  private func table(_ rows: [[String]]) -> [String] {
    let widths = rows[0].indices.map { column in rows.map { $0[column].count }.max() ?? 0 }
    return rows.map { row in
      zip(row, widths).enumerated().map { column, cell in
        let gap = String(repeating: " ", count: cell.1 - cell.0.count)
        return column == 0 ? cell.0 + gap : gap + cell.0
      }.joined(separator: "  ")
    }
  }

  private func median(_ runs: [Statistics], _ value: (Statistics) -> Double?) -> Double {
    let sorted = runs.map { value($0) ?? 0 }.sorted()
    return sorted.isEmpty ? 0 : sorted[sorted.count / 2]
  }
}
