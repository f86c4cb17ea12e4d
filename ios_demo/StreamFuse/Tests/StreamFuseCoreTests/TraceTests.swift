// The golden traces of tests/traces, which Python writes, through the Swift API: the same tokens, passes and endings.
import Arithmetic
import CStreamFuse.Low
import Foundation
import XCTest

@testable import StreamFuseCore

final class TraceTests: XCTestCase {
  func testLoopsGiveTheTokensAndPassesOfTheTraces() async throws {
    let names = [
      "context", "deferred", "greedy", "plain", "sampled", "stop", "stopped_in_prompt", "stopped_first", "stopped_middle",
    ]
    for name in names {
      let trace = try read(Trace.self, "loop_\(name)")
      let spec = trace.spec.spec
      let button = StopButton(run: trace.stop?.run)
      let engine = ArithmeticEngine(spec: spec, accuracy: trace.accuracy, beforePass: { button.pass() })
      let session = try Model(spec: spec, engine: engine).session()
      button.session = session
      var tokens = [Int]()
      for try await piece in session.stream(.tokens(trace.prompt), { $0 = trace.settings }) {
        if let token = piece.token { tokens.append(token) }
        if tokens.count == trace.stop?.tokens { session.stop() }
      }
      XCTAssertEqual(tokens, trace.generated, name)
      let statistics = try await session.statistics
      XCTAssertEqual(statistics?.finishReason, trace.finish_reason, name)
      let passes = trace.steps.reduce(into: [:]) { $0[$1.method, default: 0] += 1 }
      XCTAssertEqual(statistics?.widths, passes, name)
      let read = min(trace.cached ?? .max, trace.prompt.count - 1)
      XCTAssertEqual(statistics?.prefilledTokens, read, name)
    }
  }

  func testPlannedTextsAtGivenCostsAreThoseOfTheTrace() async throws {
    let trace = try read(PlanTrace.self, "plan")
    let spec = trace.spec.spec
    try trace.withTables { tables in
      let model = try CoreModel(spec, tables)
      let accuracy = Accuracy()
      let session = try CoreSession(model, EngineTable(Switched(spec, accuracy)))
      let methods = ["decode"] + spec.verify.map(\.name) + ["streams"]
      let costs = methods.map { trace.cost_ms[$0]! }
      try check(
        sf_sequence_set_costs(session.handle, costs.map(\.first), costs.map(\.last), Int32(costs.count), 1),
        sf_sequence_error(session.handle))
      for text in trace.texts {
        accuracy.value = text.accuracy
        try session.reset()
        var config = GenerationConfig()
        config.maxNewTokens = text.max_new_tokens
        try session.start(.tokens(text.prompt), config)
        var tokens = [Int]()
        while let token = try session.next()?.token { tokens.append(token) }
        XCTAssertEqual(tokens, text.generated)
        XCTAssertEqual(try session.statistics().streamsPasses, text.streams_passes)
      }
    }
  }

  func testATraceWithAnUnknownOrAMissingFieldIsRefused() throws {
    let whole = try JSONSerialization.jsonObject(with: data("loop_deferred")) as! [String: Any]
    for name in ["", "spec", "sampling", "config"] {
      let part = name.isEmpty ? whole : whole[name] as! [String: Any]
      for field in Array(part.keys) + ["other"] {
        var changed = part
        changed[field] = field == "other" ? 1 : nil
        XCTAssertThrowsError(try Trace.checkFields(name.isEmpty ? changed : whole.merging([name: changed]) { $1 }), field)
      }
    }
    XCTAssertNoThrow(try Trace.checkFields(whole))
  }

  /// One of the traces.
  private func read<T: Golden>(_ type: T.Type, _ name: String) throws -> T {
    let text = try data(name)
    try T.checkFields(JSONSerialization.jsonObject(with: text))
    return try JSONDecoder().decode(type, from: text)
  }

  private func data(_ name: String) throws -> Data {
    try Data(contentsOf: repository.appending(path: "tests/traces/\(name).json"))
  }
}

