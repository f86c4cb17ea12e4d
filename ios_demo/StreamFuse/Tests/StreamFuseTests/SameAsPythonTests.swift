// Real bundles: what the Swift API gives is what Python gave, which ran just before (tests/helpers/peer.py).
import Foundation
import StreamFuse
import XCTest

final class SameAsPythonTests: XCTestCase {
  func testEveryTextIsPythonsTokenForToken() async throws {
    for (request, reply) in try requests() {
      let session = try await request.session()
      let scoring = try await request.session()  // prefilled tokens are counted below
      for (pair, expected) in zip(request.scores ?? [], reply.scores ?? []) {
        let score = try await scoring.score(pair[1], to: pair[0])
        XCTAssertEqual(score.logProbs, expected, pair[1])
        XCTAssertEqual(score.logProb, expected.reduce(0, +))
      }
      XCTAssertEqual(request.scores?.count, reply.scores?.count)
      let stops = request.stops ?? Array(repeating: nil, count: request.turns.count)
      for ((words, stop), expected) in zip(zip(request.turns, stops), reply.turns) {
        let got = try await session.answer(to: words, stopAfter: stop)
        XCTAssertEqual(got.tokens, expected.tokens, words)
        XCTAssertEqual(got.text, expected.text, words)
        XCTAssertEqual(got.logProbs, expected.log_probs, words)
        XCTAssertEqual(got.logProbs.count, request.config.logProbs == true ? got.tokens.count : 0)
        XCTAssertEqual(got.topLogProbs, expected.top_log_probs, words)
        let asked = request.config.topLogProbs ?? 0
        XCTAssertEqual(got.topLogProbs.map(\.count), asked > 0 ? got.tokens.map { _ in asked } : [])
        guard !request.planned else { continue }
        XCTAssertEqual(got.sources, expected.sources, words)
        let statistics = try await session.statistics
        XCTAssertEqual(try statistics?.withoutTimes(), try expected.statistics.withoutTimes(), words)
      }
      if let chat = session as? Chat {
        let messages = try await chat.messages
        XCTAssertEqual(messages, reply.messages)
      }
    }
  }

  func testEachTaskAdapterHasAnswersOfItsOwn() async throws {
    let all = try requests().filter { $0.0.bundle == "build/tasks" }
    for raw in [true, nil] {
      let asked = all.filter { $0.0.raw == raw }
      XCTAssertEqual(asked.map { $0.0.adapter }, [nil, "tuned", "lora"])
      XCTAssertEqual(Set(asked.map { $0.1.turns[0].tokens }).count, 3)
      for (request, expected) in asked {
        let got = try await request.session().answer(to: request.turns[0])
        XCTAssertEqual(got.tokens, expected.turns[0].tokens, request.adapter ?? "the base model")
      }
    }
    let model = try await opened("build/tasks")
    XCTAssertEqual(model.adapters, ["tuned", "lora"])
  }

  func testAStoredPrefixIsLoadedAndTheAnswersAreThoseWithoutIt() async throws {
    let all = try requests()
    let (request, expected) = try XCTUnwrap(all.first { $0.0.bundle == "build/ios/prefix" })
    let (_, plain) = try XCTUnwrap(all.first { $0.0.bundle == "build/demo" && $0.0.system == request.system })
    XCTAssertEqual(expected.turns.map(\.tokens), plain.turns.map(\.tokens))
    let session = try await request.session()
    for (words, turn) in zip(request.turns, plain.turns) {
      let got = try await session.answer(to: words)
      XCTAssertEqual(got.tokens, turn.tokens)
      let found = try await session.statistics
      let statistics = try XCTUnwrap(found)
      XCTAssertEqual(statistics.prefixTokens > 10, words == request.turns[0])
      XCTAssertEqual(statistics.prefixTokens + statistics.prefilledTokens, turn.statistics.prefilledTokens)
      XCTAssertNil(statistics.prefixRefused)
    }
  }

  func testAChatThatPythonSavedGoesOnHere() async throws {
    let all = try requests()
    let (saved, _) = try XCTUnwrap(all.first { $0.0.save != nil })
    let (both, expected) = try XCTUnwrap(
      all.first { $0.0.save == nil && $0.0.stops == nil && $0.0.turns.first == saved.turns[0] })
    let session = try await saved.session()
    try await session.restore(from: repository.appending(path: saved.save!))
    let got = try await session.answer(to: both.turns[1])
    XCTAssertEqual(got.tokens, expected.turns[1].tokens)
    let chat = try XCTUnwrap(session as? Chat)
    let messages = try await chat.messages
    XCTAssertEqual(messages, expected.messages)
    let statistics = try await session.statistics
    XCTAssertEqual(statistics?.prefilledTokens, expected.turns[1].statistics.prefilledTokens)
  }

  func testAnAnswerLeftAtAnyTokenGoesOnAsPythonsOfThatLength() async throws {
    let cut = try requests().filter { $0.0.turns == ["Tell me a story.", "Go on."] }
    XCTAssertEqual(cut.count, 6)
    for (request, expected) in cut {
      for cancels in [false, true] {
        let session = try await request.session(), count = request.config.maxNewTokens!
        let task = Task {
          var pieces = 0
          for try await _ in session.session.stream(.turn(request.turns[0]), { $0.maxNewTokens = 20 }) {
            pieces += 1
            guard pieces == count else { continue }
            if cancels { withUnsafeCurrentTask { $0?.cancel() } } else { break }
          }
        }
        let result = await task.result
        XCTAssertEqual(cancels, (try? result.get()) == nil)
        let got = try await session.answer(to: request.turns[1])
        XCTAssertEqual(got.tokens, expected.turns[1].tokens, "\(count)")
        let messages = try await (session as? Chat)?.messages
        XCTAssertEqual(messages, expected.messages, "\(count)")
      }
    }
  }

  func testChatsInParallelTasksDoNotDisturbEachOther() async throws {
    let pairs = try requests().filter { !$0.0.planned && $0.0.bundle == "build/demo" }.prefix(4)
    try await withThrowingTaskGroup(of: Void.self) { group in
      for (request, expected) in pairs {
        group.addTask {
          let got = try await request.session().answer(to: request.turns[0])
          XCTAssertEqual(got.tokens, expected.turns[0].tokens)
        }
      }
      try await group.waitForAll()
    }
  }
}
