import Foundation
import Observation
import StreamFuseCore
import Synchronization

/// The benchmark screen: writes the same answer with and without speculation, taking turns, so that a warm device is
/// unfair to neither.
@MainActor @Observable
public final class BenchmarkModel {
  /// How often each mode answers.
  public nonisolated static let repetitions = 3

  /// Answers that are written.
  public private(set) var done = 0
  /// Answers that will be; 0 while nothing runs.
  public private(set) var total = 0
  /// The last result.
  public private(set) var result: BenchmarkResult?
  /// What went wrong last.
  public private(set) var message: String?

  /// Whether it runs.
  public var running: Bool { total > 0 }
  /// The status line of the screen; nil if there is none.
  public var note: String? {
    running ? Word.benchmarkProgress(done + 1, total) : result == nil ? message : Word.benchmarkFinished()
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

  /// Measures; an empty prompt is the usual one. `tokens` is what the user typed. Nil if it cannot be measured, or is
  /// being measured.
  @discardableResult
  public func run(prompt: String, tokens: String) -> Task<Void, Never>? {
    if running { return nil }
    (result, message, done) = (nil, nil, 0)
    if settings.settings.remembersAnswers {  // each answer would be drafted from the one before, which is the same
      message = Word.benchmarkRemembers()
      return nil
    }
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
        let measured = try await chat.lend { [self] in
          try await measure($0, bundle, words.isEmpty ? Word.benchmarkPrompt() : words, most)
        }
        result = measured.map { $0.result(device) }
        message = measured == nil ? Word.benchmarkNoBundle() : nil
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
      let session = model.session(instructions: nil, history: [], contextPolicy: .fail)
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
    result.peakBytes = peakMemory()
    return result
  }
}

/// Peak resident memory of this process in bytes; nil if the system does not report it.
func peakMemory() -> Int64? {
  var usage = rusage()
  #if canImport(Darwin)
    return getrusage(RUSAGE_SELF, &usage) == 0 ? Int64(usage.ru_maxrss) : nil
  #else
    return getrusage(__rusage_who_t(RUSAGE_SELF.rawValue), &usage) == 0 ? Int64(usage.ru_maxrss) << 10 : nil
  #endif
}
