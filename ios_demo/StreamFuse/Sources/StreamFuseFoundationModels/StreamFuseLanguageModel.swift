// Version 2 of the framework is that of iOS 27 and macOS 27, the first that accepts models of other developers. With an
// older SDK this module is empty.
#if canImport(FoundationModels, _version: 2)
  import Foundation
  import FoundationModels
  import StreamFuseCore

  /// A model for Apple's `LanguageModelSession` that runs a bundle.
  ///
  ///     let model = try await StreamFuse.load(from: folder)
  ///     let session = LanguageModelSession(model: StreamFuseLanguageModel(model), instructions: "You answer briefly.")
  ///     let answer = try await session.respond(to: "Why is the sky blue?")
  ///
  /// Text, streaming, tools and guided generation work. Images in a prompt are refused. With a schema, the whole answer
  /// is the object, so tools are called only if the request's `toolCallingMode` is `.required`.
  @available(iOS 27.0, macOS 27.0, *)
  public struct StreamFuseLanguageModel: LanguageModel {
    /// Guided generation and tool calling, and reasoning if `init` enabled it.
    public let capabilities: LanguageModelCapabilities
    /// The open bundle.
    let model: StreamFuseCore.Model
    /// Whether text of `Channel.thinking` is sent as reasoning.
    let sendsReasoning: Bool
    /// The settings that all chats share.
    let setting: ChatSetting
    /// Idle chats of earlier requests.
    let chats: KeptChats

    /// A model for `LanguageModelSession`.
    ///
    /// - Parameters:
    ///   - model: an open bundle with a chat template; without one, each request throws `StreamFuseError`.
    ///   - reasoning: whether the model thinks before it answers, in tags that the bundle's chat template has. The
    ///     thoughts are then reasoning entries of the transcript; otherwise they are dropped.
    ///   - templateVariables, contextPolicy, adapter: as in `Model.chat`.
    ///   - keptChats: how many conversations keep their cache between requests. A session that continues one of them
    ///     prefills only its new entries; any other prefills its whole transcript again. Each cache takes memory:
    ///     `MemoryEstimate`.
    ///   - configure: default options, for what a request's `GenerationOptions` do not set.
    public init(
      _ model: StreamFuseCore.Model, reasoning: Bool = false, templateVariables: [String: JSONValue] = [:],
      contextPolicy: ContextPolicy = .fail, adapter: String? = nil, keptChats: Int = 1,
      _ configure: (inout GenerationConfig) -> Void = { _ in }
    ) {
      var config = GenerationConfig()
      configure(&config)
      self.model = model
      sendsReasoning = reasoning
      let always: [LanguageModelCapabilities.Capability] = [.guidedGeneration, .toolCalling]
      capabilities = LanguageModelCapabilities(reasoning ? always + [.reasoning] : always)
      setting = ChatSetting(
        templateVariables: templateVariables, contextPolicy: contextPolicy, adapter: adapter, config: config)
      chats = KeptChats(most: max(0, keptChats))
    }

    /// Which bundle the executor is for.
    public var executorConfiguration: Executor.Configuration { Executor.Configuration(model: ObjectIdentifier(model)) }

    /// Answers the requests of sessions. It has no state: the framework may keep it for longer than the model.
    public struct Executor: LanguageModelExecutor {
      public typealias Model = StreamFuseLanguageModel

      /// Which bundle it is for.
      public struct Configuration: Hashable, Sendable {
        let model: ObjectIdentifier
      }

      public init(configuration: Configuration) {}

      /// Keeps a chat for the session if it has none, and measures the latency of passes on this device in the
      /// background. The first request prefills the prompt.
      public func prewarm(model: StreamFuseLanguageModel, transcript: Transcript) {
        guard let conversation = try? Conversation(transcript, expectsAnswer: false),
          let opening = try? conversation.opening(conversation.toolDefinitions)
        else { return }
        // The chat is kept before it is prepared: another session's request may be answered meanwhile, and the chat of
        // that session, which has a cache, must be the most recently kept.
        let chat = model.chats.keep(opening, conversation.history) {
          model.setting.chat(model.model, opening, conversation.history)
        }
        Task { try? await chat.session.prepareIfIdle() }
      }

      /// Streams the answer to the last entries of the transcript. Throws `LanguageModelError` for a transcript that is
      /// too long or has images, and for a schema that is not supported; otherwise `StreamFuseError` and
      /// `CancellationError`.
      public func respond(
        to request: LanguageModelExecutorGenerationRequest, model: StreamFuseLanguageModel,
        streamingInto channel: LanguageModelExecutorGenerationChannel
      ) async throws {
        let conversation = try Conversation(request.transcript)
        let opening = try conversation.opening(request.enabledToolDefinitions)
        let options = try AnswerOptions(request, callsAreDone: conversation.hasResults)
        let chat =
          model.chats.take(opening, conversation.history)
          ?? model.setting.chat(model.model, opening, conversation.history)
        func configure(_ config: inout GenerationConfig) {
          options.apply(to: &config, over: model.setting.config, model.model.defaults)
        }
        let answer: Answer =
          switch conversation.next {
          case .question(let words):
            chat.stream(to: words + options.note, configure)
          case .results(let results):
            chat.stream(results: results, configure)
          }
        do {
          let sent = try await model.send(answer, into: channel)
          let needsCall = options.toolChoice == .required && sent.toolCalls.isEmpty
          let needsObject = options.schema != nil && sent.toolCalls.isEmpty
          let needed: String? = needsObject ? "object" : needsCall ? "tool call" : nil  // text may end anywhere
          if let needed, sent.statistics.finishReason == "incomplete" {
            throw StreamFuseError(
              .notParsed,
              "the \(needed) is incomplete: the answer ended after \(sent.statistics.generatedTokens) tokens; raise "
                + "maximumResponseTokens, or bound its strings and arrays with guides")
          }
          let reply = Message(
            role: .assistant, content: sent.text, toolCalls: sent.toolCalls.isEmpty ? nil : sent.toolCalls)
          model.chats.keep(chat, opening, conversation.history + conversation.pending + [reply])
        } catch let error as StreamFuseError {
          throw model.frameworkError(error, conversation)
        }
      }
    }

    /// An answer that was sent.
    private struct Sent {
      let text: String
      let toolCalls: [ToolCall]
      let statistics: Statistics
    }

    /// Sends the pieces of an answer as they come, then its tool calls and the number of tokens.
    private func send(_ answer: Answer, into channel: LanguageModelExecutorGenerationChannel) async throws -> Sent {
      var text = "", unreported = 0, thinking = 0, calling = 0  // unreported: tokens since the last text that was sent
      for try await piece in answer {
        if piece.token != nil { unreported += 1 }
        switch piece.channel {
        case .answer where !piece.text.isEmpty:
          text += piece.text
          await channel.send(.response(action: .appendText(piece.text, tokenCount: unreported)))
          unreported = 0
        case .thinking where sendsReasoning && !piece.text.isEmpty:
          await channel.send(.reasoning(action: .appendText(piece.text, tokenCount: unreported)))
          thinking += unreported
          unreported = 0
        case .toolCall:
          calling += unreported
          unreported = 0
        default: break
        }
      }
      let whole = try await answer.response()  // complete, since all pieces were read
      for call in whole.toolCalls {
        let arguments = try call.argumentsJSON
        await channel.send(
          .toolCalls(
            action: .toolCall(
              id: call.id, name: call.name,
              action: .appendArguments(arguments, tokenCount: calling))))
        calling = 0
      }
      let counts = whole.statistics
      let input = LanguageModelExecutorGenerationChannel.Usage.Input(
        totalTokenCount: counts.promptTokens, cachedTokenCount: max(0, counts.promptTokens - counts.prefilledTokens))
      let output = LanguageModelExecutorGenerationChannel.Usage.Output(
        totalTokenCount: counts.generatedTokens, reasoningTokenCount: thinking)
      if whole.toolCalls.isEmpty {
        await channel.send(.response(action: .updateUsage(input: input, output: output)))
      } else {
        await channel.send(.toolCalls(action: .updateUsage(input: input, output: output)))
      }
      return Sent(text: text, toolCalls: whole.toolCalls, statistics: whole.statistics)
    }

    /// The framework's error that corresponds to an error of the library; otherwise the error itself.
    private func frameworkError(_ error: StreamFuseError, _ conversation: Conversation) -> any Error {
      switch error.code {
      case .contextFull:
        let texts = [conversation.instructions ?? ""] + (conversation.history + conversation.pending).map(\.content)
        let tokens = texts.compactMap { try? model.countTokens($0) }.reduce(0, +)
        return LanguageModelError.contextSizeExceeded(
          .init(contextSize: model.contextLength, tokenCount: tokens, debugDescription: error.message))
      case .badGrammar:
        return LanguageModelError.unsupportedGenerationGuide(.init(schemaName: nil, debugDescription: error.message))
      default: return error
      }
    }
  }
#endif
