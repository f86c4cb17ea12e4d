import StreamFuseCore

/// What the chat is doing.
public enum Phase: Sendable {
  /// Nothing is chosen.
  case noBundle
  /// The bundle is being loaded.
  case loading
  /// It may be asked.
  case ready
  /// It answers.
  case writing
  /// The benchmark has the model.
  case lent
  /// The chosen bundle could not be loaded.
  case failed
}

/// The chat screen.
public struct ChatState: Sendable, Equatable {
  /// What the chat is doing.
  public internal(set) var phase = Phase.loading
  /// The bundle's name.
  public internal(set) var bundle: String?
  /// The id of the open chat.
  public internal(set) var chat: String?
  /// Whether the bundle can chat; else it only continues text.
  public internal(set) var canChat = true
  /// The conversation, without an answer that is being written.
  public internal(set) var turns: [Turn] = []
  /// The place of the question that is edited.
  public internal(set) var editing: Int?
  /// Whether the answer that is being written has a word.
  public internal(set) var begun = false
  /// What went wrong last.
  public internal(set) var error: String?
  /// A text that was refused, or typed before an edit; but for an edit, it is in the input field until it is deleted or
  /// asked.
  public internal(set) var unsent: String?

  /// Whether the bundles screen should be offered.
  public var wantsBundle: Bool { phase == .noBundle || phase == .failed }

  /// A sentence on what the chat does, or how the last answer ended. It is announced when it changes, so it changes
  /// when an answer begins and ends, not with each token.
  public var note: String? {
    switch phase {
    case .noBundle: Word.noBundle()
    case .loading: Word.loading(bundle ?? "")
    case .lent: Word.lent()
    case .writing: begun ? Word.writing() : Word.reading()
    case .ready: turns.last.map(Self.note)
    case .failed: nil
    }
  }

  /// The note, unless the answer was complete, which the screen shows by itself.
  public var shownNote: String? { phase == .ready && turns.last?.isComplete == true ? nil : note }

  /// How the last answer ended.
  private static func note(of turn: Turn) -> String {
    switch turn.end {
    case End.stopped: Word.endStopped()
    case End.left: Word.endLeft()
    case End.failed: Word.endFailed()
    case "length": Word.endLength()
    case "context": Word.endContext()
    default: Word.endComplete()
    }
  }
}
