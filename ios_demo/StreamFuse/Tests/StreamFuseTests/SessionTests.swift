// Sessions over the arithmetic model: equal texts, ends of all kinds, saved sessions, many sessions at once, errors.
import Arithmetic
import CStreamFuse
import Foundation
import Synchronization
import XCTest

@testable import StreamFuse
@testable import StreamFuseCore

final class SessionTests: XCTestCase {
  func testSpeculationChangesNoTokenGreedyOrSampled() async throws {
    for deferred in [false, true] {
      let model = try await lettersModel(deferred: deferred, accuracy: 9)
      for temperature in [0.0, 0.9] {
        func text(_ configure: (inout GenerationConfig) -> Void) async throws -> Response {
          try await model.completion().stream(after: "51423") {
            $0.maxNewTokens = 40
            $0.temperature = temperature
            $0.seed = 7
            configure(&$0)
          }.response()
        }
        let plain = try await text { $0.enableSpeculativeDecoding = false }
        XCTAssertEqual(plain.statistics.fallbackReason, "off by request")
        XCTAssertEqual(plain.tokens.count, 40)
        for width in [nil, 2, 4, 8] {
          let drafted = try await text { $0.width = width }
          XCTAssertEqual(drafted.tokens, plain.tokens)
          XCTAssertEqual(drafted.text, letters(plain.tokens))
          if width != nil { XCTAssertGreaterThan(drafted.statistics.draftTokensAccepted, 0) }
        }
      }
    }
  }

  func testPiecesSayWhoDraftedThem() async throws {
    let answer = try await lettersModel().completion().stream(after: "314") { $0.width = 8 }
    var drafted = 0, tokens = 0
    for try await piece in answer {
      tokens += 1
      drafted += piece.drafted ? 1 : 0
      XCTAssert([.model, .streams].contains(piece.source))
    }
    let statistics = try await answer.session.statistics
    XCTAssertEqual(statistics?.draftTokensAccepted, drafted)
    XCTAssertEqual(statistics?.generatedTokens, tokens)
  }

  func testAStopStringEndsTheText() async throws {
    let completion = try await lettersModel().completion { $0.maxNewTokens = 30 }
    let whole = try await completion.respond(to: "314")
    let stop = String(Array(whole.text)[9...11])
    let cut = try await completion.respond(to: "314") { $0.stop = [stop] }
    XCTAssert(whole.text.hasPrefix(cut.text + stop))
    XCTAssertEqual(cut.statistics.finishReason, "stop")
  }

  func testAnAnswerThatIsLeftAtAnyTokenCountsAsFarAsItWasDelivered() async throws {
    let whole = try await lettersModel().chat().respond(to: "314") { $0.maxNewTokens = 12 }
    for count in 1..<12 {
      let chat = try await lettersModel().chat { $0.maxNewTokens = 12 }
      var left = 0
      for try await _ in chat.stream(to: "314") {
        left += 1
        if left == count { break }
      }
      let messages = try await chat.messages
      XCTAssertEqual(messages.map(\.content), ["314", String(whole.text.prefix(count))])
      let went = try await chat.statistics
      XCTAssertEqual(went?.finishReason, "stopped")
      let again = try await chat.respond(to: "2")
      let expected = try await Self.afresh("314" + whole.text.prefix(count) + "2")
      XCTAssertEqual(again.text, expected)
    }
  }

  func testCancellingTheTaskAtAnyTokenLeavesAUsableSession() async throws {
    let whole = try await lettersModel().chat().respond(to: "314") { $0.maxNewTokens = 12 }
    for count in 0..<12 {
      let chat = try await lettersModel().chat { $0.maxNewTokens = 12 }
      let task = Task {
        var delivered = 0
        if count == 0 { withUnsafeCurrentTask { $0?.cancel() } }
        for try await _ in chat.stream(to: "314") {
          delivered += 1
          if delivered == count { withUnsafeCurrentTask { $0?.cancel() } }
        }
      }
      await assertThrows(CancellationError.self) { try await task.value }
      let messages = try await chat.messages.map(\.content)
      XCTAssertEqual(messages, count == 0 ? [] : ["314", String(whole.text.prefix(count))])
      let again = try await chat.respond(to: "2")
      let expected = try await Self.afresh(messages.joined() + "2")
      XCTAssertEqual(again.text, expected)
    }
  }

