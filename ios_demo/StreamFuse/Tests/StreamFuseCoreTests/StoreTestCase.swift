// A store, and a publisher on this machine.
import Foundation
import Synchronization
import XCTest

@testable import StreamFuseCore

class StoreTestCase: XCTestCase {
  let home = FileManager.default.temporaryDirectory.appending(path: "streamfuse-\(UUID().uuidString)")
  var root: URL { home.appending(path: "bundles") }
  let publisher = Publisher()
  let checks = Counter()

  override func tearDown() {
    publisher.stop()
    try? FileManager.default.removeItem(at: home)
  }

  /// A file `damaged` makes a folder no bundle.
  func store(
    limits: BundleLimits = BundleLimits(), transport: any BundleTransport = URLSessionTransport(),
    freeBytes: @escaping @Sendable (URL) -> Int64 = { _ in 1 << 40 }
  ) -> BundleStore {
    let downloader = Downloader(transport: transport, retries: [.milliseconds(5), .milliseconds(5)])
    let checks = checks
    return BundleStore(root, limits, downloader, freeBytes: freeBytes, removeCaches: { _, _ in }, checkManifest: { _ in }) { folder in
      checks.count.withLock { $0 += 1 }
      if FileManager.default.fileExists(atPath: folder.appending(path: "damaged").path) {
        throw StreamFuseError(.badFile, "model.pte is damaged")
      }
    }
  }

  static func bytes(_ count: Int) -> Data { Data((0..<count).map { UInt8(truncatingIfNeeded: $0 * 31 + $0 / 251) }) }

  let demo = try! bundle(
    ["model.pte": bytes(300_000), "model.mlpackage/Data/weights #1.bin": bytes(1_000), "empty": Data()])
  var second: [String: Data] { get throws { try bundle(demo, note: "second") } }
  /// All bytes of `demo`.
  var demoBytes: Int64 { Int64(demo.values.map(\.count).reduce(0, +)) }

  func entries() async throws -> [CatalogEntry] { try await store().catalog(publisher.address).entries }

  func entry() async throws -> CatalogEntry { try await entries()[0] }

  func refused(
    _ code: StreamFuseError.Code, _ named: String, line: UInt = #line, _ body: () async throws -> Void
  ) async {
    do {
      try await body()
      XCTFail("nothing was thrown", line: line)
    } catch {
      let error = error as? StreamFuseError
      XCTAssertEqual(error?.code, code, error?.message ?? "", line: line)
      XCTAssert(error?.message.contains(named) ?? false, error?.message ?? "", line: line)
      XCTAssertFalse(error?.message.contains("\n") ?? true, line: line)
    }
  }

  var left: [String] { ((try? FileManager.default.contentsOfDirectory(atPath: root.path)) ?? []).sorted() }

  func until(_ condition: () async -> Bool) async throws {
    for _ in 0..<2000 {
      if await condition() { return }
      try await Task.sleep(for: .milliseconds(5))
    }
    XCTFail("it does not come")
  }

  func write(_ text: String, _ path: String) throws {
    let file = home.appending(path: path)
    try FileManager.default.createDirectory(at: file.deletingLastPathComponent(), withIntermediateDirectories: true)
    try Data(text.utf8).write(to: file)
  }
}

final class Counter: Sendable {
  let count = Mutex(0)
}

/// 64 hexadecimal digits.
func sha256(_ data: Data) -> String {
  var hash = FileHash()
  hash.update(data)
  return hash.digits()
}

/// These files and a manifest that lists them; another `note` makes it another manifest.
func bundle(_ files: [String: Data], note: String = "") throws -> [String: Data] {
  let listed = files.filter { $0.key != manifestName }.mapValues { data in
    ["sha256": sha256(data), "bytes": data.count] as [String: Any]
  }
  let json = try JSONSerialization.data(withJSONObject: ["note": note, "files": listed], options: [.sortedKeys])
  return files.merging([manifestName: json]) { $1 }
}
