import StreamFuseCore
import Synchronization

/// Takes an answer's pieces on any thread, and shows them on the main one at most so often as a screen is worth drawing: so
/// the next token never waits for the screen.
final class PieceBuffer: Sendable {
  private struct Waiting {
    var pieces: [Piece] = []
    var meter: Meter
    var live = Live()
    /// Whether a task shows what comes.
    var showing = false
  }

  /// How often the screen is drawn while an answer is written.
  static let interval = Duration.milliseconds(33)

  private let waiting: Mutex<Waiting>
  private let clock: @Sendable () -> Double
  private let show: @MainActor @Sendable ([Piece], Live) -> Void

  /// Counts from now on. `show` gets all new pieces, and the figures with them.
  init(clock: @escaping @Sendable () -> Double, show: @escaping @MainActor @Sendable ([Piece], Live) -> Void) {
    waiting = Mutex(Waiting(meter: Meter(began: clock())))
    self.clock = clock
    self.show = show
  }

  /// Takes the next piece.
  func add(_ piece: Piece) {
    let now = clock()
    let idle = waiting.withLock { waiting in
      waiting.pieces.append(piece)
      waiting.live = waiting.meter.count(piece, now: now)
      defer { waiting.showing = true }
      return !waiting.showing
    }
    if idle { Task { @MainActor in await showUntilIdle() } }
  }

  /// Shows what waits.
  @MainActor func flush() {
    let (pieces, live) = waiting.withLock { waiting in
      defer { waiting.pieces = [] }
      return (waiting.pieces, waiting.live)
    }
    if !pieces.isEmpty { show(pieces, live) }
  }

  @MainActor private func showUntilIdle() async {
    repeat {
      flush()
      try? await Task.sleep(for: Self.interval)
    } while isWaited()
  }

  /// Whether something waits to be shown; if not, the next piece begins anew.
  private func isWaited() -> Bool {
    waiting.withLock {
      $0.showing = !$0.pieces.isEmpty
      return $0.showing
    }
  }
}