/// A file of golden traces.
private protocol Golden: Decodable {
  /// Throws if an object of the file has unknown fields or lacks some.
  static func checkFields(_ file: Any) throws
}

/// Throws unless `object` has the fields, and no others; those of a line in `optional` may be missing together.
private func need(_ object: Any?, _ fields: String, optional: [String] = []) throws {
  func names(_ line: String) -> [String] { line.split(separator: " ").map(String.init) }
  let found = Set((object as? [String: Any] ?? [:]).keys)
  let known = optional.map(names).filter { !found.isDisjoint(with: $0) }.reduce(names(fields), +)
  let different = found.symmetricDifference(known)
  if !different.isEmpty { throw StreamFuseError(.badArgument, "unknown or missing: \(different.sorted())") }
}

/// The folder that holds core/, tests/ and this package.
let repository = URL(filePath: #filePath).appending(path: "../../../../..").standardizedFileURL

/// Facts of the arithmetic model, as traces say them.
private struct Spec: Decodable {
  static func checkFields(_ spec: Any?) throws {
    try need(
      spec, "capacity vocab_size num_streams top_k prefill_rows widths eos_token_ids default_width",
      optional: ["deferred stream_nodes"])
  }
  let capacity, vocab_size, num_streams, top_k, prefill_rows: Int
  let widths: [String: [Int]]
  let eos_token_ids: [Int]
  let stream_nodes: [String: Int]?
  let deferred: Bool?

  var spec: ModelSpec {
    ModelSpec(
      capacity: capacity, vocabSize: vocab_size, numStreams: num_streams, topK: top_k, prefillRows: prefill_rows,
      verify: widths.map {
        VerifyMethod(name: $0, rows: $1[0], keep: $1[1], carrying: stream_nodes?[$0] ?? $1[1])
      }.sorted { $0.rows < $1.rows },
      deferred: deferred ?? false, stopTokenIDs: eos_token_ids, identity: "trace")
  }
}

/// Stops a session while its engine's n-th run is on.
private final class StopButton: @unchecked Sendable {
  var session: Session?
  private var left: Int?

  init(run: Int?) { left = run }

  func pass() {
    guard let runs = left else { return }
    left = runs - 1
    if runs == 1 { session?.stop() }
  }
}

/// A loop_*.json.
private struct Trace: Golden {
  static func checkFields(_ file: Any) throws {
    try need(
      file, "format about spec accuracy sampling config prompt steps generated finish_reason",
      optional: ["constraint", "stop cached"])
    let parts = file as! [String: Any]
    try Spec.checkFields(parts["spec"])
    try need(parts["sampling"], "temperature top_k top_p min_p repetition_penalty seed")
    try need(parts["config"], "max_new_tokens stop_token_ids stop_strings ignore_eos speculative width")
    for step in parts["steps"] as! [Any] {
      try need(step, "method tree kept stream_ids stream_log_probs chosen path emitted length")
    }
  }
  struct Stop: Decodable { let run, tokens: Int? }
  struct Step: Decodable { let method: String }
  struct Sampling: Decodable {
    let temperature, top_p, min_p, repetition_penalty: Double
    let top_k: Int
    let seed: String
  }
  struct Config: Decodable {
    let max_new_tokens: Int
    let stop_token_ids: [Int]
    let ignore_eos, speculative: Bool
    let width: Int?
  }
  let spec: Spec
  let accuracy: Int
  let sampling: Sampling
  let config: Config
  let prompt, generated: [Int]
  let stop: Stop?
  let cached: Int?
  let steps: [Step]
  let finish_reason: String

  var settings: GenerationConfig {
    var all = GenerationConfig()
    all.maxNewTokens = config.max_new_tokens
    all.temperature = sampling.temperature
    all.topK = sampling.top_k
    all.topP = sampling.top_p
    all.minP = sampling.min_p
    all.repetitionPenalty = sampling.repetition_penalty
    all.seed = UInt64(sampling.seed)!
    all.stopTokenIDs = config.stop_token_ids
    all.ignoreEOS = config.ignore_eos
    all.enableSpeculativeDecoding = config.speculative
    all.width = config.width ?? spec.widths.values.map { $0[0] }.sorted()[spec.widths.count / 2]
    return all
  }
}

/// plan.json.
private struct PlanTrace: Golden {
  static func checkFields(_ file: Any) throws {
    try need(file, "format about spec cost_ms ngram_keys ngram_starts ngram_ids ngram_log_probs texts")
    let parts = file as! [String: Any]
    try Spec.checkFields(parts["spec"])
    for text in parts["texts"] as! [Any] {
      try need(text, "accuracy prompt max_new_tokens steps generated streams_passes")
    }
  }
  struct Cost: Decodable {
    let first, last: Double
    init(from decoder: any Decoder) throws {
      let one = try decoder.singleValueContainer()
      let both = try (try? one.decode([Double].self)) ?? [one.decode(Double.self)]
      (first, last) = (both[0], both[both.count - 1])
    }
  }
  struct Text: Decodable {
    let accuracy, max_new_tokens, streams_passes: Int
    let prompt, generated: [Int]
  }
  let spec: Spec
  let cost_ms: [String: Cost]
  let ngram_keys: [Int64]
  let ngram_starts, ngram_ids: [Int32]
  let ngram_log_probs: [Float]
  let texts: [Text]

  /// Gives the n-gram table, as a bundle would hold it, to `body`.
  func withTables(_ body: (DraftTables) throws -> Void) throws {
    let halves = ngram_log_probs.map(half)
    let names = ["ngram_keys", "ngram_starts", "ngram_ids", "ngram_log_probs"].map { (name: String) in strdup(name)! }
    defer { names.forEach { free($0) } }
    try ngram_keys.withUnsafeBytes { keys in
      try ngram_starts.withUnsafeBytes { starts in
        try ngram_ids.withUnsafeBytes { ids in
          try halves.withUnsafeBytes { probs in
            let types = [SF_I64, SF_I32, SF_I32, SF_F16]
            let counts = [ngram_keys.count, ngram_starts.count, ngram_ids.count, halves.count]
            let data = [keys, starts, ids, probs].map(\.baseAddress)
            let tensors = names.indices.map {
              sf_tensor(
                name: names[$0], dtype: Int32(types[$0]), rank: 1, shape: (Int64(counts[$0]), 1), data: data[$0])
            }
            try tensors.withUnsafeBufferPointer { try body(DraftTables(tensors: $0, owner: nil)) }
          }
        }
      }
    }
  }
}

/// The bits of the nearest half float; Swift has none on Intel Macs. For numbers of its normal range.
private func half(_ value: Float) -> UInt16 {
  guard value != 0 else { return 0 }
  let bits = value.bitPattern, size = bits & 0x7FFF_FFFF
  let rounded: UInt32 = (size + 0xFFF + ((size >> 13) & 1)) >> 13
  let sign: UInt32 = (bits >> 31) << 15, bias: UInt32 = 112 << 10
  return UInt16(sign | (rounded - bias))
}

/// An accuracy that changes between texts.
private final class Accuracy { var value = 12 }

/// The arithmetic model, whose accuracy changes between texts.
private final class Switched: Backend {
  private let models: [ArithmeticBackend]
  private let accuracy: Accuracy

  init(_ spec: ModelSpec, _ accuracy: Accuracy) {
    models = (0...16).map { ArithmeticBackend(spec, accuracy: $0) }
    self.accuracy = accuracy
  }

  private var model: ArithmeticBackend { models[accuracy.value] }

  func run(
    _ method: String, ids: UnsafeBufferPointer<Int64>, positions: UnsafeBufferPointer<Int64>,
    ancestors: UnsafeBufferPointer<UInt8>, wantLogits: Bool
  ) throws -> sf_results {
    try model.run(method, ids: ids, positions: positions, ancestors: ancestors, wantLogits: wantLogits)
  }
  func streams(survivor: Int, nextToken: Int64) throws -> sf_results {
    try model.streams(survivor: survivor, nextToken: nextToken)
  }
  func commit(rows: UnsafeBufferPointer<Int32>) throws { try model.commit(rows: rows) }
  func truncate(to length: Int) throws { try model.truncate(to: length) }
}
