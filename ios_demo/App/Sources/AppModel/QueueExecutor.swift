import Dispatch

/// Runs the calls of an actor on a dispatch queue of its own: work on files blocks its thread, and neither the main thread
/// nor Swift's shared pool may wait for a disk.
final class QueueExecutor: SerialExecutor {
  private let queue: DispatchQueue

  /// A queue of this name.
  init(_ label: String) { queue = DispatchQueue(label: "streamfuse.\(label)", qos: .userInitiated) }

  /// Puts a call behind those that wait.
  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    queue.async { job.runSynchronously(on: self.asUnownedSerialExecutor()) }
  }
}

/// A place to work on files, one piece of work after another.
actor FileQueue {
  private nonisolated let executor: QueueExecutor
  nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }

  /// A queue of this name.
  init(_ label: String) { executor = QueueExecutor(label) }

  /// Runs `work` there.
  func run<Result: Sendable>(_ work: @Sendable () throws -> Result) rethrows -> Result { try work() }
}
