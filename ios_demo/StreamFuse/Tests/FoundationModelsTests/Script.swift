import Arithmetic
import Foundation
import Synchronization

@testable import StreamFuseCore

/// One answer of a script.
struct ScriptedAnswer {
  var pieces: [Piece]
  var calls: [ToolCall] = []
  var finishReason = "stop"
  var refusal: StreamFuseError?

  init(_ texts: String..., finishReason: String = "stop") {
    pieces = texts.map { Piece(text: $0, token: 1) }
    self.finishReason = finishReason
  }
}

/// A model whose answers are scripted, and the requests that it received.
final class Script: Sendable {
  /// What a chat was made with.
  struct Opened {
    let instructions: String?
    let history: [Message]
    let tools: [Tool]
  }
  struct State {
    var answers: [ScriptedAnswer]
    var opened: [Opened] = []
    var requests: [(chat: Int, prompt: Prompt, config: GenerationConfig)] = []
    var prepared = 0
    /// Called before a chat counts as prepared.
    var preparing: @Sendable () -> Void = {}
  }
  let state: Mutex<State>

  init(_ answers: [ScriptedAnswer]) { state = Mutex(State(answers: answers)) }

  var opened: [Opened] { state.withLock { $0.opened } }
  var requests: [(chat: Int, prompt: Prompt, config: GenerationConfig)] { state.withLock { $0.requests } }

  func model(_ configure: (inout GenerationConfig) -> Void = { _ in }) -> Model {
    var defaults = GenerationConfig.coreDefaults
    configure(&defaults)
    return Model(
      spec: .arithmetic(), defaults: defaults, manifest: Data(), backend: nil, loadMs: 0, canChat: true,
      countTokens: { $0.count }
    ) { use in
      guard case .chat(let instructions, let history, let tools, _, _, _) = use else { fatalError("no chat") }
      return self.state.withLock {
        $0.opened.append(Opened(instructions: instructions, history: history, tools: tools))
        return ScriptedChat(script: self, number: $0.opened.count - 1)
      }
    }
  }
}

private final class ScriptedChat: StatelessWriter {
  private let script: Script
  private let number: Int
  private let current = Mutex(ScriptedAnswer())
  private let left = Mutex<[Piece]>([])

  init(script: Script, number: Int) { (self.script, self.number) = (script, number) }

  func start(_ prompt: Prompt, _ config: GenerationConfig) throws {
    let answer = script.state.withLock {
      $0.requests.append((number, prompt, config))
      return $0.answers.removeFirst()
    }
    if let refusal = answer.refusal { throw refusal }
    current.withLock { $0 = answer }
    left.withLock { $0 = answer.pieces }
  }

  func next() -> Piece? { left.withLock { $0.isEmpty ? nil : $0.removeFirst() } }

  func toolCalls() -> [ToolCall] { current.withLock { $0.calls } }

  func statistics() throws -> Statistics {
    let answer = current.withLock { $0 }
    return try .scripted(
      promptTokens: 20, prefilledTokens: 5, generatedTokens: answer.pieces.count, finishReason: answer.finishReason)
  }

  func prepare() {
    script.state.withLock { $0.preparing }()
    script.state.withLock { $0.prepared += 1 }
  }

  func finish() { left.withLock { $0 = [] } }
  func stop() { left.withLock { $0 = [] } }
}