  func testCancellingWhileAPassRunsEndsAtItsToken() async throws {
    let pass = HeldPass(4)
    let chat = try await lettersModel { pass.reached() }.chat { $0.width = 4 }
    let task = Task { try await chat.respond(to: "314") }
    await pass.isReached()
    task.cancel()
    pass.go()
    await assertThrows(CancellationError.self) { _ = try await task.value }
    XCTAssertEqual(pass.count, 4)
    let answer = try await chat.messages.last
    XCTAssertEqual(answer?.role, .assistant)
    let again = try await chat.respond(to: "2") { $0.maxNewTokens = 9 }
    XCTAssertEqual(again.tokens.count, 9)
  }

  func testStopEndsTheAnswerAndNoLaterOne() async throws {
    let chat = try await lettersModel().chat { $0.maxNewTokens = 20 }
    chat.stop()
    var pieces = 0
    for try await _ in chat.stream(to: "314") {
      pieces += 1
      if pieces == 3 { chat.stop() }
    }
    XCTAssertEqual(pieces, 3)
    let statistics = try await chat.statistics
    XCTAssertEqual(statistics?.finishReason, "stopped")
    chat.stop()
    let next = try await chat.respond(to: "2")
    XCTAssertEqual(next.tokens.count, 20)
  }

  func testAQuestionWhoseAnswerIsEndedBeforeItsFirstTokenIsForgotten() async throws {
    enum Way: CaseIterable { case stop, cancel, stopAndAsk, stopAndSave }
    let prompt = String(repeating: "31415926", count: 6)  // more than one pass
    for way in Way.allCases {
      let first = HeldPass(1)
      let chat = try await lettersModel { first.reached() }.chat { $0.maxNewTokens = 9 }
      let answer = chat.stream(to: prompt)
      let task = Task { try await answer.response() }
      await first.isReached()
      var next: Task<Response, any Error>?
      if way == .cancel { task.cancel() } else { chat.stop() }
      if way == .stopAndAsk { next = Task { try await chat.respond(to: "2") } }
      first.go()
      let ended = await task.result
      if way == .cancel {
        XCTAssertThrowsError(try ended.get()) { XCTAssert($0 is CancellationError) }
      } else {
        let response = try ended.get()
        XCTAssertEqual(response.tokens, [])
        XCTAssertEqual(response.statistics.finishReason, "stopped")
      }
      if way == .stopAndSave {
        let file = temporaryFile()
        try await chat.save(to: file)
        try await chat.restore(from: file)
      }
      if next == nil {
        let messages = try await chat.messages
        XCTAssertEqual(messages, [], "\(way)")
      }
      if next == nil { next = Task { try await chat.respond(to: "2") } }
      let after = try await next?.value
      let expected = try await Self.afresh("2", tokens: 9)
      XCTAssertEqual(after?.text, expected, "\(way)")
    }
  }

  func testWhatEndsAnAnswerEndsItWhileItsPromptIsReadToo() async throws {
    let prompt = String(repeating: "31415926", count: 6)  // more than one pass
    let ends: [@Sendable (Chat) async throws -> Void] = [
      { _ = try await $0.respond(to: "2") }, { try await $0.reset() }, { try await $0.trim() },
    ]
    for end in ends {
      let first = HeldPass(1)
      let chat = try await lettersModel { first.reached() }.chat { $0.maxNewTokens = 9 }
      let answer = chat.stream(to: prompt)
      let writing = Task { try await answer.response() }
      await first.isReached()
      let ending = Task { try await end(chat) }
      try await Task.sleep(for: .milliseconds(100))  // it waits for the pass
      first.go()
      let response = try await writing.value
      XCTAssertEqual(response.tokens, [])
      try await ending.value
      let messages = try await chat.messages
      XCTAssertFalse(messages.contains { $0.content == prompt }, "a question without an answer is forgotten")
    }
  }

