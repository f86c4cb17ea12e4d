import StreamFuseCore
import Synchronization

/// What a chat begins with.
struct ChatOpening: Sendable {
  let instructions: String?
  let tools: [Tool]

  /// Whether a chat with one is a chat with the other.
  func isSame(as other: ChatOpening) -> Bool {
    instructions == other.instructions && tools.map(\.json) == other.tools.map(\.json)
  }
}

/// What all chats of a model have in common.
struct ChatSetting: Sendable {
  let templateVariables: [String: JSONValue]
  let contextPolicy: ContextPolicy
  let adapter: String?
  /// The app's defaults of answers.
  let config: GenerationConfig

  /// A chat without a cache.
  func chat(_ model: Model, _ opening: ChatOpening, _ history: [Message]) -> Chat {
    model.chat(
      instructions: opening.instructions, history: history, tools: opening.tools, templateVariables: templateVariables,
      contextPolicy: contextPolicy, adapter: adapter
    ) { $0 = config }
  }
}

/// Chats that wait for the next request of their conversation, with their caches. A request has the whole conversation
/// and does not say which one it continues; the messages do.
final class KeptChats: Sendable {
  private struct Kept {
    let chat: Chat
    let opening: ChatOpening
    let messages: [Message]
  }

  private let most: Int
  private let kept = Mutex<[Kept]>([])

  init(most: Int) { self.most = most }

  /// The chat with exactly these messages, which is the caller's from now on; nil if there is none.
  func take(_ opening: ChatOpening, _ messages: [Message]) -> Chat? {
    kept.withLock { kept in
      let place = kept.lastIndex { $0.messages == messages && $0.opening.isSame(as: opening) }
      return place.map { kept.remove(at: $0).chat }
    }
  }

  /// Keeps a chat that nobody uses now; the one that waits for longest goes if there are too many.
  func keep(_ chat: Chat, _ opening: ChatOpening, _ messages: [Message]) {
    kept.withLock { kept in
      kept.append(Kept(chat: chat, opening: opening, messages: messages))
      kept.removeFirst(max(0, kept.count - most))
    }
  }
}
