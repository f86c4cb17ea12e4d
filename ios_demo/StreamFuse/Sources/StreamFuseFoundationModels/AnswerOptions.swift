#if canImport(FoundationModels, _version: 2)
  import Foundation
  import FoundationModels
  import StreamFuseCore

  /// The options of one request.
  @available(iOS 27.0, macOS 27.0, *)
  struct AnswerOptions {
    /// The schema of the answer.
    let schema: JSONSchema?
    /// The schema as text to append to the question; models write better objects if they have read it.
    let note: String
    private let options: GenerationOptions
    /// Whether the answer may, must or must not call tools; nil if the request leaves it open.
    let toolChoice: ToolChoice?

    /// Throws if the schema cannot be encoded. `callsAreDone`: tools were already called for this question, so
    /// `.required` no longer applies.
    init(_ request: LanguageModelExecutorGenerationRequest, callsAreDone: Bool) throws {
      options = request.generationOptions
      let hasTools = !request.enabledToolDefinitions.isEmpty
      let isRequired = hasTools && !callsAreDone && options.toolCallingMode == .required
      schema = isRequired ? nil : try request.schema.map(jsonSchema)
      // With a schema, `auto` allows an answer that fits it, or a call.
      toolChoice =
        if isRequired {
          .required
        } else if !hasTools {
          nil
        } else {
          options.toolCallingMode == .disallowed ? .never : .auto
        }
      let isIncluded = request.contextOptions.includeSchemaInPrompt != false
      note = schema.map { isIncluded ? "\n\nAnswer with JSON that fits this schema: \($0.text)" : "" } ?? ""
    }

    /// Applies these options to `config`; values that they do not set are the app's `defaults`, then those of the
    /// bundle.
    func apply(to config: inout GenerationConfig, over defaults: GenerationConfig, _ bundle: GenerationConfig) {
      if let most = options.maximumResponseTokens { config.maxNewTokens = most }
      config.temperature = options.temperature
      var seed: UInt64?
      // A sampling mode replaces all other filters.
      switch options.samplingMode?.kind {
      case .greedy: config.temperature = 0
      case .randomTopK(let count, let given):
        (config.topK, config.topP, config.minP, seed) = (count, 1, 0, given)
        config.temperature = options.temperature ?? nonzero(defaults.temperature ?? bundle.temperature)
      case .randomProbabilityThreshold(let threshold, let given):
        (config.topK, config.topP, config.minP, seed) = (0, threshold, 0, given)
        config.temperature = options.temperature ?? nonzero(defaults.temperature ?? bundle.temperature)
        // A threshold of 0 keeps only the most probable token.
        if threshold <= 0 { (config.topP, config.temperature) = (1, 0) }
      default: break
      }
      // Without a seed, each answer is sampled with a random one.
      config.seed = seed ?? defaults.seed ?? .random(in: 0...UInt64(Int64.max))
      if schema != nil { config.schema = schema }
      if toolChoice != nil { config.toolChoice = toolChoice }
    }

    /// Temperature 0 would be greedy, not sampling.
    private func nonzero(_ temperature: Double?) -> Double { temperature.flatMap { $0 > 0 ? $0 : nil } ?? 1 }
  }

  /// Converts a schema of the framework. Properties of objects are in the order of the Swift type, which the framework
  /// lists in `x-order`.
  @available(iOS 27.0, macOS 27.0, *)
  func jsonSchema(of schema: GenerationSchema) throws -> JSONSchema {
    JSONSchema(try orderedText(JSONDecoder().decode(JSONValue.self, from: JSONEncoder().encode(schema))))
  }

  private func orderedText(_ value: JSONValue) throws -> String {
    switch value {
    case .array(let items): return "[\(try items.map(orderedText).joined(separator: ","))]"
    case .object(var members):
      var order: [String] = []
      if case .array(let listed)? = members["x-order"], case .object? = members["properties"] {
        order = listed.compactMap { if case .string(let name) = $0 { name } else { nil } }
        members["x-order"] = nil
      }
      let texts = try members.sorted { $0.key < $1.key }.map { name, member in
        guard name == "properties", case .object(let properties) = member else {
          return (name, try orderedText(member))
        }
        let rest = properties.keys.filter { !order.contains($0) }.sorted()
        let inside = try (order.filter { properties[$0] != nil } + rest).map { ($0, try orderedText(properties[$0]!)) }
        return (name, try object(inside))
      }
      return try object(texts)
    default: return String(decoding: try JSONEncoder.plain.encode(value), as: UTF8.self)
    }
  }

  private func object(_ members: [(String, String)]) throws -> String {
    let texts = try members.map { name, text in
      "\(String(decoding: try JSONEncoder.plain.encode(name), as: UTF8.self)):\(text)"
    }
    return "{\(texts.joined(separator: ","))}"
  }

  extension JSONEncoder {
    /// Encodes equal values as the same text.
    static var plain: JSONEncoder {
      let encoder = JSONEncoder()
      encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
      return encoder
    }
  }
#endif