  func testAStopARequestAndACancelledTaskEndAScore() async throws {
    let prompt = String(repeating: "31415926", count: 6)  // more than one pass
    let ends: [@Sendable (Chat, Task<Score, any Error>) async throws -> Void] = [
      { chat, _ in chat.stop() }, { chat, _ in _ = try await chat.respond(to: "2") }, { chat, _ in try await chat.reset() },
      { _, score in score.cancel() },
    ]
    for end in ends {
      let first = HeldPass(1)
      let chat = try await lettersModel { first.reached() }.chat { $0.maxNewTokens = 9 }
      let score = Task { try await chat.score("27", to: prompt) }
      await first.isReached()
      let ending = Task { try await end(chat, score) }
      try await Task.sleep(for: .milliseconds(100))  // it waits for the pass
      first.go()
      let result = await score.result
      XCTAssertThrowsError(try result.get()) { error in
        XCTAssert(error is CancellationError || (error as? StreamFuseError)?.code == .cancelled, "\(error)")
      }
      try await ending.value
      let whole = try await chat.score("27", to: "31")
      XCTAssertEqual(whole.logProbs.count, 2)
      XCTAssertEqual(whole.perplexity, exp(-whole.logProb / 2))
    }
  }

  func testAScoreThatWaitsAndIsCancelledLeavesTheOneThatRuns() async throws {
    let first = HeldPass(1)
    let chat = try await lettersModel { first.reached() }.chat()
    let running = Task { try await chat.score("27", to: "31") }
    await first.isReached()
    let waiting = Task { try await chat.score("27", to: "31") }
    try await Task.sleep(for: .milliseconds(100))  // it waits for the pass
    waiting.cancel()
    first.go()
    let score = try await running.value
    XCTAssertEqual(score.logProbs.count, 2)
    await assertThrows(CancellationError.self) { _ = try await waiting.value }
  }

  func testAScoreEndsTheAnswerInProgressAndLeavesTheConversation() async throws {
    let chat = try await lettersModel().chat { $0.maxNewTokens = 9 }
    for try await _ in chat.stream(to: "314") {
      _ = try await chat.score("27", to: "31")
    }
    let turns = try await chat.messages
    XCTAssertEqual(turns.map(\.role), [.user, .assistant])
    let scores = try await withThrowingTaskGroup(of: Score.self) { group in
      for _ in 0..<4 { group.addTask { try await chat.score("27", to: "31") } }
      return try await group.reduce(into: []) { $0.append($1) }
    }
    XCTAssertEqual(Set(scores.map(\.logProbs)).count, 1, "they wait for each other")
    let after = try await chat.messages
    XCTAssertEqual(after, turns)
    await assertThrows(StreamFuseError.self) { _ = try await chat.score("", to: "31") }
  }

  func testRequestsThatNeverBeganLeaveNoTraceAndTheLastIsAnswered() async throws {
    let held = HeldPass(1)
    let reading = try await lettersModel { held.reached() }
    let making = HeldPass(1)
    let opening = try await lettersModel(
      engine: WatchedEngine(made: ArithmeticEngine(spec: .arithmetic())) { making.reached() })
    for (model, hold) in [(reading, held), (opening, making)] {
      let chat = model.chat(instructions: "7") { $0.maxNewTokens = 9 }
      let first = try await waiting(chat.stream(to: String(repeating: "31415926", count: 6)))  // more than one pass
      await hold.isReached()
      var dropped = [first]
      for number in 3..<7 { dropped.append(try await waiting(chat.stream(to: "\(number)"))) }
      let last = try await waiting(chat.stream(to: "2"))
      hold.go()
      for task in dropped {
        let response = try await task.value
        XCTAssertEqual(response.tokens, [])
        XCTAssertEqual(response.statistics.finishReason, "stopped")
      }
      let answer = try await last.value
      let expected = try await Self.afresh("72", tokens: 9)
      XCTAssertEqual(answer.text, expected)
      let messages = try await chat.messages.map(\.content)
      XCTAssertEqual(messages, ["7", "2", answer.text])
      let statistics = try await chat.statistics
      XCTAssertEqual(statistics, answer.statistics)
    }
  }

