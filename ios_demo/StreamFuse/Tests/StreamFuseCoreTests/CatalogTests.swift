// A catalogue is not trusted.
import Foundation
import XCTest

@testable import StreamFuseCore

final class CatalogTests: StoreTestCase {
  func testACatalogueWithDuplicateOrHostileEntriesIsRefusedWithTheEntryAndTheField() async throws {
    func refuses(_ named: String, line: UInt = #line, _ edit: (inout [String: Any]) -> Void) async throws {
      try publisher.publish([("good", demo), ("demo", demo)]) { if $0["name"] as? String == "demo" { edit(&$0) } }
      await refused(.badFile, named, line: line) { _ = try await self.entries() }
    }
    let zeros = String(repeating: "0", count: 64)
    func add(_ path: String, hash: String = zeros, bytes: Int64 = 0, to entry: inout [String: Any]) {
      var files = entry["files"] as? [String: Any] ?? [:]
      files[path] = ["sha256": hash, "bytes": bytes] as [String: Any]
      entry["files"] = files
    }
    try await refuses("good is in it twice") { $0["name"] = "good" }
    let paths = ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "a//b", "./a", "a\u{0}b", "c:evil"]
    for path in paths + [String(repeating: "x", count: 256), String(repeating: "d/", count: 10) + "deep"] {
      try await refuses("bundles[1].files has the path") { add(path, to: &$0) }
    }
    try await refuses("bundles[1].files has \"model.pte/below\" below a file") { add("model.pte/below", to: &$0) }
    try await refuses("bundles[1].files.\"x\".sha256 is not a SHA-256") { add("x", hash: "../../evil", to: &$0) }
    try await refuses("bundles[1].files.\"x\".bytes is -1") { add("x", bytes: -1, to: &$0) }
    try await refuses("is larger than the limit of 16384 MiB") {
      add("x", bytes: 16 << 30, to: &$0)
      add("y", bytes: 16 << 30, to: &$0)
    }
    try await refuses("bundles[1].bytes is 5, but its files have \(demoBytes)") { $0["bytes"] = 5 }
    try await refuses("bundles[1].files has no manifest.json") { entry in
      entry["files"] = (entry["files"] as? [String: Any])?.filter { $0.key != "manifest.json" }
    }
    for name in ["", "..", ".hidden", "a/b", String(repeating: "x", count: 61), "a b"] {
      try await refuses("bundles[1].name") { $0["name"] = name }
    }
    for title in ["", "two\nlines", "\u{202E}esrever", String(repeating: "x", count: 201)] {
      try await refuses("bundles[1].title") { $0["title"] = title }
    }
    try await refuses("bundles[1].context_length is 0") { $0["context_length"] = 0 }
    let relative = ["demo", "demo/?a=/", "de mo/", "//u@h/"]
    for url in ["http://models.example/demo/", "ftp://models.example/demo/", "file:///data/"] + relative {
      try await refuses("bundles[1].url is \"\(url)\"") { $0["url"] = url }
    }
    try await refuses("the catalogue is damaged: bundles.[1].context_length") { $0["context_length"] = "many" }
    for (text, named) in [
      ("<html>", "the catalogue is damaged"), ("{\"catalog_version\": 2}", "catalog_version is 2"),
      (String(repeating: " ", count: (4 << 20) + 1), "is larger than 4 MiB"),
    ] {
      publisher.change { $0.files["catalog.json"] = Data(text.utf8) }
      await refused(.badFile, named) { _ = try await self.entries() }
    }
    let others = ["catalog.json", "", "https://", "file:///etc/passwd", "no address"]
    for address in others + ["http://models.example/catalog.json"] {
      await refused(.badArgument, "is not an address that begins with https://") {
        _ = try await self.store().catalog(address)
      }
    }
    XCTAssertEqual(left, [])
  }

  func testAnEntrySaysWhyADeviceCannotRunIt() async throws {
    try publisher.publish([("demo", demo), ("npu", demo), ("web", demo)]) { entry in
      if entry["name"] as? String == "npu" { entry["backend"] = "qnn" }
      if entry["name"] as? String == "web" { entry["target"] = "onnx" }
    }
    let entries = try await entries()
    let backends: [String: String?] = ["kernels": nil]
    XCTAssertNil(entries[0].unsupportedReason(backends: backends))
    XCTAssertEqual(entries[1].unsupportedReason(backends: backends), "this library has no backend qnn")
    XCTAssertEqual(entries[1].unsupportedReason(backends: ["qnn": "no Snapdragon"]), "no Snapdragon")
    XCTAssertEqual(
      entries[2].unsupportedReason(backends: backends),
      "it is for onnx, and this library runs bundles for executorch and coreml")
  }
}
