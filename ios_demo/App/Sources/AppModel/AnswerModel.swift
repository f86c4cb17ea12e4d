import Observation
import StreamFuseCore

/// The answer that is being written, apart from the rest of the chat: what is drawn with each step is this alone.
@MainActor @Observable
public final class AnswerModel {
  /// The answer so far; nil where none is written.
  public internal(set) var turn: Turn?
  /// Figures of it, or of the last one.
  public internal(set) var live: Live?

  /// Takes what was written.
  func take(_ pieces: [Piece], _ live: Live) {
    if turn == nil { return }
    for piece in pieces { turn?.append(piece) }  // in place: a copy would cost the whole answer each time
    self.live = live
  }
}