  func testRequestsThatWaitDoNotBeginAfterACallThatEndsAnswers() async throws {
    let file = temporaryFile()
    try await lettersModel().chat().save(to: file)
    let ends: [@Sendable (Chat) async throws -> Void] = [
      { try await $0.reset() }, { try await $0.trim() }, { try await $0.save(to: temporaryFile()) },
      { try await $0.restore(from: file) }, { try await $0.prepare() },
    ]
    for end in ends {
      let held = HeldPass(1)
      let chat = try await lettersModel { held.reached() }.chat { $0.maxNewTokens = 9 }
      let first = try await waiting(chat.stream(to: String(repeating: "31415926", count: 6)))  // more than one pass
      await held.isReached()
      let second = try await waiting(chat.stream(to: "2"))
      let ending = Task { try await end(chat) }
      try await Task.sleep(for: .milliseconds(100))  // it waits for the pass
      held.go()
      for task in [first, second] {
        let response = try await task.value
        XCTAssertEqual(response.tokens, [])
        XCTAssertEqual(response.statistics.finishReason, "stopped")
      }
      try await ending.value
      let messages = try await chat.messages
      XCTAssertEqual(messages, [])
      let later = try await chat.respond(to: "2")
      XCTAssertEqual(later.tokens.count, 9)
    }
  }

  func testRequestsThatWaitAndAreCancelledThrow() async throws {
    let held = HeldPass(1)
    let chat = try await lettersModel { held.reached() }.chat { $0.maxNewTokens = 9 }
    let first = try await waiting(chat.stream(to: "314"))
    await held.isReached()
    let cancelled = try await waiting(chat.stream(to: "3")), last = try await waiting(chat.stream(to: "2"))
    cancelled.cancel()
    held.go()
    await assertThrows(CancellationError.self) { _ = try await cancelled.value }
    _ = try await first.value
    let answer = try await last.value
    XCTAssertEqual(answer.tokens.count, 9)
  }

  /// Requests an answer whose session is busy.
  private func waiting(_ answer: Answer) async throws -> Task<Response, any Error> {
    let task = Task { try await answer.response() }
    while answer.turn.number.load(ordering: .relaxed) == 0 { try await Task.sleep(for: .milliseconds(1)) }
    return task
  }

  func testAnAnswerWithoutATokenThatNobodyStoppedCounts() async throws {
    let chat = try await lettersModel().chat { $0.maxNewTokens = 9 }
    let whole = try await chat.respond(to: "314").tokens
    try await chat.reset()
    let empty = try await chat.respond(to: "314") { $0.stopTokenIDs = [whole[0]] }
    XCTAssertEqual(empty.tokens, [])
    let messages = try await chat.messages.map(\.content)
    XCTAssertEqual(messages, ["314", ""])
  }

  func testAStopThatComesBeforeTheAnswerBeginsEndsIt() async throws {
    // Before anything runs.
    let chat = try await lettersModel().chat { $0.maxNewTokens = 20 }
    let early = chat.stream(to: "314")
    chat.stop()
    let nothing = try await early.response()
    XCTAssertEqual(nothing.tokens, [])
    XCTAssertEqual(nothing.statistics.finishReason, "stopped")
    // While the engine is made.
    let making = HeldPass(1)
    let model = try await lettersModel(
      engine: WatchedEngine(made: ArithmeticEngine(spec: .arithmetic())) { making.reached() })
    let other = model.chat { $0.maxNewTokens = 20 }
    let task = Task { try await other.respond(to: "314") }
    await making.isReached()
    other.stop()
    making.go()
    let stopped = try await task.value
    XCTAssertEqual(stopped.tokens, [])
    // While another answer keeps the session busy: both end.
    let pass = HeldPass(3)
    let busy = try await lettersModel { pass.reached() }.chat { $0.maxNewTokens = 20; $0.enableSpeculativeDecoding = false }
    let first = busy.stream(to: "314"), second = busy.stream(to: "2")
    let writing = Task { try await first.response() }
    await pass.isReached()
    let waiting = Task { try await second.response() }
    busy.stop()
    pass.go()
    let one = try await writing.value, two = try await waiting.value
    XCTAssertLessThan(one.tokens.count, 20)
    XCTAssertEqual(two.tokens, [])
    for chat in [chat, other, busy] {
      let later = try await chat.respond(to: "2")
      XCTAssertEqual(later.tokens.count, 20, "a stop ends no later answer")
    }
  }

