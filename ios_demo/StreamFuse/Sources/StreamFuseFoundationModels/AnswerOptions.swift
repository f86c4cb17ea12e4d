#if canImport(FoundationModels, _version: 2)
  import Foundation
  import FoundationModels
  import StreamFuseCore

  /// The options of one request.
  @available(iOS 27.0, macOS 27.0, *)
  struct AnswerOptions {
    /// The schema of the answer.
    let schema: JSONSchema?
    /// What the question says of it: models write better objects if they have read the schema.
    let note: String
    private let options: GenerationOptions
    private let toolChoice: ToolChoice?

    /// Throws the error of a schema that cannot be encoded. `callsAreDone`: the tools of this question were called, so
    /// that required calls are no longer required.
    init(_ request: LanguageModelExecutorGenerationRequest, callsAreDone: Bool) throws {
      options = request.generationOptions
      let hasTools = !request.enabledToolDefinitions.isEmpty
      let isRequired = hasTools && !callsAreDone && options.toolCallingMode == .required
      schema = isRequired ? nil : try request.schema.map(jsonSchema)
      // A schema restricts the whole answer, so it and a choice of tools exclude each other.
      toolChoice =
        if isRequired {
          .required
        } else if !hasTools || schema != nil {
          nil
        } else {
          options.toolCallingMode == .disallowed ? .never : .auto
        }
      let isIncluded = request.contextOptions.includeSchemaInPrompt != false
      note = schema.map { isIncluded ? "\n\nAnswer with JSON that fits this schema: \($0.text)" : "" } ?? ""
    }

    /// Sets these options; `defaults` of the app and then those of the bundle say what they leave open.
    func apply(to config: inout GenerationConfig, over defaults: GenerationConfig, _ bundle: GenerationConfig) {
      if let most = options.maximumResponseTokens { config.maxNewTokens = most }
      config.temperature = options.temperature
      var seed: UInt64?
      // A mode replaces all other filters.
      switch options.samplingMode?.kind {
      case .greedy: config.temperature = 0
      case .randomTopK(let count, let given):
        (config.topK, config.topP, config.minP, seed) = (count, 1, 0, given)
        config.temperature = options.temperature ?? nonzero(defaults.temperature ?? bundle.temperature)
      case .randomProbabilityThreshold(let threshold, let given):
        (config.topK, config.topP, config.minP, seed) = (0, threshold, 0, given)
        config.temperature = options.temperature ?? nonzero(defaults.temperature ?? bundle.temperature)
        // The smallest pool has only the most probable token.
        if threshold <= 0 { (config.topP, config.temperature) = (1, 0) }
      default: break
      }
      // Sessions vary from answer to answer unless the app wants them not to.
      config.seed = seed ?? defaults.seed ?? .random(in: 0...UInt64(Int64.max))
      if schema != nil { config.schema = schema }
      if toolChoice != nil { config.toolChoice = toolChoice }
    }

    /// Sampling at temperature 0 would be greedy.
    private func nonzero(_ temperature: Double?) -> Double { temperature.flatMap { $0 > 0 ? $0 : nil } ?? 1 }
  }

  /// A schema of the framework as the library reads it: an object's properties in the order of the type, which the
  /// framework states in `x-order`.
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
    /// The same text for the same value.
    static var plain: JSONEncoder {
      let encoder = JSONEncoder()
      encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
      return encoder
    }
  }
#endif
