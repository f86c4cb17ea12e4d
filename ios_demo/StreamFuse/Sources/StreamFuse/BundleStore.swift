import CStreamFuse
import CStreamFuseNative
import Foundation
import StreamFuseCore

extension BundleStore {
  /// A store that loads each bundle once before it installs it. This checks signature and hashes, and that this device
  /// can run it, and compiles a Core ML package.
  ///
  /// `publicKey` is the line that `streamfuse bundle keygen` wrote. Bundles that are not signed with this key are not
  /// installed; only their manifest and signature are downloaded. Nil: the signature is not checked, so install only
  /// from a publisher whose app you would install.
  public init(
    directory: URL, publicKey: String? = nil, limits: BundleLimits = BundleLimits(),
    transport: any BundleTransport = URLSessionTransport()
  ) {
    self.init(
      directory: directory, limits: limits, transport: transport,
      removeCaches: { await StreamFuse.removeCaches(of: $0, unlessUsedBy: $1) },
      checkManifest: { try await verifyManifest(in: $0, publicKey: publicKey) },
      check: { folder in _ = try await load(from: folder) { $0.publicKey = publicKey } })
  }
}

/// Checks the manifest in `folder` and, unless `publicKey` is nil, its signature by this key. No other file needs to
/// exist.
@Sendable private func verifyManifest(in folder: URL, publicKey: String?) async throws {
  try await blocking {
    let capacity = 4096
    var message = [CChar](repeating: 0, count: capacity)
    let code = withCString(publicKey) { key in
      folder.withUnsafeFileSystemRepresentation { sf_model_verify_manifest($0, key, &message, capacity) }
    }
    try message.withUnsafeBufferPointer { try check(code, $0.baseAddress) }
  }
}
