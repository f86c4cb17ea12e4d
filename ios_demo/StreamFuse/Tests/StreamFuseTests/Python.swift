import Foundation
import StreamFuse
import XCTest

/// The folder that holds core/, tests/ and this package.
let repository = URL(filePath: #filePath).appending(path: "../../../../..").standardizedFileURL

/// A request to both languages: a line of Tests/requests.jsonl.
struct Request: Decodable {
  let bundle: String
  let turns: [String]
  let config: GenerationConfig
  let system: String?
  let raw: Bool?
  let context_policy: String?
  /// A task adapter of the bundle; nil: its base model.
  let adapter: String?
  let save: String?
  /// For each turn, after how many tokens it is stopped; 0: before its prompt is read.
  let stops: [Int?]?
  /// Pairs of a prompt and an answer to score.
  let scores: [[String]]?

  /// Whether the passes depend on times that are measured: then only the text must be equal.
  var planned: Bool { config.width == nil && config.enableSpeculativeDecoding != false }

  /// A sequence of its own on the request's bundle.
  func session() async throws -> any TextSession {
    let model = try await opened(bundle)
    if raw == true { return model.completion(adapter: adapter) { $0 = config } }
    let policy = context_policy == "drop_oldest" ? ContextPolicy.dropOldest : .fail
    return model.chat(instructions: system, contextPolicy: policy, adapter: adapter) { $0 = config }
  }
}

/// What Python answered (tests/helpers/peer.py).
struct Reply: Decodable {
  struct Turn: Decodable {
    let text: String
    let tokens: [Int]
    let sources: [Source]
    let log_probs: [Double]
    let top_log_probs: [[TokenLogProb]]
    let statistics: Statistics
  }
  let turns: [Turn]
  let messages: [Message]
  let scores: [[Double]]?
}

/// One turn in Swift.
struct Answered {
  var text = ""
  var tokens = [Int]()
  var sources = [Source]()
  var logProbs = [Double]()
  var topLogProbs = [[TokenLogProb]]()
}

/// A file or folder of build/ that `make ios` makes before it runs the tests. Throws where it is missing: a test that
/// cannot prove anything fails.
func made(_ path: String) throws -> URL {
  let url = repository.appending(path: path)
  guard FileManager.default.fileExists(atPath: url.path) else {
    throw Missing(description: "\(path) is missing: run make ios")
  }
  return url
}

struct Missing: Error, CustomStringConvertible {
  let description: String
}

/// All requests with Python's answers, which `make ios` writes before the tests.
func requests() throws -> [(Request, Reply)] {
  let requests = try lines(Request.self, "ios_demo/StreamFuse/Tests/requests.jsonl")
  let replies = try lines(Reply.self, "build/ios/answers.jsonl")
  XCTAssertEqual(requests.count, replies.count)
  return Array(zip(requests, replies))
}

/// A bundle of build/; opened once per test process.
func opened(_ folder: String) async throws -> Model { try await models.model(folder) }

extension TextSession {
  /// Asks in a chat, or continues a text; gathers the whole answer, or stops it after so many tokens.
  func answer(
    to words: String, stopAfter: Int? = nil, _ configure: (inout GenerationConfig) -> Void = { _ in }
  ) async throws -> Answered {
    var answered = Answered()
    let prompt: Prompt = self is Chat ? .turn(words) : .text(words)
    let pieces = session.stream(prompt, configure)
    if stopAfter == 0 { session.stop() }
    for try await piece in pieces {
      answered.text += piece.text
      if let token = piece.token {
        answered.tokens.append(token)
        answered.sources.append(piece.source)
        if let logProb = piece.logProb { answered.logProbs.append(logProb) }
        if !piece.topLogProbs.isEmpty { answered.topLogProbs.append(piece.topLogProbs) }
        if answered.tokens.count == stopAfter { session.stop() }
      }
    }
    return answered
  }
}

extension Statistics {
  /// The JSON object without what is a time or follows from times.
  func withoutTimes() throws -> NSDictionary {
    var all = try XCTUnwrap(JSONSerialization.jsonObject(with: JSONEncoder().encode(self)) as? [String: Any])
    let times = [
      "model_load_ms", "measure_ms", "prefill_ms", "first_token_ms", "decode_token_per_sec", "prefill_token_per_sec",
      "time_ms", "cost_ms",
    ]
    for key in times { all[key] = nil }
    return all as NSDictionary
  }
}

/// Opened bundles.
private let models = Models()

/// Opens each bundle once.
private actor Models {
  private var known: [String: Model] = [:]

  func model(_ folder: String) async throws -> Model {
    if let model = known[folder] { return model }
    let model = try await StreamFuse.load(from: made(folder)) {
      $0.threads = 1
      $0.costFolder = nil
    }
    known[folder] = model
    return model
  }
}

/// The objects of a file with one per line.
private func lines<T: Decodable>(_ type: T.Type, _ path: String) throws -> [T] {
  let text = try String(contentsOf: made(path), encoding: .utf8)
  return try text.split(separator: "\n").map { try JSONDecoder().decode(type, from: Data($0.utf8)) }
}
