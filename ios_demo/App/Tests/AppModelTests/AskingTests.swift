import Foundation
import StreamFuseCore
import XCTest

@testable import AppModel

/// Questions that are asked again or edited, and what the library is told for an answer.
final class AskingTests: AppTestCase {
  func testAnAnswerIsReplacedByAnotherOne() async throws {
    try use("demo")
    let chat = start().chat
    XCTAssertFalse(chat.canRetry)
    let before = try await ask(chat, "Hello")
    let more = try await ask(chat, "And now?")
    XCTAssertTrue(chat.retry())
    try await ready(chat)
    XCTAssertEqual(Array(chat.state.turns.prefix(3)), Array(more.prefix(3)))
    XCTAssertEqual(chat.state.turns.count, 4)
    XCTAssertNotEqual(chat.state.turns[3].text, more[3].text)
    XCTAssertEqual(Array(chat.state.turns.prefix(2)), before)
  }

  func testAnAnswerThatWasStoppedIsWrittenAsItWouldHaveBeen() async throws {
    try use("demo")
    let chat = start().chat
    let whole = try await ask(chat, "Hello")
    await chat.newChat().value
    try await ask(chat, "Hello", words: 3)
    chat.stop()
    library.gate = nil
    try await ready(chat)
    XCTAssertTrue(chat.retry())
    try await ready(chat)
    XCTAssertEqual(chat.state.turns.map(\.text), whole.map(\.text))
  }

  func testAnEditedQuestionTakesThePlaceOfWhatFollowedItAlsoInTheModelsMemory() async throws {
    try use("demo")
    let parts = start(), chat = parts.chat
    _ = try await ask(chat, "Hello")
    let wanted = try await ask(chat, "And then?").map(\.text)
    await chat.newChat().value
    _ = try await ask(chat, "Hello")
    _ = try await ask(chat, "And now?")
    _ = try await ask(chat, "Why?")
    chat.edit(1)
    XCTAssertNil(chat.state.editing, "an answer is no question")
    chat.edit(2)
    XCTAssertEqual(chat.input, "And now?")
    XCTAssertFalse(chat.canRetry)
    let turns = try await ask(chat, "And then?").map(\.text)
    XCTAssertEqual(turns, wanted)
    XCTAssertNil(chat.state.editing)
    await parts.leave().value
    let again = start().chat
    try await ready(again)
    XCTAssertEqual(again.state.turns.map(\.text), wanted)
  }

  func testWhatWasThereComesBackWhereNoWordTakesItsPlace() async throws {
    try use("demo")
    let chat = start().chat
    _ = try await ask(chat, "Hello")
    let turns = try await ask(chat, "And now?")
    chat.edit(0)
    chat.type("please refuse")
    chat.sendInput()
    try await ready(chat)
    XCTAssertEqual(chat.state.turns, turns)
    XCTAssertEqual(chat.input, "please refuse")
    XCTAssertEqual(chat.state.error, "This prompt is too long.")
    XCTAssertEqual(library.mostSessions, 1, "the memory of one is freed before the next one allocates")
    let goneOn = try await ask(chat, "Why?").map(\.text)
    await chat.newChat().value
    for question in ["Hello", "And now?"] { _ = try await ask(chat, question) }
    let straight = try await ask(chat, "Why?").map(\.text)
    XCTAssertEqual(goneOn, straight, "the cache of them too")
  }

  func testNoQuestionIsAskedWhileTheChatOrItsModelIsAboutToBeReplaced() async throws {
    try use("demo")
    let parts = start(), chat = parts.chat
    _ = try await ask(chat, "Hello")
    let first = try XCTUnwrap(chat.state.chat)
    try parts.settings.set(.threads, "3")
    let replacements: [() -> Void] = [
      { chat.newChat() }, { chat.openChat(first) }, { chat.applySettings() }, { _ = chat.putModelAway() },
      { Task { try await chat.lend { _ in } } },
    ]
    for (number, replace) in replacements.enumerated() {
      let gate = hold(chat)
      replace()
      try await until { !chat.canAsk }
      XCTAssertFalse(chat.send("And now?"), "\(number)")
      XCTAssertFalse(chat.retry(), "\(number)")
      gate.finish()
      await chat.later {}.value
      await chat.comeBack().value
      let turns = try await ask(chat, "Why?")
      XCTAssertEqual(turns.suffix(2).map(\.role), [.user, .assistant], "\(number)")
      XCTAssertFalse(turns.contains { $0.text == "And now?" }, "\(number)")
    }
  }

