// See ../SwiftUI/Views.swift. The part of Foundation that Linux does not have; here it does what it does for local files.

import Foundation

public final class NSFileCoordinator {
  public struct ReadingOptions: OptionSet, Sendable {
    public let rawValue: UInt
    public init(rawValue: UInt) { self.rawValue = rawValue }
    public static let withoutChanges = ReadingOptions(rawValue: 1)
  }
  public init(filePresenter: Any?) {}
  public func coordinate(
    readingItemAt url: URL, options: ReadingOptions = [], error: inout NSError?, byAccessor reader: (URL) -> Void
  ) {
    NSFileCoordinator.read.withLock { $0.append(url.lastPathComponent) }
    NSFileCoordinator.onRead.call(url)
    reader(url)
  }
  public func cancel() {}

  /// The names of all that was read through a coordinator, for tests.
  public static let read = Names()
  public final class Names: @unchecked Sendable {
    private let lock = NSLock()
    private var names: [String] = []
    public func withLock<Result>(_ body: (inout [String]) -> Result) -> Result { lock.withLock { body(&names) } }
  }

  /// Called before each reading, where a test holds a file provider.
  public static let onRead = Hook()
  public final class Hook: @unchecked Sendable {
    private let lock = NSLock()
    private var body: (@Sendable (URL) -> Void)?
    public func set(_ body: (@Sendable (URL) -> Void)?) { lock.withLock { self.body = body } }
    func call(_ url: URL) { lock.withLock { body }?(url) }
  }
}

extension URL {
  public func startAccessingSecurityScopedResource() -> Bool { false }
  public func stopAccessingSecurityScopedResource() {}
}