  func testAnotherRequestEndsTheAnswerThatIsBeingWritten() async throws {
    let chat = try await lettersModel().chat { $0.maxNewTokens = 20 }
    let first = chat.stream(to: "314").makeAsyncIterator()
    for _ in 0..<4 { _ = try await first.next() }
    let second = try await chat.respond(to: "2")
    let end = try await first.next()
    XCTAssertNil(end)
    XCTAssertEqual(second.tokens.count, 20)
    let roles = try await chat.messages.map(\.role)
    XCTAssertEqual(roles, [.user, .assistant, .user, .assistant])
  }

  func testTextThatIsHeldBackStillArrivesWhenAnotherCallEndsTheAnswer() async throws {
    let whole = try await lettersModel().chat().respond(to: "314") { $0.maxNewTokens = 12 }.text
    let stop = String(Array(whole)[4...6]) + "!"  // no letter of the model
    let ends: [(String, @Sendable (Chat) async throws -> Void)] = [
      ("respond", { _ = try await $0.respond(to: "2") }), ("save", { try await $0.save(to: temporaryFile()) }),
      ("trim", { try await $0.trim() }), ("prepare", { try await $0.session.prepare() }),
      ("reset", { try await $0.reset() }),
    ]
    for (name, end) in ends {
      let chat = try await lettersModel().chat { $0.maxNewTokens = 12; $0.stop = [stop] }
      let first = chat.stream(to: "314").makeAsyncIterator()
      var delivered = "", rest = [Piece]()
      for _ in 0..<7 { delivered += try await first.next()?.text ?? "" }
      XCTAssertEqual(delivered, String(whole.prefix(4)), "the test needs text that is held back")
      try await end(chat)
      while let piece = try await first.next() { rest.append(piece) }
      XCTAssertEqual(delivered + rest.map(\.text).joined(), String(whole.prefix(7)), name)
      XCTAssert(rest.allSatisfy { $0.token == nil }, name)
      guard name != "reset" else { continue }
      let messages = try await chat.messages
      XCTAssertEqual(messages[1].content, delivered + rest.map(\.text).joined(), name)
    }
  }

  func testAnAnswerIsWrittenOnce() async throws {
    let answer = try await lettersModel().completion().stream(after: "314") { $0.maxNewTokens = 5 }
    var counts = [0, 0]
    for loop in 0..<2 { for try await _ in answer { counts[loop] += 1 } }
    XCTAssertEqual(counts, [5, 0])
  }

  func testASecondLoopContinuesAnAnswerWhateverIsReadInBetween() async throws {
    let chat = try await lettersModel().chat { $0.maxNewTokens = 20 }
    let answer = chat.stream(to: "314")
    var count = 0
    for try await _ in answer {
      count += 1
      if count == 3 { break }
    }
    let rest = answer.makeAsyncIterator()
    while try await rest.next() != nil {
      count += 1
      _ = try await chat.statistics
    }
    XCTAssertEqual(count, 20)
  }

  func testASavedChatGoesOnInAnotherSession() async throws {
    let file = temporaryFile()
    let chat = try await lettersModel().chat { $0.maxNewTokens = 9 }
    try await chat.respond(to: "314")
    try await chat.save(to: file)
    let expected = try await chat.respond(to: "2")
    let restored = try await lettersModel().chat { $0.maxNewTokens = 9 }
    try await restored.restore(from: file)
    let went = try await restored.respond(to: "2")
    XCTAssertEqual(went.text, expected.text)
    XCTAssertEqual(went.statistics.prefilledTokens, expected.statistics.prefilledTokens)
    let messages = try await restored.messages
    XCTAssertEqual(messages.count, 4)
  }

