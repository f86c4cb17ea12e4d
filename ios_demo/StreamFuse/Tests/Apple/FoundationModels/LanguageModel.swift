import Foundation
import Synchronization

public protocol LanguageModel: Sendable {
  associatedtype Executor: LanguageModelExecutor where Self == Self.Executor.Model
  var capabilities: LanguageModelCapabilities { get }
  var executorConfiguration: Self.Executor.Configuration { get }
}

public protocol LanguageModelExecutor: Sendable {
  associatedtype Configuration: Hashable, Sendable
  associatedtype Model: LanguageModel
  func prewarm(model: Self.Model, transcript: Transcript)
  init(configuration: Self.Configuration) throws
  // `nonisolated(nonsending)` there, which Swift 6.0 does not know.
  func respond(
    to request: LanguageModelExecutorGenerationRequest, model: Self.Model,
    streamingInto channel: LanguageModelExecutorGenerationChannel
  ) async throws
}

extension LanguageModelExecutor {
  public func prewarm(model: Self.Model, transcript: Transcript) {}
}

public struct LanguageModelCapabilities: Sendable {
  public enum Capability: Sendable, Hashable { case vision, guidedGeneration, reasoning, toolCalling }
  private let listed: [Capability]
  public init(_ capabilities: [Capability]) { listed = capabilities }
  public func contains(_ capability: Capability) -> Bool { listed.contains(capability) }
}

public struct GenerationOptions: Sendable, Equatable {
  public struct SamplingMode: Sendable, Equatable {
    public enum Kind: Sendable, Equatable {
      case greedy
      case randomTopK(Int, seed: UInt64?)
      case randomProbabilityThreshold(Double, seed: UInt64?)
    }
    public let kind: Kind
    public static var greedy: SamplingMode { SamplingMode(kind: .greedy) }
    public static func random(top k: Int, seed: UInt64? = nil) -> SamplingMode {
      SamplingMode(kind: .randomTopK(k, seed: seed))
    }
    public static func random(probabilityThreshold: Double, seed: UInt64? = nil) -> SamplingMode {
      SamplingMode(kind: .randomProbabilityThreshold(probabilityThreshold, seed: seed))
    }
  }
  public struct ToolCallingMode: Sendable, Equatable {
    public enum Kind: Sendable, Hashable { case allowed, required, disallowed }
    public var kind: Kind
    public static let allowed = ToolCallingMode(kind: .allowed)
    public static let required = ToolCallingMode(kind: .required)
    public static let disallowed = ToolCallingMode(kind: .disallowed)
  }
  public var samplingMode: SamplingMode?
  public var temperature: Double?
  public var maximumResponseTokens: Int?
  public var toolCallingMode: ToolCallingMode?
  public init(
    samplingMode: SamplingMode? = nil, temperature: Double? = nil, maximumResponseTokens: Int? = nil,
    toolCallingMode: ToolCallingMode? = nil
  ) {
    (self.samplingMode, self.temperature) = (samplingMode, temperature)
    (self.maximumResponseTokens, self.toolCallingMode) = (maximumResponseTokens, toolCallingMode)
  }
}

public struct ContextOptions: Sendable, Equatable {
  public var includeSchemaInPrompt: Bool?
  public init(includeSchemaInPrompt: Bool? = nil) { self.includeSchemaInPrompt = includeSchemaInPrompt }
}

public struct LanguageModelExecutorGenerationRequest: Sendable {
  public var id: UUID
  public var transcript: Transcript
  public var enabledToolDefinitions: [Transcript.ToolDefinition]
  public var schema: GenerationSchema?
  public var generationOptions: GenerationOptions
  public var contextOptions: ContextOptions

  public init(
    id: UUID, transcript: Transcript, enabledTools: [Transcript.ToolDefinition], schema: GenerationSchema? = nil,
    generationOptions: GenerationOptions, contextOptions: ContextOptions
  ) {
    (self.id, self.transcript, self.enabledToolDefinitions) = (id, transcript, enabledTools)
    (self.schema, self.generationOptions, self.contextOptions) = (schema, generationOptions, contextOptions)
  }
}

/// The framework's channel keeps what is sent for the session; this one, for tests (`events`).
public struct LanguageModelExecutorGenerationChannel: Sendable {
  public protocol Event: Sendable {}