  func testNoQuestionIsAskedBetweenTheOpeningOfAChatAndItsDeletion() async throws {
    try use("demo")
    let chat = start().chat
    _ = try await ask(chat, "Hello")
    let first = try XCTUnwrap(chat.state.chat)
    await chat.newChat().value
    chat.openChat(first)
    let gate = hold(chat)
    let deletion = chat.delete(first)
    try await until { chat.state.chat == first && chat.state.phase == .ready }
    XCTAssertFalse(chat.send("And now?"))
    gate.finish()
    await deletion.value
    XCTAssertNotEqual(chat.state.chat, first)
    XCTAssertEqual(chat.state.turns, [])
    let turns = try await ask(chat, "Why?")
    XCTAssertEqual(turns.map(\.text).first, "Why?")
  }

  /// Holds what is begun after this, until the gate is finished.
  private func hold(_ chat: ChatModel) -> AsyncStream<Void>.Continuation {
    let (held, gate) = AsyncStream<Void>.makeStream()
    chat.later { for await _ in held {} }
    return gate
  }

  func testARefusedQuestionIsPutBeforeWhatIsTypedAndStaysWithItsChatUntilItIsDeleted() async throws {
    try use("demo")
    let parts = start(), chat = parts.chat
    _ = try await ask(chat, "Hello")
    let first = try XCTUnwrap(chat.state.chat)
    chat.type("please refuse")
    chat.sendInput()
    XCTAssertEqual(chat.input, "")
    chat.type("Then this")
    try await ready(chat)
    XCTAssertEqual(chat.input, "please refuse\nThen this")
    chat.type("please, refuse")
    await chat.newChat().value
    XCTAssertEqual(chat.input, "", "it is the other chat's")
    chat.type("typed")
    await chat.openChat(first).value
    XCTAssertEqual(chat.input, "please, refuse\ntyped")
    chat.edit(0)
    XCTAssertEqual(chat.input, "Hello")
    chat.endEdit()
    XCTAssertEqual(chat.input, "please, refuse\ntyped")
    for _ in 0..<2 {
      await chat.newChat().value
      XCTAssertEqual(chat.input, "")
      await chat.openChat(first).value
      XCTAssertEqual(chat.input, "please, refuse\ntyped", "what was typed is the chat's too now")
    }
    chat.type("")
    await chat.newChat().value
    await chat.openChat(first).value
    XCTAssertEqual(chat.input, "", "the user has deleted it")
    await parts.leave().value
    let again = start().chat
    try await ready(again)
    XCTAssertEqual(again.input, "")
  }

  func testWhatIsTypedWhileTheChatIsSavedIsSavedToo() async throws {
    try use("demo")
    let chat = start().chat
    _ = try await ask(chat, "please refuse")
    let first = try XCTUnwrap(chat.state.chat)
    library.whileSaving = { chat.type("please, refuse") }
    await chat.saveSoon().value
    library.whileSaving = {}
    await chat.newChat().value
    await chat.openChat(first).value
    XCTAssertEqual(chat.input, "please, refuse")
  }

  func testAnUnsentDraftIsRestoredAfterAnEdit() async throws {
    try use("demo")
    let parts = start(), chat = parts.chat
    _ = try await ask(chat, "Hello")
    chat.type("Then this")
    chat.edit(0)
    XCTAssertEqual(chat.input, "Hello")
    chat.endEdit()
    XCTAssertEqual(chat.input, "Then this")
    chat.edit(0)
    chat.type("Hello there")
    await parts.leave().value
    let again = start().chat
    try await ready(again)
    XCTAssertEqual(again.input, "Then this", "also where the process ends during the edit")
    chat.sendInput()
    XCTAssertEqual(chat.input, "Then this")
    try await ready(chat)
    XCTAssertEqual(chat.state.turns.first?.text, "Hello there")
  }

  func testTheTextOfAnEditStaysInTheFieldWhereTheModelIsLoadedAgain() async throws {
    try use("demo")
    let parts = start(), chat = parts.chat
    _ = try await ask(chat, "Hello")
    for (threads, refused) in [("3", ""), ("4", "please refuse\n")] {
      chat.edit(0)
      chat.type("Hello there")
      try parts.settings.set(.threads, threads)
      await chat.applySettings()?.value
      XCTAssertEqual(chat.input, "\(refused)Hello there")
      XCTAssertNil(chat.state.editing)
      chat.type("please refuse")
      chat.sendInput()
      try await ready(chat)
    }
    chat.edit(0)
    await chat.newChat().value
    XCTAssertEqual(chat.input, "", "it is the other chat's")
  }

