import Foundation
import Observation
import StreamFuseCore
import Synchronization
import XCTest

@testable import AppModel

#if !canImport(Darwin)
  import FileProviders
#endif

/// What all screens rest on: when work begins, on which thread it runs, and how often a screen is drawn.
final class PartsTests: AppTestCase {
  func testMakingPartsBeginsNothingAndBeginningTwiceLoadsOnce() async throws {
    try use("demo")
    let unfinished = root.appending(path: "bundles/.unfinished-1/model.pte")
    try write("", to: unfinished)
    let made = (0..<3).map { _ in Parts(library, folder: root, defaults: defaults, device: []) }
    try await Task.sleep(for: .milliseconds(50))
    XCTAssertEqual(library.opened, 0)
    XCTAssertTrue(FileManager.default.fileExists(atPath: unfinished.path), "an import may still run")
    made[0].begin()
    await made[0].begin().value
    try await ready(made[0].chat)
    XCTAssertEqual(library.opened, 1)
    XCTAssertFalse(FileManager.default.fileExists(atPath: unfinished.path))
  }

  func testFilesBlockNeitherTheMainThreadNorSwiftsSharedPool() async throws {
    let goOn = DispatchSemaphore(value: 0)
    let waiting = (0..<16).map { number in  // more than the pool has threads
      Task { await FileQueue("test \(number)").run { !Thread.isMainThread && goOn.wait(timeout: .now() + 10) == .success } }
    }
    try await Task.sleep(for: .milliseconds(20))
    await Task.detached {}.value
    for _ in waiting { goOn.signal() }
    for task in waiting {
      let isFree = await task.value
      XCTAssertTrue(isFree)
    }
  }

  #if !canImport(Darwin)
    func testAnImportWaitsForItsFileProviderOffTheMainThread() async throws {
      let goOn = DispatchSemaphore(value: 0), held = Mutex<[Bool]>([])
      NSFileCoordinator.onRead.set { _ in
        held.withLock { $0.append(Thread.isMainThread || goOn.wait(timeout: .now() + 10) == .timedOut) }
      }
      defer { NSFileCoordinator.onRead.set(nil) }
      try write("{}", to: root.appending(path: "outside/demo/manifest.json"))
      let parts = start()
      let task = try XCTUnwrap(parts.bundles.take(root.appending(path: "outside/demo")))
      try await Task.sleep(for: .milliseconds(20))
      XCTAssertEqual(parts.bundles.importing, .receiving(0, of: 0))
      for _ in 0..<2 { goOn.signal() }  // the folder, and its file
      await task.value
      XCTAssertEqual(held.withLock { $0 }, [false, false])
      XCTAssertEqual(parts.bundles.chosen, "demo")
    }
  #endif

  func testAScreenIsDrawnOnceHoweverManyTokensCame() async throws {
    var drawn: [[Int?]] = []
    let pieces = PieceBuffer(clock: { 0 }) { shown, _ in drawn.append(shown.map(\.token)) }
    for token in 0..<1000 { pieces.add(Piece(text: "w", token: token, source: .model)) }
    XCTAssertEqual(drawn.count, 0, "no token waits for the screen")
    try await until { !drawn.isEmpty }
    XCTAssertEqual(drawn.count, 1)
    for token in 1000..<1010 { pieces.add(Piece(text: "w", token: token, source: .model)) }
    pieces.flush()
    XCTAssertEqual(drawn.flatMap { $0 }, Array(0..<1010), "in their order, none twice")
  }

  func testWhileAnAnswerIsWrittenNothingElseIsDrawn() async throws {
    try use("demo")
    let chat = start().chat
    try await ask(chat, "Hello", words: 3)
    let drawn = Mutex(false)
    withObservationTracking {
      _ = chat.state
    } onChange: {
      drawn.withLock { $0 = true }
    }
    library.gate = 4
    try await until { chat.answer.live?.tokens == 7 }
    XCTAssertFalse(drawn.withLock { $0 })
    library.gate = nil
    try await ready(chat)
    XCTAssertTrue(drawn.withLock { $0 }, "its end")
  }

  func testTheDeviceStaysAwakeWhileAnAnswerIsWrittenABenchmarkRunsOrABundleComesIn() async throws {
    try use("demo")
    let parts = start()
    try await ready(parts.chat)
    XCTAssertFalse(parts.isBusy)
    try await ask(parts.chat, "Hello", words: 2)
    XCTAssertTrue(parts.isBusy)
    library.gate = nil
    try await ready(parts.chat)
    XCTAssertFalse(parts.isBusy)

    library.gate = 2
    let benchmark = parts.benchmark.run(prompt: "Hello", tokens: "8")
    try await until { library.gate == 0 }
    XCTAssertTrue(parts.isBusy)
    library.gate = nil
    await benchmark?.value
    XCTAssertFalse(parts.isBusy)

    try write("{}", to: root.appending(path: "outside/other/manifest.json"))
    let task = parts.bundles.take(root.appending(path: "outside/other"))
    XCTAssertTrue(parts.isBusy)
    await task?.value
    XCTAssertFalse(parts.isBusy)
  }

