// Chats that are longer than the context, with ContextPolicy.dropOldest, and the counts of tokens.
import Arithmetic
import Foundation
import StreamFuse
import XCTest

final class LongChatTests: XCTestCase {
  /// The context of the bundle, and the longest answer.
  private let context = 96, new = 9
  /// Questions of one to four letters.
  private let questions = (0..<60).map { String("3141592653589793".dropFirst($0 % 12).prefix(1 + $0 * 7 % 4)) }

  /// A chat that drops its oldest turns.
  private func longChat(
    deferred: Bool = false, history: [Message] = [], _ configure: (inout GenerationConfig) -> Void = { _ in }
  ) async throws -> Chat {
    let instructions = history.isEmpty ? "7" : nil
    let model = try await lettersModel(deferred: deferred)
    return model.chat(instructions: instructions, history: history, contextPolicy: .dropOldest) {
      $0.maxNewTokens = new
      configure(&$0)
    }
  }

  func testAChatLongerThanTheContextIsTheSameWithSpeculationAndWithout() async throws {
    for temperature in [0.0, 1.0] {
      var texts = [[String]]()
      for (speculative, deferred) in [(false, false), (true, false), (true, true)] {
        let chat = try await longChat(deferred: deferred) {
          $0.temperature = temperature
          $0.enableSpeculativeDecoding = speculative
        }
        var answers = [String](), dropped = 0
        for question in questions {
          let response = try await chat.respond(to: question)
          answers.append(response.text)
          XCTAssertEqual(response.statistics.finishReason, "length")
          XCTAssertEqual(response.statistics.droppedTurns > 0, response.statistics.rereadTokens > 0)
          dropped += response.statistics.droppedTurns
          let (used, left) = (try await chat.usedTokens, try await chat.remainingTokens)
          XCTAssertEqual(used, response.statistics.promptTokens + response.statistics.generatedTokens)
          XCTAssertEqual(used + left, context)
        }
        let messages = try await chat.messages
        XCTAssertEqual(messages[0], Message(role: .system, content: "7"))
        XCTAssertEqual(messages.count, 1 + 2 * (questions.count - dropped))
        texts.append(answers)
      }
      XCTAssertEqual(texts, Array(repeating: texts[0], count: 3))
    }
  }

  func testARestoredChatAndANewOneWithTheKeptTurnsGiveTheSameAnswer() async throws {
    let file = FileManager.default.temporaryDirectory.appending(path: "\(UUID()).session")
    defer { try? FileManager.default.removeItem(at: file) }
    let chat = try await longChat(), other = try await longChat()
    for question in questions.prefix(16) {
      try await chat.save(to: file)
      try await other.restore(from: file)
      let response = try await chat.respond(to: question), restored = try await other.respond(to: question)
      XCTAssertEqual(restored.text, response.text)
      XCTAssertEqual(restored.statistics.droppedTurns, response.statistics.droppedTurns)
      let messages = try await chat.messages
      let fresh = try await longChat(history: messages.dropLast(2))
      let again = try await fresh.respond(to: question)
      XCTAssertEqual(again.text, response.text)
    }
  }

  func testAQuestionThatDoesNotFitIsRefusedAndChangesNothing() async throws {
    for policy in [ContextPolicy.fail, .dropOldest] {
      let chat = try await lettersModel().chat(contextPolicy: policy) { $0.maxNewTokens = new }
      try await chat.respond(to: "314")
      let before = try await chat.messages
      await assertThrows(StreamFuseError.self, { XCTAssertEqual($0.code, .contextFull) }) {
        try await chat.respond(to: String(repeating: "3", count: 97))
      }
      let after = try await chat.messages
      XCTAssertEqual(after, before)
    }
    let chat = try await lettersModel().chat { $0.maxNewTokens = new }
    await assertThrows(
      StreamFuseError.self,
      {
        XCTAssertEqual($0.code, .contextFull)
        XCTAssert($0.message.contains("drop_oldest"), $0.message)
      }
    ) {
      for question in questions { try await chat.respond(to: question) }
    }
  }

  func testTokensOfATextAreCounted() async throws {
    let model = try await lettersModel()
    XCTAssertEqual(try model.countTokens("31415"), 5)
    XCTAssertEqual(try model.countTokens(""), 0)
    let chat = model.chat()
    let (used, left) = (try await chat.usedTokens, try await chat.remainingTokens)
    XCTAssertEqual([used, left], [0, context])
    let spec = ModelSpec.arithmetic()
    let bare = try Model(spec: spec, engine: ArithmeticEngine(spec: spec))
    XCTAssertThrowsError(try bare.countTokens("314")) { XCTAssertEqual(($0 as? StreamFuseError)?.code, .badArgument) }
  }
}