  func testAnswersAreRememberedOnlyWhereTheUserWantsItAndCanBeErased() async throws {
    try use("demo")
    let parts = start()
    try await ready(parts.chat)
    XCTAssertEqual(library.memories, [nil])
    parts.settings.set(.remembersAnswers, true)
    await parts.chat.applySettings()?.value
    let file = try XCTUnwrap(library.memories.last ?? nil)
    XCTAssertTrue(file.path.hasPrefix(root.path), "with all that the app keeps")
    try write("answers", to: file.deletingLastPathComponent().appending(path: "other.answers"))
    library.forgetError = StreamFuseError(.badFile, "demo.answers cannot be written.")
    let refused = await parts.chat.forgetAnswers().value
    XCTAssertEqual(refused, "demo.answers cannot be written.")
    library.forgetError = nil
    let told = await parts.chat.forgetAnswers().value
    XCTAssertEqual(told, Word.erased())
    XCTAssertEqual(try Data(contentsOf: file), Data())
    XCTAssertEqual(try FileManager.default.contentsOfDirectory(atPath: file.deletingLastPathComponent().path), ["demo.answers"])
    parts.settings.set(.remembersAnswers, false)
    await parts.chat.applySettings()?.value
    XCTAssertEqual(library.memories.last, .some(nil))
    _ = await parts.chat.forgetAnswers().value
    XCTAssertFalse(FileManager.default.fileExists(atPath: file.path))
  }

  func testTurningOffRememberAnswersWhileTheModelIsLoadedOrLentTakesEffect() async throws {
    try use("demo")
    let parts = start(), chat = parts.chat
    try await ready(chat)
    var applied: Task<Void, Never>?
    func turnOff() {
      parts.settings.set(.remembersAnswers, false)
      applied = chat.applySettings()
    }
    parts.settings.set(.remembersAnswers, true)
    library.whileOpening = { [library] in
      library.whileOpening = {}
      turnOff()
    }
    await chat.applySettings()?.value
    await applied?.value
    XCTAssertEqual(library.memories.map { $0 != nil }, [false, true, false])

    parts.settings.set(.remembersAnswers, true)
    await chat.applySettings()?.value
    _ = try await chat.lend { _ in turnOff() }
    await applied?.value
    XCTAssertEqual(library.memories.map { $0 != nil }, [false, true, false, true, false])
    XCTAssertEqual(chat.state.phase, .ready)
  }

  func testRememberedAnswersAreErasedWithoutAnOpenModel() async throws {
    let bundle = try use("demo")
    let parts = start(), chat = parts.chat
    try await ready(chat)
    parts.settings.set(.remembersAnswers, true)
    await chat.applySettings()?.value
    let file = try XCTUnwrap(library.memories.last ?? nil)
    await chat.putModelAway().value
    _ = await chat.forgetAnswers().value
    XCTAssertFalse(FileManager.default.fileExists(atPath: file.path), "it was put away")

    await chat.comeBack().value
    XCTAssertTrue(FileManager.default.fileExists(atPath: file.path))
    try write("", to: bundle.appending(path: "damaged"))
    try parts.settings.set(.threads, "3")
    await chat.applySettings()?.value
    XCTAssertEqual(chat.state.phase, .failed)
    _ = await chat.forgetAnswers().value
    XCTAssertFalse(FileManager.default.fileExists(atPath: file.path), "it could not be loaded")
  }

  func testAFullContextDropsTurnsWhereTheUserWantsIt() async throws {
    try use("demo")
    let parts = start()
    let turns = try await ask(parts.chat, "Hello")
    XCTAssertEqual(Set(library.contextPolicies), [.fail])
    parts.settings.set(.dropsOldest, true)
    await parts.chat.applySettings()?.value
    XCTAssertEqual(library.contextPolicies.last, .dropOldest)
    XCTAssertEqual(parts.chat.state.turns, turns)
    XCTAssertNil(parts.chat.applySettings(), "nothing is changed")
  }

  func testOnlyAnEndThatTheUserShouldKnowOfIsShown() async {
    func state(_ end: String) -> ChatState {
      var turn = Turn(role: .assistant, runs: [Run(text: "Hello", source: .model)])
      turn.end = end
      return ChatState(phase: .ready, turns: [.question("Hi"), turn])
    }
    XCTAssertEqual(state("stop").note, "The answer is complete.", "for VoiceOver")
    XCTAssertNil(state("stop").shownNote)
    XCTAssertEqual(state("context").shownNote, "The context is full. Begin a new chat.")
    XCTAssertEqual(state("stopped").shownNote, "Stopped.")
  }

  func testWhatAModelThinksIsNoPartOfItsAnswer() async {
    var turn = Turn(role: .assistant)
    turn.append(Piece(text: "Let me see.", token: 1, source: .model, channel: .thinking))
    XCTAssertEqual(turn.runs, [])
    turn.append(Piece(text: "Hello", token: 2, source: .model))
    XCTAssertEqual(turn.text, "Hello")
  }
}
