import Foundation
import StreamFuseCore
import XCTest

@testable import AppModel

/// The chat over the fake library.
final class ChatModelTests: AppTestCase {
  func testWithoutABundleThereIsNothingToAsk() async throws {
    let chat = start().chat
    try await until { chat.state.phase == .noBundle }
    XCTAssertFalse(chat.send("Hello"))
    XCTAssertEqual(chat.state.note, "A bundle holds a model. Bring one in to begin.")
  }

  func testAnAnswerStreamsWithTheSourcesOfItsWordsAndEndsWithTheLibrarysFigures() async throws {
    try use("demo")
    let chat = start().chat
    let turns = try await ask(chat, " Hello\n")
    XCTAssertEqual(turns.map(\.role), [.user, .assistant])
    XCTAssertEqual(turns[0].text, "Hello")
    XCTAssertEqual(turns[1].text.split(separator: " ").count, 20)
    XCTAssertEqual(Set(turns[1].runs.map(\.source)), Set(Source.allCases))
    XCTAssertEqual(chat.state.note, "Ended at the limit of new tokens, which is in Settings.")
    let figures = try XCTUnwrap(turns[1].figures)
    XCTAssertEqual(figures.chip(Locale(identifier: "en_US")), "40 tok/s · 2.0×", "a plain pass costs 50 ms")
    XCTAssertEqual(
      figures.details(Locale(identifier: "de_DE")),
      [
        "First token 0,01 s", "40,0 tokens/s", "2,00 times as fast as plain decoding, by the latency measured on this device",
        "2,00 tokens per pass", "10 of 40 drafted tokens accepted", "streams: 7 tokens", "table: 3 tokens",
        "Prompt: 5 tokens, read at 9 tokens/s",
      ])
  }

  func testFiguresAreCountedWhileAnAnswerIsWritten() async throws {
    try use("demo")
    let chat = start().chat
    try await ask(chat, "Hello", words: 8)
    let live = try XCTUnwrap(chat.answer.live)
    XCTAssertEqual(live.accepted, 7)
    XCTAssertEqual(live.tokensPerPass, 8)
    XCTAssertNil(live.proposed, "only the library knows")
    XCTAssertEqual(chat.state.note, "Writing …")
    library.gate = nil
    try await ready(chat)
  }

  func testStopKeepsWhatIsWrittenAndTheChatGoesOnFromThere() async throws {
    try use("demo")
    let chat = start().chat
    try await ask(chat, "Hello", words: 3)
    chat.stop()
    library.gate = nil
    try await ready(chat)
    XCTAssertEqual(chat.state.note, "Stopped.")
    XCTAssertEqual(chat.state.turns[1].text.split(separator: " ").count, 3)
    let turns = try await ask(chat, "And now?")
    XCTAssertEqual(turns.count, 4)
  }

  func testAProcessThatEndsInTheMiddleOfAnAnswerChangesNoLaterWord() async throws {
    try use("demo")
    func half() async throws -> Parts {
      let parts = start()
      try await ask(parts.chat, "Hello", words: 5)
      let left = parts.leave()
      library.gate = nil
      await left.value
      return parts
    }
    let ended = try await half()
    let kept = try await ask(ended.chat, "And now?")
    await ended.leave().value  // what is still to be written is written before the files go
    try FileManager.default.removeItem(at: root.appending(path: "chats"))
    _ = try await half()
    let again = start().chat
    try await ready(again)
    XCTAssertEqual(again.state.turns, Array(kept.prefix(2)))
    XCTAssertEqual(again.state.note, "Stopped when you left the app.")
    let turns = try await ask(again, "And now?")
    XCTAssertEqual(turns, kept)
    XCTAssertEqual(library.histories, 0, "the cache was used")
  }

  func testWhereTheSavedCacheIsUnreadableTheTurnsAreReadAgain() async throws {
    try use("demo")
    let first = start()
    _ = try await ask(first.chat, "Hello")
    await first.leave().value
    let kept = try await ask(first.chat, "And now?")
    await first.chat.newChat().value
    _ = try await ask(first.chat, "Hello")
    await first.leave().value
    library.damagedCaches = true
    let turns = try await ask(start().chat, "And now?")
    XCTAssertEqual(turns, kept)
    XCTAssertEqual(library.histories, 1)
  }