  func testAnAnswerGoesOnForAWhileWhereTheUserLeavesAndIsSavedWhenItEnds() async throws {
    try use("demo")
    let parts = start()
    try await ask(parts.chat, "Hello", words: 3)
    let left = parts.leave(grace: .seconds(60))
    library.gate = nil
    await left.value
    XCTAssertEqual(parts.chat.state.turns[1].end, "length")
    let again = start().chat
    try await ready(again)
    XCTAssertEqual(again.state.turns, parts.chat.state.turns)
    XCTAssertEqual(library.histories, 0, "with its cache")
  }

  func testWhatThereIsOfAnAnswerIsOnDiskOnceTheUserHasLeft() async throws {
    try use("demo")
    let parts = start()
    func file() throws -> URL { root.appending(path: "chats/\(try XCTUnwrap(parts.chat.state.chat))/chat.json") }
    /// The chat as a new process finds it.
    func found(_ isWritten: (String) -> Bool) async throws -> ChatModel {
      let file = try file()
      try await until { (try? String(contentsOf: file, encoding: .utf8)).map(isWritten) ?? false }
      let chat = start().chat
      try await ready(chat)
      return chat
    }
    library.gate = 0
    try await ready(parts.chat)
    parts.chat.send("Hello")
    parts.chat.type("Then this")
    var left = parts.leave(grace: .seconds(60))
    let asked = try await found { $0.contains("Hello") }
    XCTAssertEqual(asked.state.turns, [])
    XCTAssertEqual(asked.input, "Hello\nThen this")

    library.gate = 5
    try await until { library.gate == 0 && parts.chat.answer.live?.tokens == 5 }
    parts.comeBack()
    left = parts.leave(grace: .seconds(60))
    let half = try await found { $0.contains("\"left\"") }
    XCTAssertEqual(half.state.turns.map(\.role), [.user, .assistant])
    XCTAssertEqual(half.state.turns[1].text.split(separator: " ").count, 5)
    XCTAssertEqual(half.state.note, "Stopped when you left the app.")
    library.gate = nil
    await left.value

    let turns = parts.chat.state.turns
    try FileManager.default.removeItem(at: file())
    library.gate = 0
    XCTAssertTrue(parts.chat.retry())
    left = parts.leave(grace: .seconds(60))
    let replaced = try await found { $0.contains("\"length\"") }
    XCTAssertEqual(replaced.state.turns, turns, "nothing has taken their place")
    XCTAssertEqual(replaced.input, "Then this", "what was typed is the chat's")
    library.gate = nil
    await left.value
  }

  func testItEndsWithTheGraceOrWhereTheSystemGivesNoMoreTime() async throws {
    try use("demo")
    let parts = start()
    for isShort in [true, false] {
      try await ask(parts.chat, "Hello", words: 3)
      let left = parts.leave(grace: isShort ? .milliseconds(1) : .seconds(60))
      try await Task.sleep(for: .milliseconds(20))
      if !isShort { parts.endNow() }
      library.gate = nil
      await left.value
      XCTAssertEqual(parts.chat.state.turns.last?.end, "left")
    }
  }

  func testWhoIsBackInTimeReadsOn() async throws {
    try use("demo")
    let parts = start()
    try await ask(parts.chat, "Hello", words: 3)
    let left = parts.leave(grace: .milliseconds(5))
    parts.comeBack()
    try await Task.sleep(for: .milliseconds(30))
    library.gate = nil
    await left.value
    XCTAssertEqual(parts.chat.state.turns[1].end, "length")
  }

  func testAQuestionFromOutsideIsAskedInANewChat() async throws {
    try use("demo")
    let parts = start()
    _ = try await ask(parts.chat, "Hello")
    let first = parts.chat.state.chat
    let isAsked = await parts.ask("And now?")
    XCTAssertTrue(isAsked)
    try await ready(parts.chat)
    XCTAssertNotEqual(parts.chat.state.chat, first)
    XCTAssertEqual(parts.chat.state.turns.map(\.text).first, "And now?")
  }

  func testAnExternalQuestionReloadsAnUnloadedModel() async throws {
    try use("demo")
    let parts = start()
    try await ready(parts.chat)
    await parts.memoryIsShort(onScreen: false).value
    let isAsked = await parts.ask("And now?")
    XCTAssertTrue(isAsked)
    try await ready(parts.chat)
    XCTAssertEqual(parts.chat.state.turns.map(\.text).first, "And now?")
    XCTAssertEqual(library.opened, 2)
  }

  func testAnExternalQuestionThatCannotBeSentStaysInTheInputField() async throws {
    let parts = start()
    parts.chat.type("typed")
    let isAsked = await parts.ask("And now?")
    XCTAssertFalse(isAsked)
    XCTAssertEqual(parts.chat.input, "And now?\ntyped")
    try use("demo")
    await parts.chat.open("demo").value
    XCTAssertEqual(parts.chat.input, "And now?\ntyped", "once there is a model to ask")
  }
}
