import CStreamFuseNative
import StreamFuseCore

/// The progress of one load, which other threads may read and cancel.
final class LoadProgress: @unchecked Sendable {  // sf_progress may be used by any threads
  /// The library's handle.
  let handle: OpaquePointer

  /// The progress of a load that has not begun. Throws `StreamFuseError` (`.outOfMemory`).
  init() throws {
    guard let made = sf_progress_new() else { throw StreamFuseError(.outOfMemory, "out of memory") }
    handle = made
  }

  deinit { sf_progress_free(handle) }

  /// The fraction that is done, from 0 to 1.
  var fraction: Double { sf_progress_fraction(handle) }

  /// The load ends soon, with the code `cancelled`.
  func cancel() { sf_progress_cancel(handle) }
}

/// Opens a bundle outside Swift's shared thread pool, and reports about 20 times per second how far it is, in terms of
/// the whole load: `scale` of the fraction.
func opened(
  scale: Double, _ report: @escaping @Sendable (Double) -> Void, _ open: @escaping @Sendable (LoadProgress) throws -> NativeModel
) async throws -> NativeModel {
  let progress = try LoadProgress()
  let polling = Task {
    while !Task.isCancelled {
      report(scale * progress.fraction)
      try? await Task.sleep(for: .milliseconds(50))
    }
  }
  func endPolling() async {  // nothing is reported after the load
    polling.cancel()
    await polling.value
  }
  do {
    let bundle = try await withTaskCancellationHandler {
      try await blocking { try open(progress) }
    } onCancel: {
      progress.cancel()
    }
    await endPolling()
    return bundle
  } catch {
    await endPolling()
    if (error as? StreamFuseError)?.code == .cancelled { throw CancellationError() }
    throw error
  }
}
