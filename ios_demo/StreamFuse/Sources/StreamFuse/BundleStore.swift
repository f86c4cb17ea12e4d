import Foundation
import StreamFuseCore

extension BundleStore {
  /// A store that loads each bundle once before it installs it. This checks signature and hashes, and that this device
  /// can run it, and compiles a Core ML package.
  ///
  /// `publicKey` is the line that `streamfuse bundle keygen` wrote. Bundles that this key did not sign are not
  /// installed. Nil: the signature is not checked, so install only from a publisher whose app you would install.
  public init(
    directory: URL, publicKey: String? = nil, limits: BundleLimits = BundleLimits(),
    transport: any BundleTransport = URLSessionTransport()
  ) {
    self.init(
      directory: directory, limits: limits, transport: transport,
      removeCaches: { await StreamFuse.removeCaches(of: $0) },
      check: { folder in _ = try await load(from: folder) { $0.publicKey = publicKey } })
  }
}
