import Observation
import StreamFuseCore

/// Runs the self-test of the chosen bundle, which shows whether this device computes what the exporter recorded.
@MainActor @Observable
public final class DeviceCheck {
  /// Whether a check is running.
  public private(set) var isRunning = false
  /// The result, or why the check could not run; empty before the first check.
  public private(set) var lines: [String] = []

  private let chat: ChatModel

  /// Checks the model of this chat.
  init(_ chat: ChatModel) { self.chat = chat }

  /// Starts a check; nil if one is running.
  @discardableResult
  public func run() -> Task<Void, Never>? {
    if isRunning { return nil }
    (isRunning, lines) = (true, [])
    return Task { [self] in
      do {
        lines = try await chat.lend { try await $0.selfTest() }.map(Self.lines) ?? [Word.benchmarkNoBundle()]
      } catch {
        lines = [sentence(of: error)]
      }
      isRunning = false
    }
  }

  private nonisolated static func lines(of found: SelfTest) -> [String] {
    let result =
      !found.passed ? Word.checkFailed()
      : found.equal ? Word.checkEqual(found.methods.keys.sorted().joined(separator: ", ")) : Word.checkPassed()
    return [result] + found.differences
  }
}
