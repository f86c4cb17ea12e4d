import Foundation

/// A bundle in a `BundleStore`.
public struct InstalledBundle: Sendable, Equatable, Identifiable {
  /// The name of its folder.
  public let name: String
  /// Its folder, to pass to `StreamFuse.load`.
  public let folder: URL
  /// Total size of its files in bytes.
  public let bytes: Int64
  /// The SHA-256 of its manifest: that of the `CatalogEntry` with the same contents.
  public let id: String
}

/// What a bundle may have at most. The largest that phones run have a few dozen files and a few gigabytes.
public struct BundleLimits: Sendable {
  /// Number of files.
  public var files = 1000
  /// Total size of its files in bytes.
  public var bytes: Int64 = 16 << 30
  /// Number of components of a path.
  public var depth = 10

  /// The defaults.
  public init() {}
}

/// The progress of a download or an import.
public enum BundleProgress: Sendable, Equatable {
  /// Bytes received so far, and in total.
  case receiving(Int64, of: Int64)
  /// All bytes are received and being checked.
  case checking
}
