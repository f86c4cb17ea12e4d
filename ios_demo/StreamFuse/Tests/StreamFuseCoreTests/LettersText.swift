import Foundation
import StreamFuseCore

/// A tokenizer of an app's own, for tests: one character per token, and turns that follow each other in the context.
final class LettersText: SessionText {
  private let first: [Message]
  private var context: [Int64] = []
  private var turns: [Message] = []
  private var stops: [String] = []
  private var written = ""
  private var answer: [Int64] = []
  private var asked = false

  /// A conversation that begins with these messages.
  init(_ first: [Message] = []) {
    self.first = first
    reset()
  }

  static func letters(_ tokens: some Sequence<Int64>) -> String {
    String(tokens.map { Character(UnicodeScalar(UInt8(48 + $0))) })
  }

  func encode(_ prompt: String) throws -> [Int64] {
    guard !prompt.isEmpty else { throw StreamFuseError(.badArgument, "the prompt is empty") }
    return prompt.utf8.map { Int64($0) - 48 }
  }

  func ask(_ words: String) throws -> [Int64] {
    let ids = try encode(words)
    turns.append(Message(role: .user, content: words))
    context += ids
    asked = true
    return context
  }

  func takeBack() {
    guard asked, let last = turns.popLast() else { return }
    context.removeLast(last.content.utf8.count)
    asked = false
  }

  func begin(stops: [String]) {
    self.stops = stops
    written = ""
    answer = []
  }

  func push(_ token: Int64) -> (text: String, stopped: Bool) {
    written += Self.letters([token])
    answer.append(token)
    return (Self.letters([token]), stops.contains { written.contains($0) })
  }

  func end() -> String {
    if asked {
      turns.append(Message(role: .assistant, content: written))
      context += answer
      asked = false
    }
    return ""
  }

  func messages() -> [Message] { turns }

  func reset() {
    turns = first
    context = first.flatMap { $0.content.utf8.map { Int64($0) - 48 } }
    asked = false
  }

  func save() throws -> Data { try JSONEncoder().encode(turns) }

  func restore(_ note: Data) throws {
    guard let turns = try? JSONDecoder().decode([Message].self, from: note) else {
      throw StreamFuseError(.badFile, "another tokenizer wrote this conversation")
    }
    self.turns = turns
    context = try turns.flatMap { try encode($0.content) }
  }
}

/// A model that speaks letters.
func lettersModel(
  _ spec: ModelSpec = .arithmetic(), accuracy: Int = 12, beforePass: @escaping @Sendable () throws -> Void = {}
) throws -> Model {
  try Model(
    spec: spec, engine: ArithmeticEngine(spec: spec, accuracy: accuracy, beforePass: beforePass), canChat: true,
    text: { LettersText($0) })
}
