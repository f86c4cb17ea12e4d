import CTensor
import StreamFuseCore

/// The logits of a pass as a package gives them: whole, [K, V], or in chunks [1, V_i, 1, K].
struct Scores {
  /// Logits of some neighbouring tokens.
  private struct Part {
    /// Where they are.
    let tensor: any Tensor
    /// The first token, and how many there are.
    let first, count: Int
    /// Along which axes rows and tokens lie.
    let rowAxis, tokenAxis: Int
    /// The type of its numbers.
    let type: tensor_float

    /// Gives the line of one row's logits to `body`.
    func line<Result>(_ row: Int, _ body: (_ line: UnsafeRawPointer, _ step: Int) throws -> Result) rethrows -> Result {
      try tensor.access { memory, strides in
        try body(memory + row * strides[rowAxis] * tensor.type.bytes, strides[tokenAxis])
      }
    }
  }

  /// All logits, by ascending tokens.
  private let parts: [Part]
  /// Number of tokens.
  private let vocabSize: Int

  /// The logits among the outputs of a function, of so many rows.
  init(_ outputs: [String: any Tensor], of method: String, rows: Int, vocabSize: Int) throws {
    var parts = [Part]()
    func add(_ tensor: any Tensor, rowAxis: Int, tokenAxis: Int) throws {
      guard tensor.shape.count > max(rowAxis, tokenAxis), tensor.shape[rowAxis] >= rows else {
        throw StreamFuseError(.badProgram, "the package's function \(method) gives logits of another shape than rows and tokens")
      }
      let first = parts.last.map { $0.first + $0.count } ?? 0
      parts.append(
        Part(
          tensor: tensor, first: first, count: tensor.shape[tokenAxis], rowAxis: rowAxis, tokenAxis: tokenAxis,
          type: try tensor.floatType()))
    }
    if let whole = outputs["logits"] {
      try add(whole, rowAxis: 0, tokenAxis: 1)
    } else {
      while let chunk = outputs["logits_\(parts.count)"] { try add(chunk, rowAxis: 3, tokenAxis: 1) }
    }
    let tokens = parts.map(\.count).reduce(0, +)
    guard tokens == vocabSize else {
      throw StreamFuseError(
        .badProgram, "the package's function \(method) gives logits of \(tokens) tokens, not of \(vocabSize)")
    }
    self.parts = parts
    self.vocabSize = vocabSize
  }

  /// The first `rows` rows, [rows, V].
  func read(_ rows: Int) -> [Float] {
    [Float](unsafeUninitializedCapacity: rows * vocabSize) { all, filled in
      for part in parts {
        for row in 0..<rows {
          part.line(row) { line, step in
            tensor_read(line, part.type, Int64(part.count), Int64(step), all.baseAddress! + row * vocabSize + part.first)
          }
        }
      }
      filled = rows * vocabSize
    }
  }

  /// The first of a row's tokens with the greatest logit.
  func best(_ row: Int) -> Int64 {
    var best: Int64 = 0, greatest = -Float.infinity
    for part in parts where part.count > 0 {
      var value: Float = 0
      let token = part.line(row) { line, step in
        tensor_argmax(line, part.type, Int64(part.count), Int64(step), &value)
      }
      if value > greatest { (best, greatest) = (Int64(part.first) + token, value) }
    }
    return best
  }
}