  public struct Usage: Sendable, Equatable {
    public struct Input: Sendable, Equatable {
      public var totalTokenCount, cachedTokenCount: Int
      public init(totalTokenCount: Int, cachedTokenCount: Int) {
        (self.totalTokenCount, self.cachedTokenCount) = (totalTokenCount, cachedTokenCount)
      }
    }
    public struct Output: Sendable, Equatable {
      public var totalTokenCount, reasoningTokenCount: Int
      public init(totalTokenCount: Int, reasoningTokenCount: Int) {
        (self.totalTokenCount, self.reasoningTokenCount) = (totalTokenCount, reasoningTokenCount)
      }
    }
    public var input: Input
    public var output: Output
    public init(input: Input, output: Output) { (self.input, self.output) = (input, output) }
  }

  public struct Response: Event, Equatable {
    public enum Action: Sendable, Equatable {
      case text(String, Int), usage(Usage)
      public static func appendText(_ text: String, segmentID: String? = nil, tokenCount: Int) -> Action {
        .text(text, tokenCount)
      }
      public static func updateUsage(input: Usage.Input, output: Usage.Output) -> Action {
        .usage(Usage(input: input, output: output))
      }
    }
    public var action: Action
  }

  public struct Reasoning: Event, Equatable {
    public enum Action: Sendable, Equatable {
      case text(String, Int)
      public static func appendText(_ text: String, segmentID: String? = nil, tokenCount: Int) -> Action {
        .text(text, tokenCount)
      }
    }
    public var action: Action
  }

  public struct ToolCalls: Event, Equatable {
    public struct ToolCall: Sendable, Equatable {
      public enum Action: Sendable, Equatable {
        case arguments(String, Int)
        public static func appendArguments(_ content: String, tokenCount: Int) -> Action {
          .arguments(content, tokenCount)
        }
      }
      public var id, name: String
      public var action: Action
    }
    public enum Action: Sendable, Equatable {
      case call(ToolCall), usage(Usage)
      public static func toolCall(id: String, name: String, action: ToolCall.Action) -> Action {
        .call(ToolCall(id: id, name: name, action: action))
      }
      public static func updateUsage(input: Usage.Input, output: Usage.Output) -> Action {
        .usage(Usage(input: input, output: output))
      }
    }
    public var action: Action
  }

  private final class Sent: Sendable {
    let events = Mutex<[any Event]>([])
  }
  private let sent = Sent()
  /// Called with each event. For tests only.
  public var onSend: @Sendable (any Event) async -> Void = { _ in }
  public init() {}
  public func send(_ event: some Event) async {
    sent.events.withLock { $0.append(event) }
    await onSend(event)
  }
  /// What was sent. For tests only.
  public var events: [any Event] { sent.events.withLock { $0 } }
}

extension LanguageModelExecutorGenerationChannel.Event where Self == LanguageModelExecutorGenerationChannel.Response {
  public static func response(entryID: String? = nil, action: Self.Action) -> Self { Self(action: action) }
}
extension LanguageModelExecutorGenerationChannel.Event where Self == LanguageModelExecutorGenerationChannel.Reasoning {
  public static func reasoning(entryID: String? = nil, action: Self.Action) -> Self { Self(action: action) }
}
extension LanguageModelExecutorGenerationChannel.Event where Self == LanguageModelExecutorGenerationChannel.ToolCalls {
  public static func toolCalls(entryID: String? = nil, action: Self.Action) -> Self { Self(action: action) }
}

public enum LanguageModelError: Error {
  public struct ContextSizeExceeded: Sendable {
    public var contextSize, tokenCount: Int
    public var debugDescription: String
    public init(contextSize: Int, tokenCount: Int, debugDescription: String, metadata: [String: any Sendable] = [:]) {
      (self.contextSize, self.tokenCount, self.debugDescription) = (contextSize, tokenCount, debugDescription)
    }
  }
  public struct UnsupportedTranscriptContent: Sendable {
    public var unsupportedContent: [Transcript.Entry]
    public var debugDescription: String
    public init(
      unsupportedContent: [Transcript.Entry], debugDescription: String, metadata: [String: any Sendable] = [:]
    ) {
      (self.unsupportedContent, self.debugDescription) = (unsupportedContent, debugDescription)
    }
  }
  public struct UnsupportedGenerationGuide: Sendable {
    public var schemaName: String?
    public var debugDescription: String
    public init(schemaName: String?, debugDescription: String, metadata: [String: any Sendable] = [:]) {
      (self.schemaName, self.debugDescription) = (schemaName, debugDescription)
    }
  }
  case contextSizeExceeded(ContextSizeExceeded)
  case unsupportedTranscriptContent(UnsupportedTranscriptContent)
  case unsupportedGenerationGuide(UnsupportedGenerationGuide)
}