  func testADamagedOrForeignFileChangesNothing() async throws {
    let file = temporaryFile()
    let chat = try await lettersModel().chat { $0.maxNewTokens = 9 }
    try await chat.respond(to: "314")
    let before = try await chat.messages
    try await chat.save(to: file)
    let good = try Data(contentsOf: file)
    var bad = good
    bad[good.count / 2] ^= 1
    for data in [bad, good.dropLast(), Data()] {
      try data.write(to: file)
      await assertThrows(StreamFuseError.self, { XCTAssertEqual($0.code, .badFile) }) {
        try await chat.restore(from: file)
      }
    }
    await assertThrows(StreamFuseError.self, { XCTAssertEqual($0.code, .badFile) }) {
      try await chat.restore(from: file.appendingPathExtension("none"))
    }
    let after = try await chat.messages
    XCTAssertEqual(before, after)
    // Without a conversation.
    let completion = try await lettersModel().completion()
    try await completion.respond(to: "314")
    try await completion.save(to: file)
    let cached = try await chat.session.tokens
    await assertThrows(StreamFuseError.self, { XCTAssert($0.message.contains("no conversation"), $0.message) }) {
      try await chat.restore(from: file)
    }
    let kept = try await chat.session.tokens, turns = try await chat.messages
    XCTAssertEqual(kept, cached)
    XCTAssertEqual(turns, before)
  }

