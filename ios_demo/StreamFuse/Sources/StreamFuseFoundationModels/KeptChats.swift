import StreamFuseCore

/// The instructions and tools of a chat.
struct ChatOpening: Sendable {
  let instructions: String?
  let tools: [Tool]

  /// Whether both have the same instructions and tools.
  func isSame(as other: ChatOpening) -> Bool {
    instructions == other.instructions && tools.map(\.json) == other.tools.map(\.json)
  }
}

/// The settings that all chats of a model share.
struct ChatSetting: Sendable {
  let templateVariables: [String: JSONValue]
  let contextPolicy: ContextPolicy
  let adapter: String?
  /// The app's default options of answers.
  let config: GenerationConfig

  /// A new chat with an empty cache.
  func chat(_ model: Model, _ opening: ChatOpening, _ history: [Message]) -> Chat {
    model.chat(
      instructions: opening.instructions, history: history, tools: opening.tools, templateVariables: templateVariables,
      contextPolicy: contextPolicy, adapter: adapter
    ) { $0 = config }
  }
}

/// Idle chats with their KV caches, kept for the next request of their conversation. A request contains the whole
/// conversation but no identifier, so its chat is found by the messages.
final class KeptChats: Sendable {
  private struct Kept {
    let chat: Chat
    let opening: ChatOpening
    let messages: [Message]
  }

  private let most: Int
  private let kept = Locked<[Kept]>([])

  init(most: Int) { self.most = most }

  /// Removes and returns the chat with exactly these messages; nil if there is none.
  func take(_ opening: ChatOpening, _ messages: [Message]) -> Chat? {
    kept.withLock { kept in
      place(opening, messages, in: kept).map { kept.remove(at: $0).chat }
    }
  }

  /// Keeps an idle chat; if there are more than `most`, the one that was kept first is dropped.
  func keep(_ chat: Chat, _ opening: ChatOpening, _ messages: [Message]) {
    kept.withLock { add(Kept(chat: chat, opening: opening, messages: messages), to: &$0) }
  }

  /// Returns the kept chat with exactly these messages, or keeps a new one. The chat becomes the most recently kept.
  func keep(_ opening: ChatOpening, _ messages: [Message], orNew chat: () -> Chat) -> Chat {
    kept.withLock { kept in
      let place = place(opening, messages, in: kept)
      let found = place.map { kept.remove(at: $0).chat } ?? chat()
      add(Kept(chat: found, opening: opening, messages: messages), to: &kept)
      return found
    }
  }

  private func place(_ opening: ChatOpening, _ messages: [Message], in kept: [Kept]) -> Int? {
    kept.lastIndex { $0.messages == messages && $0.opening.isSame(as: opening) }
  }

  private func add(_ new: Kept, to kept: inout [Kept]) {
    kept.append(new)
    kept.removeFirst(max(0, kept.count - most))
  }
}
