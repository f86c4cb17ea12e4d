import Dispatch

/// Runs the calls of one session, or work on files, in sequence on its own dispatch queue.
///
/// A pass of the model blocks its thread for milliseconds, prefill of a long prompt for seconds. Swift's shared pool
/// has one thread per core and must not be blocked, so a session brings its own executor: tasks that wait for a token
/// give their thread back, and other actors go on.
final class SessionExecutor: SerialExecutor {
  /// Where the session's calls run; passes matter to the person who waits.
  private let queue = DispatchQueue(label: "streamfuse.session", qos: .userInitiated)

  /// Puts a call behind those that wait.
  func enqueue(_ job: consuming ExecutorJob) {
    let job = UnownedJob(job)
    queue.async { job.runSynchronously(on: self.asUnownedSerialExecutor()) }
  }
}