  func testAQuestionThatWasLeftBeforeItsFirstWordComesBackAlsoAfterTheProcessEnded() async throws {
    try use("demo")
    library.gate = 0
    for begun in [false, true] {
      let parts = start()
      try await ready(parts.chat)
      parts.chat.send("Hello")
      if begun { try await Task.sleep(for: .milliseconds(20)) }
      let left = parts.leave()
      library.gate = 1
      await left.value
      library.gate = 0
      XCTAssertEqual(parts.chat.state.unsent, "Hello")
      let again = start().chat
      try await ready(again)
      XCTAssertEqual(again.state.turns, [])
      XCTAssertEqual(again.input, "Hello")
    }
  }

  func testWhatWasTypedAndNotSentComesBackAfterTheProcessEnded() async throws {
    try use("demo")
    let parts = start()
    _ = try await ask(parts.chat, "Hello")
    parts.chat.type("And a long question")
    await parts.leave().value
    let again = start().chat
    try await ready(again)
    XCTAssertEqual(again.input, "And a long question")
    XCTAssertEqual(again.state.turns, parts.chat.state.turns)
  }

  func testTheMessageOfARefusalIsShownAndTheTextStaysInTheField() async throws {
    try use("demo")
    let chat = start().chat
    let turns = try await ask(chat, "please refuse")
    XCTAssertEqual(chat.state.error, "This prompt is too long.")
    XCTAssertEqual(chat.state.unsent, "please refuse")
    XCTAssertEqual(turns, [])
  }

  func testTheErrorOfABundleThatCannotBeLoadedIsShownAndAnotherCanBeChosen() async throws {
    try use("good")
    try use("bad", damaged: true)
    let chat = start().chat
    try await until { chat.state.phase == .failed }
    XCTAssertEqual(chat.state.error, "model.pte is not the file that the manifest names.")
    XCTAssertTrue(chat.state.wantsBundle)
    await chat.open("good").value
    XCTAssertEqual(chat.state.bundle, "good")
    XCTAssertEqual(chat.state.phase, .ready)
  }

  func testTheBundleInUseIsNotOpenedAgainAndItsAnswerGoesOn() async throws {
    try use("demo")
    let chat = start().chat
    try await ask(chat, "Hello", words: 3)
    chat.open("demo")
    library.gate = nil
    try await ready(chat)
    XCTAssertEqual(chat.state.turns[1].end, "length")
    XCTAssertEqual(library.opened, 1)
  }

  func testTheOpenChatGoesOnThoughAnotherIsDeletedMeanwhile() async throws {
    try use("demo")
    let chat = start().chat
    try await ask(chat, "Hello")
    let first = try XCTUnwrap(chat.state.chat)
    await chat.newChat().value
    try await ask(chat, "Hello", words: 3)
    let deletion = chat.delete(first)
    chat.openChat(try XCTUnwrap(chat.state.chat))
    chat.open("demo")
    library.gate = nil
    await deletion.value
    try await ready(chat)
    XCTAssertEqual(chat.state.turns[1].end, "length")
  }

  func testSettingsTakeEffectWithTheNextAnswerTheSystemPromptWithTheNextChat() async throws {
    try use("demo")
    let parts = start()
    let (chat, settings) = (parts.chat, parts.settings)
    let greedy = try await ask(chat, "Hello")[1].text
    try settings.set(.maxNewTokens, "4")
    await chat.newChat().value
    let short = try await ask(chat, "Hello")[1].text
    XCTAssertEqual(short.split(separator: " "), Array(greedy.split(separator: " ").prefix(4)))
    settings.setSystemPrompt("Be brief.")
    await chat.newChat().value
    let briefed = try await ask(chat, "Hello")[1].text
    XCTAssertNotEqual(briefed, short)
    settings.set(.off)
    await chat.newChat().value
    let plain = try await ask(chat, "Hello")[1].text
    XCTAssertEqual(plain, briefed, "the same text")
    XCTAssertEqual(chat.answer.live?.fallbackReason, "off by request")
  }

  func testOtherThreadsLoadTheBundleAgainAndKeepTheChat() async throws {
    try use("demo")
    let parts = start()
    let turns = try await ask(parts.chat, "Hello")
    XCTAssertNil(parts.chat.applySettings())
    try parts.settings.set(.threads, "3")
    await parts.chat.applySettings()?.value
    XCTAssertEqual(parts.chat.state.turns, turns)
    let threads = try await parts.chat.lend { $0.threads }
    XCTAssertEqual(threads, 3)
    XCTAssertEqual(library.opened, 2)
  }
}
