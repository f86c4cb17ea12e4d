import Foundation
import StreamFuseCore
import XCTest

@testable import AppModel

/// A library whose words are arithmetic over the whole conversation, so that a turn which is lost, doubled or read anew
/// in another form changes the text. A folder with manifest.json is a bundle, one with `damaged` in it is not.
@MainActor
final class FakeLibrary: Library {
  /// Words that may be written; nil: as many as wanted.
  var gate: Int? { didSet { wake() } }
  var opened = 0
  var histories = 0
  var damagedCaches = false
  /// Manifests of the bundles whose caches were removed.
  var forgotten: [Data?] = []
  /// The files that answers were to be kept in.
  var memories: [URL?] = []
  var contextPolicies: [ContextPolicy] = []
  /// Why answers cannot be erased.
  var forgetError: StreamFuseError?
  /// The result of a self-test; nil if the bundle has none.
  var selfTest: SelfTest?
  /// Runs while a bundle is opened.
  var whileOpening: @MainActor () -> Void = {}
  /// Runs while a session is saved.
  var whileSaving: @MainActor () -> Void = {}
  /// How many sessions there were at once at most.
  private(set) var mostSessions = 0
  private var sessions: [() -> Bool] = []
  private var waiting: [CheckedContinuation<Void, Never>] = []

  nonisolated init() {}

  nonisolated var backends: [String: String?] { ["kernels": nil] }

  func open(_ folder: URL, threads: Int?, memory: URL?, checkHashes: Bool) async throws -> any OpenModel {
    guard FileManager.default.fileExists(atPath: folder.appending(path: "manifest.json").path) else {
      throw StreamFuseError(.badFile, "\(folder.lastPathComponent) holds no manifest.json")
    }
    if FileManager.default.fileExists(atPath: folder.appending(path: "damaged").path) {
      throw StreamFuseError(.badFile, "model.pte is not the file that the manifest names.")
    }
    opened += 1
    memories.append(memory)
    whileOpening()
    if let memory { try Data("answers".utf8).write(to: memory) }
    return FakeModel(library: self, threads: threads, memory: memory)
  }

  func removeCaches(of folder: URL, unlessUsedBy others: [URL]) async {
    forgotten.append(try? Data(contentsOf: folder.appending(path: "manifest.json")))
  }

  /// Lets one word be written.
  func pass() async {
    while gate == 0 { await withCheckedContinuation { waiting.append($0) } }
    if let left = gate { gate = left - 1 }
  }

  /// Counts a session, while `isThere`.
  func count(_ isThere: @escaping () -> Bool) {
    sessions = sessions.filter { $0() } + [isThere]
    mostSessions = max(mostSessions, sessions.count)
  }

  func wake() {
    let woken = waiting
    waiting = []
    for one in woken { one.resume() }
  }
}

private struct FakeModel: OpenModel {
  let library: FakeLibrary
  let threads: Int?
  let memory: URL?
  let canChat = true
  let defaults: GenerationConfig = {
    var config = GenerationConfig()
    (config.temperature, config.maxNewTokens) = (0, 20)
    return config
  }()

  func forget() async throws {
    if let error = await library.forgetError { throw error }
    if let memory { try Data().write(to: memory) }
  }

  func selfTest() async throws -> SelfTest {
    guard let found = await library.selfTest else { throw StreamFuseError(.badFile, "There is no selftest.npz.") }
    return found
  }

  func session(instructions: String?, history: [Message], contextPolicy: ContextPolicy) -> any OpenSession {
    MainActor.assumeIsolated {
      library.contextPolicies.append(contextPolicy)
      if !history.isEmpty { library.histories += 1 }
      let session = FakeSession(library, [Message(role: .system, content: instructions ?? "")] + history)
      library.count { [weak session] in session != nil }
      return session
    }
  }
}

@MainActor
private final class FakeSession: OpenSession {
  let library: FakeLibrary
  var messages: [Message]
  /// How often it was stopped, and those stops that ended an answer.
  var stops = 0
  var statistics: Statistics?

  init(_ library: FakeLibrary, _ messages: [Message]) {
    self.library = library
    self.messages = messages
  }

  nonisolated func ask(_ words: String, _ config: GenerationConfig) -> @Sendable (_ take: @Sendable (Piece) -> Void) async throws -> Void {
    let before = MainActor.assumeIsolated { stops }
    return { take in try await self.write(words, config, stops: before, take) }
  }

