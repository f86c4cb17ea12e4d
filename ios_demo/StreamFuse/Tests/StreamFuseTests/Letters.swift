import Arithmetic
import Foundation
import StreamFuse

/// The text of tokens in the bundles of tests/helpers/letters_samples.py.
func letters(_ tokens: some Sequence<Int>) -> String { String(tokens.map { Character(UnicodeScalar(UInt8(48 + $0))) }) }

/// A bundle that speaks letters, on the arithmetic model: a character is a token, and turns follow each other in the
/// context.
func lettersModel(
  deferred: Bool = false, accuracy: Int = 12, beforePass: @escaping @Sendable () throws -> Void = {}
) async throws -> Model {
  try await lettersModel(
    deferred: deferred,
    engine: ArithmeticEngine(spec: .arithmetic(deferred: deferred), accuracy: accuracy, beforePass: beforePass))
}

/// The same on this engine.
func lettersModel(deferred: Bool = false, engine: any Engine) async throws -> Model {
  try await StreamFuse.load(from: made("build/ios/letters/\(deferred ? "deferred" : "fused")")) {
    $0.costFolder = nil
  } engine: { _, _ in engine }
}
