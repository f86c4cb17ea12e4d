import Foundation
import StreamFuseCore
import XCTest

@testable import AppModel

/// Saved chats: their list, and what can be done with them.
final class ChatListTests: AppTestCase {
  private var folders: [String] {
    ((try? FileManager.default.contentsOfDirectory(atPath: root.appending(path: "chats").path)) ?? []).sorted()
  }

  func testChatsAreListedByTheirFirstQuestionTheLatestFirst() async throws {
    try use("demo")
    let parts = start()
    try await ready(parts.chat)
    XCTAssertEqual(parts.chats.shown, [], "an empty chat is none yet")
    _ = try await ask(parts.chat, "Hello")
    await parts.chats.new().value
    _ = try await ask(parts.chat, "And  now,\n\(String(repeating: "what is it that we do ", count: 9))")
    XCTAssertEqual(
      parts.chats.shown.map(\.title), ["And now, what is it that we do what is it that we do what …", "Hello"])
    XCTAssertEqual(parts.chats.open, parts.chats.shown[0].id)
    let titles = parts.chats.shown
    await parts.leave().value
    let again = start()
    try await ready(again.chat)
    XCTAssertEqual(again.chats.shown, titles)
    XCTAssertEqual(again.chats.open, titles[0].id, "the last one goes on")
  }

  func testTheNextProcessOpensTheChatThatWasOpenAlsoAnEmptyOne() async throws {
    try use("demo")
    let parts = start()
    let first = try await ask(parts.chat, "Hello")
    let id = try XCTUnwrap(parts.chats.open)
    await parts.chats.new().value
    _ = try await ask(parts.chat, "Something else")
    await parts.chats.open(id).value
    await parts.leave().value
    let again = start()
    try await ready(again.chat)
    XCTAssertEqual(again.chats.open, id)
    XCTAssertEqual(again.chat.state.turns, first)
    await again.chats.new().value
    await again.leave().value
    let empty = start()
    try await ready(empty.chat)
    XCTAssertEqual(empty.chat.state.turns, [])
  }

  func testAfterABundleThatCouldNotBeOpenedTheNextProcessOpensTheChatUsedLastWithIt() async throws {
    try use("other")
    let demo = try use("demo")
    let parts = start()
    let turns = try await ask(parts.chat, "Hello")
    await parts.bundles.choose("other").value
    let damage = demo.appending(path: "damaged")
    try write("", to: damage)
    await parts.bundles.choose("demo").value
    XCTAssertEqual(parts.chat.state.phase, .failed)
    try FileManager.default.removeItem(at: damage)
    let again = start()
    try await ready(again.chat)
    XCTAssertEqual(again.chat.state.turns, turns)
  }

  func testAChatGoesOnWithTheModelsMemoryOfIt() async throws {
    try use("demo")
    let parts = start()
    let first = try await ask(parts.chat, "Hello")
    let id = try XCTUnwrap(parts.chats.open)
    await parts.chats.new().value
    XCTAssertEqual(parts.chat.state.turns, [])
    _ = try await ask(parts.chat, "Something else")
    await parts.chats.open(id).value
    XCTAssertEqual(parts.chat.state.turns, first)
    let goneOn = try await ask(parts.chat, "And now?")
    XCTAssertEqual(library.histories, 0)
    library.damagedCaches = true
    let straight = start().chat  // which reads the turns again
    try await ready(straight)
    XCTAssertEqual(straight.state.turns, goneOn)
  }

  func testAChatOpensTheBundleThatItBelongsTo() async throws {
    try use("other")
    try use("demo")
    let parts = start()
    let turns = try await ask(parts.chat, "Hello")
    let id = try XCTUnwrap(parts.chats.open)
    await parts.bundles.choose("other").value
    XCTAssertEqual(parts.chat.state.turns, [])
    XCTAssertEqual(parts.chat.state.bundle, "other")
    await parts.chats.open(id).value
    XCTAssertEqual(parts.chat.state.bundle, "demo")
    XCTAssertEqual(parts.bundles.chosen, "demo", "the bundles screen shows it too")
    XCTAssertEqual(parts.chat.state.turns, turns)
    await parts.bundles.choose("other").value
    await parts.bundles.choose("demo").value
    XCTAssertEqual(parts.chats.open, id, "the one that was used last with it")
  }

  func testSearchFindsWordsOfTitlesAndAnswers() async throws {
    try use("demo")
    let parts = start()
    let turns = try await ask(parts.chat, "Où est le café?")
    await parts.chats.new().value
    _ = try await ask(parts.chat, "Hello")
    await parts.chats.search("CAFE ou").value
    XCTAssertEqual(parts.chats.shown.map(\.title), ["Où est le café?"])
    await parts.chats.search(String(turns[1].text.prefix(20))).value
    XCTAssertEqual(parts.chats.shown.map(\.title), ["Où est le café?"])
    await parts.chats.search("nowhere").value
    XCTAssertEqual(parts.chats.shown, [])
    await parts.chats.search(" ").value
    XCTAssertEqual(parts.chats.shown.count, 2)
  }

