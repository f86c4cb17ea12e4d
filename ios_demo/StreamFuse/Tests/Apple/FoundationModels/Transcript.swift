// Declarations of Apple's FoundationModels, as far as the module StreamFuseFoundationModels uses them and as Apple's
// documentation of iOS 27 has them, so that Linux compiles and runs that module. Members for tests only are marked.
import Foundation

/// A JSON schema; this one is its JSON text.
public struct GenerationSchema: Sendable, Equatable, Codable {
  private let value: JSONText

  /// For tests only.
  public init(json: String) throws { value = try JSONDecoder().decode(JSONText.self, from: Data(json.utf8)) }

  public init(from decoder: any Decoder) throws { value = try JSONText(from: decoder) }

  public func encode(to encoder: any Encoder) throws { try value.encode(to: encoder) }
}

/// JSON of any kind.
indirect enum JSONText: Sendable, Equatable, Codable {
  case null, bool(Bool), number(Double), text(String), list([JSONText]), members([String: JSONText])

  init(from decoder: any Decoder) throws {
    let container = try decoder.singleValueContainer()
    if container.decodeNil() {
      self = .null
    } else if let value = try? container.decode(Bool.self) {
      self = .bool(value)
    } else if let value = try? container.decode(Double.self) {
      self = .number(value)
    } else if let value = try? container.decode(String.self) {
      self = .text(value)
    } else if let value = try? container.decode([JSONText].self) {
      self = .list(value)
    } else {
      self = .members(try container.decode([String: JSONText].self))
    }
  }

  func encode(to encoder: any Encoder) throws {
    var container = encoder.singleValueContainer()
    switch self {
    case .null: try container.encodeNil()
    case .bool(let value): try container.encode(value)
    case .number(let value): try container.encode(value)
    case .text(let value): try container.encode(value)
    case .list(let value): try container.encode(value)
    case .members(let value): try container.encode(value)
    }
  }
}

public struct GeneratedContent: Sendable, Equatable {
  private let value: JSONText
  public init(json: String) throws { value = try JSONDecoder().decode(JSONText.self, from: Data(json.utf8)) }
  /// Written anew, as the framework does: neither the order nor the spaces of what was read.
  public var jsonString: String {
    let encoder = JSONEncoder()
    encoder.outputFormatting = [.prettyPrinted, .sortedKeys]
    return String(decoding: (try? encoder.encode(value)) ?? Data(), as: UTF8.self)
  }
}

public struct Transcript: Sendable, Equatable, RandomAccessCollection {
  private let entries: [Entry]
  public init(entries: some Sequence<Entry> = []) { self.entries = Array(entries) }
  public var startIndex: Int { entries.startIndex }
  public var endIndex: Int { entries.endIndex }
  public subscript(index: Int) -> Entry { entries[index] }

  public enum Entry: Sendable, Equatable {
    case instructions(Instructions)
    case prompt(Prompt)
    case toolCalls(ToolCalls)
    case toolOutput(ToolOutput)
    case response(Response)
    case reasoning(Reasoning)
  }
  public enum Segment: Sendable, Equatable {
    case text(TextSegment)
    case structure(StructuredSegment)
    case attachment(AttachmentSegment)
  }
  public struct TextSegment: Sendable, Equatable {
    public var id: String
    public var content: String
    public init(id: String = UUID().uuidString, content: String) { (self.id, self.content) = (id, content) }
  }
  public struct StructuredSegment: Sendable, Equatable {
    public var id: String
    public var schemaName: String
    public var content: GeneratedContent
    public init(id: String = UUID().uuidString, schemaName: String, content: GeneratedContent) {
      (self.id, self.schemaName, self.content) = (id, schemaName, content)
    }
  }
  public struct AttachmentSegment: Sendable, Equatable {
    public var id: String
    /// For tests only.
    public init() { id = UUID().uuidString }
  }
  public struct ToolDefinition: Sendable, Equatable {
    public var name: String
    public var description: String
    public var parameters: GenerationSchema
    public init(name: String, description: String, parameters: GenerationSchema) {
      (self.name, self.description, self.parameters) = (name, description, parameters)
    }
  }
  public struct Instructions: Sendable, Equatable {
    public var id: String
    public var segments: [Segment]
    public var toolDefinitions: [ToolDefinition]
    public init(id: String = UUID().uuidString, segments: [Segment], toolDefinitions: [ToolDefinition]) {
      (self.id, self.segments, self.toolDefinitions) = (id, segments, toolDefinitions)
    }
  }
  public struct Prompt: Sendable, Equatable {
    public var id: String
    public var segments: [Segment]
    public init(id: String = UUID().uuidString, segments: [Segment]) { (self.id, self.segments) = (id, segments) }
  }
  public struct Response: Sendable, Equatable {
    public var id: String
    public var assetIDs: [String]
    public var segments: [Segment]
    public init(id: String = UUID().uuidString, assetIDs: [String], segments: [Segment]) {
      (self.id, self.assetIDs, self.segments) = (id, assetIDs, segments)
    }
  }
  public struct Reasoning: Sendable, Equatable {
    public var id: String
    public var segments: [Segment]
    public init(id: String = UUID().uuidString, segments: [Segment]) { (self.id, self.segments) = (id, segments) }
  }
  public struct ToolCall: Sendable, Equatable {
    public var id: String
    public var toolName: String
    public var arguments: GeneratedContent
    public init(id: String, toolName: String, arguments: GeneratedContent) {
      (self.id, self.toolName, self.arguments) = (id, toolName, arguments)
    }
  }
  public struct ToolCalls: Sendable, Equatable, RandomAccessCollection {
    public var id: String
    private let calls: [ToolCall]
    public init<S: Sequence>(id: String = UUID().uuidString, _ calls: S) where S.Element == ToolCall {
      (self.id, self.calls) = (id, Array(calls))
    }
    public var startIndex: Int { calls.startIndex }
    public var endIndex: Int { calls.endIndex }
    public subscript(index: Int) -> ToolCall { calls[index] }
  }
  public struct ToolOutput: Sendable, Equatable {
    public var id: String
    public var toolName: String
    public var segments: [Segment]
    public init(id: String, toolName: String, segments: [Segment]) {
      (self.id, self.toolName, self.segments) = (id, toolName, segments)
    }
  }
}
