#if canImport(FoundationModels, _version: 2)
  import Foundation
  import FoundationModels
  import StreamFuseCore

  /// A transcript as the messages of a chat.
  @available(iOS 27.0, macOS 27.0, *)
  struct Conversation {
    /// What is to be answered.
    enum Next {
      /// A prompt.
      case question(String)
      /// The outputs of the tools that the last message calls.
      case results([ToolResult])
    }

    /// The text of the first entry, if it is instructions.
    private(set) var instructions: String?
    /// The tools that the instructions define.
    private(set) var toolDefinitions: [Transcript.ToolDefinition] = []
    /// The messages before `pending`.
    private(set) var history: [Message] = []
    /// The messages that are to be answered: a question, or the results of tools.
    private(set) var pending: [Message] = []

    /// Reads the entries. Reasoning is left out, as chat templates do. Throws `LanguageModelError` for content that is
    /// not text and, if `expectsAnswer`, for a transcript that does not end with a prompt or tool outputs.
    init(_ transcript: Transcript, expectsAnswer: Bool = true) throws {
      var messages: [Message] = []
      for (place, entry) in transcript.enumerated() {
        switch entry {
        case .instructions(let entered):
          let text = try Self.text(entered.segments, of: entry)
          if place == 0 {
            (instructions, toolDefinitions) = (text.isEmpty ? nil : text, entered.toolDefinitions)
          } else if !text.isEmpty {
            messages.append(Message(role: .system, content: text))
          }
        case .prompt(let entered):
          messages.append(Message(role: .user, content: try Self.text(entered.segments, of: entry)))
        case .response(let entered):
          messages.append(Message(role: .assistant, content: try Self.text(entered.segments, of: entry)))
        case .toolCalls(let entered):
          let calls = try entered.map {
            try ToolCall(id: $0.id, name: $0.toolName, argumentsText: $0.arguments.jsonString)
          }
          // The text before a tool call belongs to the message with the call.
          let preamble = messages.last.flatMap { $0.role == .assistant && $0.toolCalls == nil ? $0.content : nil }
          if preamble != nil { messages.removeLast() }
          messages.append(Message(role: .assistant, content: preamble ?? "", toolCalls: calls))
        case .toolOutput(let entered):
          let text = try Self.text(entered.segments, of: entry)
          messages.append(Message(role: .tool, content: text, toolCallID: entered.id, name: entered.toolName))
        case .reasoning: break
        @unknown default: throw Self.unsupported(entry, "an entry of this kind is not known")
        }
      }
      if expectsAnswer {
        let count = messages.last?.role == .user ? 1 : messages.reversed().prefix { $0.role == .tool }.count
        guard count > 0 else {
          throw LanguageModelError.unsupportedTranscriptContent(
            .init(
              unsupportedContent: transcript.last.map { [$0] } ?? [],
              debugDescription: "the transcript ends with neither a prompt nor the output of a tool"))
        }
        pending = Array(messages.suffix(count))
        messages.removeLast(count)
      }
      history = messages
    }

    /// What is to be answered.
    var next: Next {
      hasResults
        ? .results(pending.map { ToolResult(toolCallID: $0.toolCallID ?? "", content: $0.content) })
        : .question(pending.first?.content ?? "")
    }

    /// Whether tools were called for the last prompt.
    var hasResults: Bool { pending.first?.role == .tool }

    /// The instructions and tools of the chat.
    func opening(_ tools: [Transcript.ToolDefinition]) throws -> ChatOpening {
      ChatOpening(
        instructions: instructions,
        tools: try tools.map {
          // The framework runs the tools.
          StreamFuseCore.Tool($0.name, $0.description, parameters: try jsonSchema(of: $0.parameters)) { _ in "" }
        })
    }

    private static func text(_ segments: [Transcript.Segment], of entry: Transcript.Entry) throws -> String {
      try segments.map { segment in
        switch segment {
        case .text(let text): text.content
        case .structure(let structure): structure.content.jsonString
        default: throw unsupported(entry, "the model reads text only, and no images")
        }
      }.joined(separator: "\n")
    }

    private static func unsupported(_ entry: Transcript.Entry, _ reason: String) -> LanguageModelError {
      .unsupportedTranscriptContent(.init(unsupportedContent: [entry], debugDescription: reason))
    }
  }
#endif
