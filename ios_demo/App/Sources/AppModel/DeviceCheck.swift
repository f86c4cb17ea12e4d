import Observation
import StreamFuseCore

/// Runs the self-test of the chosen bundle: whether this device computes what the exporter recorded.
@MainActor @Observable
public final class DeviceCheck {
  /// Whether it runs.
  public private(set) var isRunning = false
  /// What it found, or why it could not run; empty before the first one.
  public private(set) var lines: [String] = []

  private let chat: ChatModel

  /// A check with the chat's model.
  init(_ chat: ChatModel) { self.chat = chat }

  /// Checks; nil if it runs already.
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