  func testATitleOfOnesOwnStaysAndAnEmptyOneIsTheQuestionAgain() async throws {
    try use("demo")
    let parts = start()
    _ = try await ask(parts.chat, "Hello")
    let id = try XCTUnwrap(parts.chats.open)
    await parts.chats.rename(id, " Greetings ").value
    XCTAssertEqual(parts.chats.shown.map(\.title), ["Greetings"])
    _ = try await ask(parts.chat, "And now?")
    await parts.leave().value
    XCTAssertEqual(parts.chats.shown.map(\.title), ["Greetings"])
    await parts.chats.rename(id, "  ").value
    XCTAssertEqual(parts.chats.shown.map(\.title), ["Hello"])
  }

  func testAChatThatIsRenamedWhileItIsSavedKeepsItsCache() async throws {
    /// A session that runs `whileSaving` after it wrote its file.
    struct Session: OpenSession {
      let whileSaving: @Sendable () async throws -> Void
      var statistics: Statistics? { nil }
      func ask(
        _ words: String, _ config: GenerationConfig
      ) -> @Sendable (_ take: @Sendable (Piece) -> Void) async throws -> Void { { _ in } }
      func stop() {}
      func save(to file: URL) async throws {
        try Data("cache".utf8).write(to: file)
        try await whileSaving()
      }
      func restore(from file: URL) async throws {}
    }
    let store = ChatStore(folder: root.appending(path: "chats"))
    let record = ChatRecord.new("demo", "")
    try await store.write(record, cacheOf: Session {})
    try await store.write(record, cacheOf: Session { try await store.rename(record.id, "Greetings") })
    let saved = await store.read(record.id)
    XCTAssertEqual(saved?.record.title, "Greetings")
    XCTAssertEqual(try Data(contentsOf: XCTUnwrap(saved?.cache)), Data("cache".utf8))
    XCTAssertEqual(folders.count, 1)
  }

  func testADeletedChatCanBeBroughtBackAndIsOpenAgainWhereItWas() async throws {
    try use("demo")
    let parts = start()
    let turns = try await ask(parts.chat, "Hello")
    let id = try XCTUnwrap(parts.chats.open)
    await parts.chats.delete(id)?.value
    XCTAssertEqual(parts.chats.shown, [])
    XCTAssertEqual(parts.chats.deleted?.title, "Hello")
    XCTAssertEqual(parts.chat.state.turns, [])
    await parts.chats.undo()?.value
    XCTAssertNil(parts.chats.deleted)
    XCTAssertEqual(parts.chats.open, id)
    XCTAssertEqual(parts.chat.state.turns, turns)
    XCTAssertEqual(library.histories, 0, "with its cache")
  }

  func testTheNextDeletionAndTheNextProcessMakeItFinal() async throws {
    try use("demo")
    let parts = start()
    var ids: [String] = []
    for question in ["Hello", "And now?"] {
      _ = try await ask(parts.chat, question)
      ids.append(try XCTUnwrap(parts.chats.open))
      await parts.chats.new().value
    }
    await parts.chats.delete(ids[0])?.value
    XCTAssertEqual(folders.count, 2)
    await parts.chats.delete(ids[1])?.value
    XCTAssertEqual(folders, [".deleted-\(ids[1])"])
    await start().begin().value
    XCTAssertEqual(folders, [])
  }

  func testADeletedChatIsGoneWhenItsTimeIsOver() async throws {
    try use("demo")
    let parts = start()
    _ = try await ask(parts.chat, "Hello")
    parts.chats.undoTime = .milliseconds(5)
    await parts.chats.delete(try XCTUnwrap(parts.chats.open))?.value
    try await until { parts.chats.deleted == nil && folders.isEmpty }
    XCTAssertNil(parts.chats.undo())
  }

  func testADeletedBundleTakesItsChatsAndItsRememberedAnswersWithIt() async throws {
    try use("other")
    try use("demo")
    let parts = start()
    parts.settings.set(.remembersAnswers, true)
    _ = try await ask(parts.chat, "Hello")
    await parts.chat.applySettings()?.value
    let memory = try XCTUnwrap(library.memories.last ?? nil)
    await parts.bundles.choose("other").value
    _ = try await ask(parts.chat, "And now?")
    await parts.bundles.delete("demo").value
    XCTAssertEqual(parts.chats.shown.map(\.title), ["And now?"])
    XCTAssertFalse(FileManager.default.fileExists(atPath: memory.path))
  }

  func testOnlyTheLatestChatsKeepTheModelsMemory() async throws {
    try use("demo")
    let parts = start()
    for number in 0...ChatStore.mostCaches {
      _ = try await ask(parts.chat, "Question \(number)")
      await parts.chats.new().value
    }
    let caches = FileManager.default.enumerator(atPath: root.appending(path: "chats").path)!.compactMap { $0 as? String }
      .filter { $0.hasSuffix(".cache") }
    XCTAssertEqual(caches.count, ChatStore.mostCaches)
    let oldest = try XCTUnwrap(parts.chats.shown.last)
    await parts.chats.open(oldest.id).value
    XCTAssertEqual(library.histories, 1, "its turns are read again")
    XCTAssertEqual(parts.chat.state.turns.first?.text, "Question 0")
  }
}