  func testRestoreAcceptsRolesOfOtherLanguagesAndAnUnreadableTurnResetsTheChat() async throws {
    let file = temporaryFile()
    let other = try await lettersModel().chat { $0.maxNewTokens = 9 }
    try await other.respond(to: "314")
    try await other.save(to: file)
    let saved = try Data(contentsOf: file)
    func write(_ role: String) throws {
      let note = String(decoding: SavedSession(saved).note, as: UTF8.self)
      XCTAssert(note.contains(#""role":"user""#), note)
      let changed = note.replacing(#""role":"user""#, with: #""role":"\#(role)""#)
      try SavedSession(saved).with(note: Data(changed.utf8)).write(to: file)
    }
    let chat = try await lettersModel().chat(instructions: "7") { $0.maxNewTokens = 9 }
    try write("developer")
    try await chat.restore(from: file)
    let roles = try await chat.messages.map(\.role)
    XCTAssertEqual(roles, [.developer, .assistant])

    try write("operator")
    await assertThrows(StreamFuseError.self) { error in
      XCTAssertEqual(error.code, .badFile)
      XCTAssert(error.message.contains("operator"), error.message)
    } _: {
      try await chat.restore(from: file)
    }
    let messages = try await chat.messages, used = try await chat.session.usedTokens
    XCTAssertEqual(messages, [Message(role: .system, content: "7")])
    XCTAssertEqual(used, 0)
    let again = try await chat.respond(to: "314")
    let expected = try await Self.afresh("7314", tokens: 9)
    XCTAssertEqual(again.text, expected)
  }

  func testResetForgetsAllTurnsButThoseThatTheChatBeganWith() async throws {
    let history = [Message(role: .user, content: "21"), Message(role: .assistant, content: "53")]
    let chat = try await lettersModel().chat(instructions: "7", history: history) { $0.maxNewTokens = 9 }
    let first = try await chat.respond(to: "314")
    try await chat.reset()
    let messages = try await chat.messages
    XCTAssertEqual(messages, [Message(role: .system, content: "7")] + history)
    let again = try await chat.respond(to: "314")
    XCTAssertEqual(again.text, first.text)
    XCTAssertEqual(again.statistics.prefilledTokens, first.statistics.prefilledTokens)
    let expected = try await Self.afresh("7" + "21" + "53" + "314", tokens: 9)
    XCTAssertEqual(again.text, expected)
  }

  func testARefusedRequestChangesNothing() async throws {
    let chat = try await lettersModel().chat { $0.maxNewTokens = 9 }
    try await chat.respond(to: "314")
    let before = try await chat.messages
    let wrong: [(inout GenerationConfig) -> Void] = [
      { $0.width = 3 }, { $0.temperature = -1 }, { $0.maxNewTokens = 0 }, { $0.topP = 0 }, { $0.width = .max },
    ]
    for configure in wrong {
      await assertThrows(StreamFuseError.self, { XCTAssertEqual($0.code, .badArgument) }) {
        _ = try await chat.stream(to: "2", configure).response()
      }
    }
    await assertThrows(StreamFuseError.self) { _ = try await chat.respond(to: String(repeating: "1", count: 200)) }
    for prompt in [Prompt.text("1"), .tokens([1])] {
      await assertThrows(StreamFuseError.self) { _ = try await chat.session.stream(prompt).response() }
    }
    let completion = try await lettersModel().completion()
    await assertThrows(StreamFuseError.self) { _ = try await completion.session.stream(.turn("1")).response() }
    let after = try await chat.messages
    XCTAssertEqual(before, after)
  }

  func testAnEnginesFailureIsThrownAndTheSessionGoesOn() async throws {
    let fails = Atomic(false)
    let chat = try await lettersModel {
      if fails.load(ordering: .relaxed) { throw StreamFuseError(.execution, "the engine is on strike") }
    }.chat { $0.maxNewTokens = 12; $0.width = 4 }
    await assertThrows(StreamFuseError.self, { XCTAssert($0.message.contains("on strike")) }) {
      var pieces = 0
      for try await _ in chat.stream(to: "314") {
        pieces += 1
        fails.store(pieces == 2, ordering: .relaxed)
      }
    }
    fails.store(false, ordering: .relaxed)
    let delivered = try await chat.messages.map(\.content).joined()
    let again = try await chat.respond(to: "2")
    let expected = try await Self.afresh(delivered + "2")
    XCTAssertEqual(again.text, expected)
  }

  func testSessionsThatBlockDoNotHoldUpOthers() async throws {
    // More sessions than cores, whose passes wait for each other: on Swift's shared pool none would ever go on.
    let sessions = 24
    let arrived = Atomic(0)
    let model = try await lettersModel {
      if arrived.load(ordering: .relaxed) < sessions { arrived.add(1, ordering: .relaxed) }
      while arrived.load(ordering: .relaxed) < sessions { Thread.sleep(forTimeInterval: 0.001) }
    }
    let texts = try await withThrowingTaskGroup(of: [Int].self) { group in
      for _ in 0..<sessions {
        group.addTask {
          try await model.completion().respond(to: "314") { $0.width = 8; $0.maxNewTokens = 16 }.tokens
        }
      }
      return try await group.reduce(into: Set<[Int]>()) { $0.insert($1) }
    }
    XCTAssertEqual(texts.count, 1)
  }

  func testSessionsThatManyTasksMakeAtOnceAreKept() async throws {
    let model = try await lettersModel()
    await withTaskGroup(of: Void.self) { group in
      for _ in 0..<8 { group.addTask { for _ in 0..<500 { _ = model.session() } } }
    }
    try await model.trim()
  }

  func testRequestsToOneSessionFromManyTasksWaitForEachOther() async throws {
    let session = try await lettersModel().session { $0.maxNewTokens = 6; $0.width = 4 }
    await withTaskGroup(of: Void.self) { group in
      for _ in 0..<8 {
        group.addTask { _ = try? await session.stream(.text("314")).response() }
        group.addTask { session.stop() }
        group.addTask { _ = try? await session.statistics }
      }
    }
    let last = try await session.stream(.text("314")).response()
    XCTAssertEqual(last.tokens.count, 6)
  }

  func testTheEngineIsReleasedWithItsSession() async throws {
    final class Witness: Sendable {}
    weak var witness: Witness?
    do {
      let alive = Witness()
      witness = alive
      let chat = try await lettersModel { _ = alive }.chat { $0.maxNewTokens = 3 }
      try await chat.respond(to: "314")
    }
    XCTAssertNil(witness)
  }

  func testStatisticsHaveTheKeysOfEveryLanguage() async throws {
    let model = try await lettersModel()
    let response = try await model.completion().respond(to: "314") { $0.width = 8 }
    let json = try JSONEncoder().encode(response.statistics)
    XCTAssertEqual(try Statistics(json: json), response.statistics)
    let own = try XCTUnwrap(JSONSerialization.jsonObject(with: json) as? [String: Any]).keys
    let page = try String(contentsOf: repository.appending(path: "docs/runtime.md"), encoding: .utf8)
    let table = page.components(separatedBy: "## Statistics")[1]
    let documented = table.matches(of: /\n\| `([a-z_]+)/).map { String($0.1) }
    // An optional that is nil is left out of the JSON.
    XCTAssertEqual(Set(own).union(["fallback_reason", "prefix_refused"]), Set(documented))
  }

  func testUnfitFactsAreRefused() {
    var spec = ModelSpec.arithmetic()
    spec.capacity = 0
    XCTAssertThrowsError(try Model(spec: spec, engine: ArithmeticEngine(spec: spec))) { XCTAssertEqual(($0 as? StreamFuseError)?.code, .badArgument) }
  }

  func testACacheThatTheSystemHasNoMemoryForIsRefusedBeforeItIsMade() throws {
    let engine = ArithmeticEngine(spec: .arithmetic(), cacheBytes: 200 << 20)
    XCTAssertThrowsError(try engine.makeTable(within: 150 << 20)) { error in
      XCTAssertEqual((error as? StreamFuseError)?.code, .outOfMemory)
      XCTAssert((error as! StreamFuseError).message.contains("takes 200 MB, and the system lets this app take 150 MB"))
    }
    for available in [nil, 200 << 20] {
      let table = try engine.makeTable(within: available).table
      table.release(table.context)
    }
  }

  /// The text after a context that no session has cached.
  private static func afresh(_ context: String, tokens: Int = 12) async throws -> String {
    try await lettersModel().completion().respond(to: context) { $0.maxNewTokens = tokens }.text
  }
}

/// A pass of an engine, counted from 1, that waits until the test lets it go on.
private final class HeldPass: Sendable {
  private let number: Int
  private let passes = Atomic(0)
  private let arrived = AsyncStream<Void>.makeStream()
  private let gate = DispatchSemaphore(value: 0)

  init(_ number: Int) { self.number = number }

  /// Passes so far.
  var count: Int { passes.load(ordering: .relaxed) }

  /// The engine is at its next pass.
  func reached() {
    guard passes.add(1, ordering: .relaxed).newValue == number else { return }
    arrived.continuation.yield()
    gate.wait()
  }

  /// Waits until the pass is reached.
  func isReached() async { for await _ in arrived.stream { break } }

  /// Lets it go on.
  func go() { gate.signal() }
}

/// An engine that calls `making` before it makes a table.
struct WatchedEngine: Engine {
  let made: ArithmeticEngine
  let making: @Sendable () -> Void
  var device: String { made.device }

  func makeTable() -> EngineTable {
    making()
    return made.makeTable()
  }
}

/// A file of `Chat.save` (core/saved.cpp).
private struct SavedSession {
  private let bytes: [UInt8]

  init(_ data: Data) { bytes = Array(data) }

  /// A number of the header.
  private func number(at offset: Int) -> Int { (0..<8).reduce(0) { $0 | Int(bytes[offset + $1]) << (8 * $1) } }

  /// The conversation.
  var note: Data { Data(bytes[(bytes.count - 8 - number(at: 56))..<(bytes.count - 8)]) }

  /// The session with another note, and the checksum that it has then.
  func with(note: Data) -> Data {
    var parts = [Array(bytes[..<56]) + Self.littleEndian(UInt64(note.count))]
    var at = 64
    for size in [number(at: 24), 8 * number(at: 32), number(at: 48)] {
      parts.append(Array(bytes[at..<(at + size)]))
      at += size
    }
    parts.append(Array(note))
    var sum: UInt64 = 0xcbf2_9ce4_8422_2325  // FNV-1a
    func mix(_ word: UInt64) {
      sum = (sum ^ word) &* 0x100_0000_01b3
      sum ^= sum >> 29
    }
    for part in parts {
      let words = part.count / 8
      for word in 0..<words { mix((0..<8).reduce(0) { $0 | UInt64(part[8 * word + $1]) << UInt64(8 * $1) }) }
      for byte in part[(8 * words)...] { mix(UInt64(byte)) }
    }
    return Data(parts.joined() + Self.littleEndian(sum))
  }

  private static func littleEndian(_ number: UInt64) -> [UInt8] {
    (0..<8).map { UInt8(truncatingIfNeeded: number >> (8 * $0)) }
  }
}

/// A file that is not there yet.
func temporaryFile() -> URL {
  FileManager.default.temporaryDirectory.appending(path: "streamfuse-\(UUID().uuidString)")
}

/// Fails unless `body` throws an error of this type.
func assertThrows<E: Error>(
  _ type: E.Type, _ inspect: (E) -> Void = { _ in }, file: StaticString = #filePath, line: UInt = #line,
  _ body: () async throws -> Void
) async {
  do {
    try await body()
    XCTFail("nothing was thrown", file: file, line: line)
  } catch let error as E {
    inspect(error)
  } catch {
    XCTFail("\(error) was thrown", file: file, line: line)
  }
}