  private func write(
    _ words: String, _ config: GenerationConfig, stops before: Int, _ take: @Sendable (Piece) -> Void
  ) async throws {
    var stopped: Bool { stops != before }
    if words.contains("refuse") { throw StreamFuseError(.badArgument, "This prompt is too long.") }
    let drafts = config.enableSpeculativeDecoding != false
    let most = config.maxNewTokens ?? 20
    let asked = messages + [Message(role: .user, content: words)]
    var answer = "", count = 0
    while count < most && !stopped {
      await library.pass()
      try Task.checkCancellation()
      if stopped { break }
      let seed = asked.map { "\($0.role)\($0.content)" }.joined() + answer + "\(config.temperature ?? 0) \(config.seed ?? 0)"
      let token = seed.utf8.reduce(7) { ($0 * 31 + Int($1)) % 1009 }
      let word = "\(count == 0 ? "" : " ")w\(token)"
      answer += word
      count += 1
      take(Piece(text: word, token: token, source: drafts ? Source.allCases[count % Source.allCases.count] : .model))
    }
    if count > 0 { messages = asked + [Message(role: .assistant, content: answer)] }
    statistics = figures(count, drafts: drafts, end: count == most ? "length" : "stopped")
  }

  nonisolated func stop() {
    MainActor.assumeIsolated {
      stops += 1
      library.wake()
    }
  }

  func save(to file: URL) async throws {
    try JSONEncoder().encode(messages).write(to: file)
    library.whileSaving()
  }

  func restore(from file: URL) async throws {
    if library.damagedCaches { throw StreamFuseError(.badFile, "This is no saved chat.") }
    messages = try JSONDecoder().decode([Message].self, from: Data(contentsOf: file))
  }
}

/// Statistics of an answer.
func figures(_ tokens: Int, drafts: Bool = true, rate: Double? = nil, end: String = "length") -> Statistics {
  let json = """
    {"prompt_tokens": 5, "generated_tokens": \(tokens), "model_load_ms": 1, "measure_ms": 0, "prefill_ms": 2,
     "first_token_ms": 12, "decode_token_per_sec": \(rate ?? (drafts ? 40 : 20)), "prefill_token_per_sec": 9, "rounds": 1,
     "target_forward_passes": 1, "draft_tokens_proposed": \(drafts ? 2 * tokens : 0),
     "draft_tokens_accepted": \(drafts ? tokens / 2 : 0), "acceptance_rate": 0.25, "acceptance_per_depth": [],
     "mean_accepted_tokens": \(drafts ? 2 : 1), "time_ms": {}, "widths": {}, "speculative": \(drafts),
     "fallback_reason": \(drafts ? "null" : "\"off by request\""), "finish_reason": "\(end)", "acceptance_per_rank": [],
     "fallback_reasons": {}, "cost_ms": {"decode": 50}, "accepted_by_source": {"streams": 7, "table": 3, "lookup": 0}, "prefilled_tokens": 5, "streams_passes": 0,
     "near_ties": 0, "forced_tokens": 0, "refused_drafts": 0,
     "mask_ms": 0, "dropped_turns": 0, "reread_tokens": 0, "prefix_tokens": 0}
    """
  do {
    return try Statistics(json: Data(json.utf8))
  } catch {
    fatalError("\(error)")
  }
}

/// A folder and the user's defaults of a test, which processes of the app share.
@MainActor
class AppTestCase: XCTestCase {
  let root = FileManager.default.temporaryDirectory.appending(path: UUID().uuidString)
  let library = FakeLibrary()
  private let suite = UUID().uuidString
  var defaults: UserDefaults { UserDefaults(suiteName: suite)! }

  override func tearDown() async throws {
    try? FileManager.default.removeItem(at: root)
    UserDefaults.standard.removePersistentDomain(forName: suite)
  }

  /// The app as a new process makes it.
  func start(_ publisher: any BundleTransport = FakePublisher()) -> Parts {
    let parts = Parts(library, folder: root, defaults: defaults, device: ["Device: X"], transport: publisher)
    parts.begin()
    return parts
  }

  /// Writes a bundle, and chooses it.
  @discardableResult
  func use(_ name: String, damaged: Bool = false) throws -> URL {
    let folder = root.appending(path: "bundles/\(name)")
    try write("{}", to: folder.appending(path: "manifest.json"))
    if damaged { try write("", to: folder.appending(path: "damaged")) }
    defaults.set(name, forKey: "bundle")
    return folder
  }

  func write(_ text: String, to file: URL) throws {
    try FileManager.default.createDirectory(at: file.deletingLastPathComponent(), withIntermediateDirectories: true)
    try Data(text.utf8).write(to: file)
  }

  /// Waits until something is so.
  func until(_ condition: () -> Bool) async throws {
    for _ in 0..<5000 {
      if condition() { return }
      try await Task.sleep(for: .milliseconds(2))
    }
    XCTFail("it does not come")
  }

  func ready(_ chat: ChatModel) async throws { try await until { chat.state.phase == .ready } }

  /// Asks, and waits for the answer, and until it is on disk.
  func ask(_ chat: ChatModel, _ text: String) async throws -> [Turn] {
    try await ready(chat)
    XCTAssertTrue(chat.send(text))
    try await ready(chat)
    await chat.later {}.value
    return chat.state.turns
  }

  /// Asks, and waits until so many words are written and no more may be.
  func ask(_ chat: ChatModel, _ text: String, words: Int) async throws {
    try await ready(chat)
    library.gate = words
    chat.send(text)
    try await until { library.gate == 0 && (chat.answer.live?.tokens ?? 0) == words }
  }
}
