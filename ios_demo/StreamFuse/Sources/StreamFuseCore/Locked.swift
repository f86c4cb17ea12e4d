import Foundation

/// A value that one thread at a time reads or changes, as in `Synchronization.Mutex`, with a lock that the thread
/// sanitizer knows. On Linux, where the tests run under it, a contended `Mutex` waits in the kernel without the
/// sanitizer's knowledge, which then reports accesses in its order as races.
package final class Locked<Value>: @unchecked Sendable {
  private let lock = NSLock()
  private nonisolated(unsafe) var value: Value

  package init(_ value: sending Value) { self.value = value }

  /// What `body` returns. It must not use this value in any other way.
  package func withLock<R, E>(_ body: (inout sending Value) throws(E) -> sending R) throws(E) -> sending R {
    lock.lock()
    defer { lock.unlock() }
    return try body(&value)
  }
}
