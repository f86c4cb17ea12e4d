import Observation
import StreamFuseCore

/// The answer that is being written, apart from the rest of the chat, so that new tokens redraw nothing else.
@MainActor @Observable
public final class AnswerModel {
  /// The answer so far; nil if none is being written.
  public internal(set) var turn: Turn?
  /// Figures of it, or of the last one.
  public internal(set) var live: Live?

  /// Appends new pieces.
  func take(_ pieces: [Piece], _ live: Live) {
    if turn == nil { return }
    for piece in pieces { turn?.append(piece) }  // in place: a copy would cost the whole answer each time
    self.live = live
  }
}
