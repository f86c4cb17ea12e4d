import Foundation

/// A bundle in a `BundleStore`.
public struct InstalledBundle: Sendable, Equatable, Identifiable {
  /// The name of its folder.
  public let name: String
  /// For `StreamFuse.load`.
  public let folder: URL
  /// Of all files together.
  public let bytes: Int64
  /// The SHA-256 of its manifest: that of the `CatalogEntry` with the same contents.
  public let id: String
}

/// What a bundle may have at most. The largest that phones run have a few dozen files and a few gigabytes.
public struct BundleLimits: Sendable {
  /// Number of files.
  public var files = 1000
  /// Of all files together.
  public var bytes: Int64 = 16 << 30
  /// Number of parts of a path.
  public var depth = 10

  /// The defaults.
  public init() {}
}

/// How far a download or an import is.
public enum BundleProgress: Sendable, Equatable {
  /// So many bytes are here, of so many.
  case receiving(Int64, of: Int64)
  /// All bytes are here, and the library checks them.
  case checking
}
