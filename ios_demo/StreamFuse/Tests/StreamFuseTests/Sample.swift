import Foundation
import StreamFuse

/// The sample of docs/ios.md, compiled.
func sample(_ folder: URL) async throws {
  // ---
  let model = try await StreamFuse.load(from: folder)
  let chat = model.chat(instructions: "You answer in one sentence.")
  for try await piece in chat.stream(to: "Why is the sky blue?") {
    print(piece.text, terminator: "")
  }
  // ---
}
