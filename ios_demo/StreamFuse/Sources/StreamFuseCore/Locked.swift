import Foundation

/// A value protected by a lock, like `Synchronization.Mutex`, but with a lock that the thread sanitizer recognizes.
/// On Linux, where the tests run with the sanitizer, a contended `Mutex` waits by a system call that the sanitizer does
/// not see, so it reports accesses that the mutex orders as races.
package final class Locked<Value>: @unchecked Sendable {
  private let lock = NSLock()
  private nonisolated(unsafe) var value: Value

  package init(_ value: sending Value) { self.value = value }

  /// Calls `body` with the value and returns its result. `body` must not access the value in any other way.
  package func withLock<R, E>(_ body: (inout sending Value) throws(E) -> sending R) throws(E) -> sending R {
    lock.lock()
    defer { lock.unlock() }
    return try body(&value)
  }
}
