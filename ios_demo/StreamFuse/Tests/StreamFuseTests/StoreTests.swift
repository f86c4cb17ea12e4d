// The store over the library itself, from a catalogue that Python wrote: what a key did not sign, and what the engine
// cannot load, is never installed.
import Foundation
import StreamFuse
import Synchronization
import XCTest

final class StoreTests: XCTestCase {
  /// A publisher whose files are in a folder.
  private struct Shelf: BundleTransport {
    let folder: URL
    let requested = Requested()

    final class Requested: Sendable {
      let paths = Mutex<[String]>([])
    }

    func get(
      _ url: URL, from offset: Int64, arriving: @escaping @Sendable (Int64) throws -> Void,
      head: @escaping @Sendable (TransportHead) throws -> Void, body: @escaping @Sendable (Data) throws -> Void
    ) async throws {
      requested.paths.withLock { $0.append(url.lastPathComponent) }
      let content = try Data(contentsOf: folder.appending(path: String(url.path.dropFirst())))
      try head(TransportHead(status: 200, contentLength: Int64(content.count), contentRange: nil))
      try body(content)
    }
  }

  func testWhatTheKeyDidNotSignOrTheEngineCannotLoadIsNotInstalled() async throws {
    let signed = try made("build/ios/signed"), directory = temporaryFolder()
    let json = try Data(contentsOf: signed.appending(path: "catalog.json"))
    let entry = try Catalog.parse(json, address: "https://models.example/catalog.json").entries[0]
    XCTAssertEqual([entry.name, entry.title, entry.license], ["signed", "bytes", "apache-2.0"])
    XCTAssertEqual(entry.files.keys.sorted(), ["manifest.json", "manifest.sig", "model.pte", "tokenizer.json"])
    XCTAssertNil(entry.unsupportedReason(backends: StreamFuse.backends))
    let key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"  // of RFC 8032, section 7.1
    let other = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"  // of the same section
    let described = ["manifest.json", "manifest.sig"]
    for (key, part, files) in [
      (other, "manifest.sig: does not sign", described), (key, "model.pte", described + ["model.pte", "tokenizer.json"]),
    ] {
      let shelf = Shelf(folder: signed.deletingLastPathComponent())
      let store = BundleStore(directory: directory, publicKey: key, transport: shelf)
      do {
        _ = try await store.download(entry)
        XCTFail("it was installed")
      } catch {
        XCTAssert((error as? StreamFuseError)?.message.contains(part) ?? false, "\(error)")
      }
      XCTAssertEqual(shelf.requested.paths.withLock { $0 }, files)
      XCTAssertEqual(try FileManager.default.contentsOfDirectory(atPath: directory.path), [])
    }
  }
}
