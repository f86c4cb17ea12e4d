// Downloads from a server that has the faults of real ones: only a whole, checked bundle is ever listed.
import Foundation
import Synchronization
import XCTest

@testable import StreamFuseCore

final class BundleStoreTests: XCTestCase {
  private let home = FileManager.default.temporaryDirectory.appending(path: "streamfuse-\(UUID().uuidString)")
  private var root: URL { home.appending(path: "bundles") }
  private let publisher = Publisher()
  private let checks = Counter()

  override func tearDown() {
    publisher.stop()
    try? FileManager.default.removeItem(at: home)
  }

  /// A file `damaged` makes a folder no bundle.
  private func store(
    limits: BundleLimits = BundleLimits(), freeBytes: @escaping @Sendable (URL) -> Int64 = { _ in 1 << 40 }
  ) -> BundleStore {
    let downloader = Downloader(transport: URLSessionTransport(), retries: [.milliseconds(5), .milliseconds(5)])
    let checks = checks
    return BundleStore(root, limits, downloader, freeBytes: freeBytes, removeCaches: { _ in }) { folder in
      checks.count.withLock { $0 += 1 }
      if FileManager.default.fileExists(atPath: folder.appending(path: "damaged").path) {
        throw StreamFuseError(.badFile, "model.pte is damaged")
      }
    }
  }

  private static func bytes(_ count: Int) -> Data { Data((0..<count).map { UInt8(truncatingIfNeeded: $0 * 31 + $0 / 251) }) }

  private let demo = [
    "manifest.json": Data("{}".utf8), "model.pte": bytes(300_000), "model.mlpackage/Data/weights #1.bin": bytes(1_000),
    "empty": Data(),
  ]
  private var second: [String: Data] { demo.merging(["manifest.json": Data("{ }".utf8)]) { $1 } }

  private func entries() async throws -> [CatalogEntry] { try await store().catalog(publisher.address).entries }

  private func entry() async throws -> CatalogEntry { try await entries()[0] }

  private func refused(
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

  private var left: [String] { ((try? FileManager.default.contentsOfDirectory(atPath: root.path)) ?? []).sorted() }

  private func until(_ condition: () async -> Bool) async throws {
    for _ in 0..<2000 {
      if await condition() { return }
      try await Task.sleep(for: .milliseconds(5))
    }
    XCTFail("it does not come")
  }

  func testABundleOfTheCatalogueIsDownloadedCheckedAndListed() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry(), store = store()
    XCTAssertEqual([entry.name, entry.title, entry.license], ["demo", "The demo", "apache-2.0"])
    XCTAssertEqual([Int64(entry.contextLength), entry.bytes], [1024, 301_002])
    let steps = Mutex<[BundleProgress]>([])
    let bundle = try await store.download(entry) { step in steps.withLock { $0.append(step) } }
    XCTAssertEqual(bundle, InstalledBundle(name: "demo", folder: store.folder("demo"), bytes: 301_002, id: entry.id))
    let listed = await store.list()
    XCTAssertEqual(listed, [bundle])
    XCTAssertEqual(left, ["demo"])
    for (path, data) in demo { XCTAssertEqual(try Data(contentsOf: bundle.folder.appending(path: path)), data, path) }
    XCTAssertEqual(steps.withLock { $0.last }, .checking)
    XCTAssertEqual(publisher.requests[1].path, "demo/manifest.json", "what decides comes first")
    XCTAssertEqual(checks.count.withLock { $0 }, 1)

    let requests = publisher.requests.count
    let again = try await store.download(entry)
    XCTAssertEqual(again, bundle, "it is here already")
    XCTAssertEqual(publisher.requests.count, requests)
  }

  func testACutConnectionIsTriedAgainFromWhereItEnded() async throws {
    try publisher.publish([("demo", demo)])
    publisher.change { $0.cuts["demo/model.pte"] = [100_000, 50_000, 0, 70_000] }
    _ = try await store().download(entry())
    let wanted = [nil] + [100_000, 150_000, 150_000, 220_000].map { "bytes=\($0)-" }
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte"), wanted)
    XCTAssertEqual(left, ["demo"])
  }

  func testWhatHasArrivedIsKeptWhenTheServerIsGoneAndAnotherStoreGoesOnFromThere() async throws {
    try publisher.publish([("demo", demo)])
    publisher.change { $0.cuts["demo/model.pte"] = [200_000, 0, 0] }
    let entry = try await entry()
    await refused(.network, "model.pte") { _ = try await self.store().download(entry) }
    let here = await store().receivedBytes(entry)
    XCTAssertEqual(here, 201_002)
    let listed = await store().list()
    XCTAssertEqual(listed, [])
    publisher.change { $0.requests = [] }
    _ = try await store().download(entry)
    XCTAssertEqual(publisher.requests, [.init(path: "demo/model.pte", range: "bytes=200000-")])
    XCTAssertEqual(left, ["demo"])
  }

  func testAServerWithoutRangesStartsTheFileAgain() async throws {
    try publisher.publish([("demo", demo)])
    publisher.change {
      ($0.hasRanges, $0.tellsSize) = (false, false)
      $0.cuts["demo/model.pte"] = [200_000]
    }
    let bundle = try await store().download(entry())
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte"), [nil, "bytes=200000-"])
    XCTAssertEqual(try Data(contentsOf: bundle.folder.appending(path: "model.pte")), demo["model.pte"])
  }

  func testADownloadThatIsCancelledGoesOnFromThereOrIsDiscarded() async throws {
    try publisher.publish([("demo", demo)])
    let gate = DispatchSemaphore(value: 0)
    publisher.change { $0.halfway = { path in if path == "demo/model.pte" { gate.wait() } } }
    let entry = try await entry(), store = store()
    let running = Task { try await store.download(entry) }
    try await until { await store.receivedBytes(entry) > 100_000 }
    running.cancel()
    do {
      _ = try await running.value
      XCTFail("it was not cancelled")
    } catch {
      XCTAssert(error is CancellationError, "\(error)")
    }
    for _ in 0..<10 { gate.signal() }
    publisher.change {
      $0.halfway = { _ in }
      $0.requests = []
    }
    _ = try await store.download(entry)
    XCTAssert(publisher.ranges(of: "demo/model.pte").allSatisfy { $0 != nil }, "\(publisher.requests)")
    XCTAssertEqual(left, ["demo"])

    try publisher.publish([("other", second)])
    publisher.change { $0.cuts["other/model.pte"] = [10, 0, 0] }
    let other = try await self.entry()
    await refused(.network, "other/model.pte") { _ = try await store.download(other) }
    try await store.discard(other)
    let here = await store.receivedBytes(other)
    XCTAssertEqual(here, 0)
    XCTAssertEqual(left, ["demo"])
  }

  func testAFileThatIsNotThatOfTheCatalogueIsRefusedAndItsBytesAreNotKept() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry(), store = store()
    var changed = Self.bytes(300_000)
    changed[299_999] = 1
    publisher.change { [changed] in $0.files["demo/model.pte"] = changed }
    await refused(.badFile, "model.pte is not the file of the catalogue") { _ = try await store.download(entry) }
    publisher.change { $0.files["demo/model.pte"] = Self.bytes(300_001) }
    await refused(.badFile, "model.pte has 300001 bytes on the server, but 300000 in the catalogue") { _ = try await store.download(entry) }
    publisher.change { $0.tellsSize = false }
    await refused(.badFile, "model.pte is larger on the server") { _ = try await store.download(entry) }
    let kept = await store.receivedBytes(entry)
    XCTAssertEqual(kept, 1_002, "the other files")
    publisher.change { $0.files["demo/model.pte"] = Self.bytes(300_000) }
    _ = try await store.download(entry)
    XCTAssertEqual(left, ["demo"])
  }

  func testWhatAPowerFailureDamagedIsDownloadedAgainByItself() async throws {
    try publisher.publish([("demo", demo)])
    publisher.change { $0.cuts["demo/model.pte"] = [200_000, 0, 0] }
    let entry = try await entry()
    await refused(.network, "model.pte") { _ = try await self.store().download(entry) }
    let part = root.appending(path: ".download-\(entry.id)/\(entry.files["model.pte"]!.sha256).part")
    try Data(count: 200_000).write(to: part)
    publisher.change { $0.requests = [] }
    _ = try await store().download(entry)
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte"), ["bytes=200000-", nil])
  }

  func testAServerThatIsOverloadedIsAskedAgainOneThatRefusesIsNot() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry(), store = store()
    publisher.change { $0.statuses["demo/model.pte"] = [503, 429] }
    _ = try await store.download(entry)
    try await store.delete("demo")
    publisher.change {
      $0.statuses["demo/model.pte"] = [404]
      $0.requests = []
    }
    await refused(.network, "404") { _ = try await store.download(entry) }
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte").count, 1)
    publisher.change { $0.statuses["catalog.json"] = [403] }
    await refused(.network, "403") { _ = try await self.entries() }
    publisher.change { $0.statuses["catalog.json"] = [302] }  // to an address that is not HTTPS
    await refused(.network, "302") { _ = try await self.entries() }
    publisher.stop()
    await refused(.network, "catalog.json cannot be downloaded") { _ = try await self.entries() }
  }

  func testABundleThatTheLibraryRefusesIsNeverListedAndNothingIsKept() async throws {
    try publisher.publish([("demo", demo.merging(["damaged": Data([1])]) { $1 })])
    let entry = try await entry()
    await refused(.badFile, "model.pte is damaged") { _ = try await self.store().download(entry) }
    XCTAssertEqual(left, [])
  }

  func testWithTooLittleRoomNothingIsAskedForAndADiskThatIsFullInTheMiddleIsNamed() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry()
    publisher.change { $0.requests = [] }
    await refused(.noSpace, "it needs 0 MB, and 0 MB are free") {
      _ = try await self.store(freeBytes: { _ in (64 << 20) + 100_000 }).download(entry)
    }
    XCTAssertEqual(publisher.requests, [])
    let part = root.appending(path: ".download-\(entry.id)/\(entry.files["model.pte"]!.sha256).part")
    #if os(Linux)  // every write to /dev/full says that the disk is full
      try FileManager.default.createSymbolicLink(at: part, withDestinationURL: URL(filePath: "/dev/full"))
      await refused(.noSpace, "make room and try again") { _ = try await self.store().download(entry) }
      try FileManager.default.removeItem(at: part)
    #endif
    _ = try await store().download(entry)
    XCTAssertEqual(left, ["demo"])
  }

  func testOfTwoStoresAtOnceTheSameBundleIsBusyOthersAreNotAndBothGetAName() async throws {
    try publisher.publish([("demo", demo)])
    let gate = DispatchSemaphore(value: 0)
    publisher.change { $0.halfway = { path in if path == "demo/model.pte" { gate.wait() } } }
    let entry = try await entry(), one = store(), other = store()
    let running = Task { try await one.download(entry) }
    try await until { await other.receivedBytes(entry) > 100_000 }
    await refused(.busy, "demo is being downloaded already") { _ = try await other.download(entry) }
    await refused(.busy, "demo is being downloaded already") { try await other.discard(entry) }
    await other.sweep(keepDays: -1)
    try publisher.publish([("second", second)]) { $0["name"] = "demo" }
    _ = try await other.download(self.entry())
    gate.signal()
    _ = try await running.value
    let listed = await one.list()
    XCTAssertEqual(listed.map(\.name), ["demo", "demo 2"])
    XCTAssertEqual(left, ["demo", "demo 2"])
  }

  func testACatalogueWithDuplicateOrHostileEntriesIsRefusedWithTheEntryAndTheField() async throws {
    func refuses(_ named: String, line: UInt = #line, _ edit: (inout [String: Any]) -> Void) async throws {
      try publisher.publish([("good", demo), ("demo", demo)]) { if $0["name"] as? String == "demo" { edit(&$0) } }
      await refused(.badFile, named, line: line) { _ = try await self.entries() }
    }
    func add(_ path: String, hash: String = String(repeating: "0", count: 64), bytes: Int64 = 0, to entry: inout [String: Any]) {
      var files = entry["files"] as? [String: Any] ?? [:]
      files[path] = ["sha256": hash, "bytes": bytes] as [String: Any]
      entry["files"] = files
    }
    try await refuses("good is in it twice") { $0["name"] = "good" }
    let paths = ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "a//b", "./a", "a\u{0}b", "c:evil", String(repeating: "x", count: 256)]
    for path in paths + [String(repeating: "d/", count: 10) + "deep"] {
      try await refuses("bundles[1].files has the path") { add(path, to: &$0) }
    }
    try await refuses("bundles[1].files has \"model.pte/below\" below a file") { add("model.pte/below", to: &$0) }
    try await refuses("bundles[1].files.\"x\".sha256 is not a SHA-256") { add("x", hash: "../../evil", to: &$0) }
    try await refuses("bundles[1].files.\"x\".bytes is -1") { add("x", bytes: -1, to: &$0) }
    try await refuses("is larger than the limit of 16384 MiB") {
      add("x", bytes: 16 << 30, to: &$0)
      add("y", bytes: 16 << 30, to: &$0)
    }
    try await refuses("bundles[1].bytes is 5, but its files have 301002") { $0["bytes"] = 5 }
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
    for url in ["http://models.example/demo/", "ftp://models.example/demo/", "file:///data/", "demo", "demo/?a=/", "de mo/", "//u@h/"] {
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
    for address in ["http://models.example/catalog.json", "catalog.json", "", "https://", "file:///etc/passwd", "no address"] {
      await refused(.badArgument, "is not an address that begins with https://") { _ = try await self.store().catalog(address) }
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
      entries[2].unsupportedReason(backends: backends), "it is for onnx, and this library runs bundles for executorch and coreml")
  }

  func testUnfinishedWorkIsSweptByAgeARunningImportIsNotAndDeletedBundlesAreGone() async throws {
    try write("", "bundles/.unfinished-1/half")
    try publisher.publish([("demo", demo)])
    publisher.change { $0.cuts["demo/model.pte"] = [200_000, 0, 0] }
    let entry = try await entry(), store = store()
    await refused(.network, "model.pte") { _ = try await store.download(entry) }
    try write("{}", "outside/mine/manifest.json")
    let swept = DispatchSemaphore(value: 0)
    let source = FolderSource(home.appending(path: "outside/mine")) { place, body in
      Task {
        await store.sweep()
        swept.signal()
      }
      swept.wait()
      try body(place)
    }
    _ = try await store.importBundle(source)
    XCTAssertEqual(left, [".download-\(entry.id)", "mine"])
    await store.sweep(keepDays: -1)
    XCTAssertEqual(left, ["mine"])
    try await store.delete("mine")
    XCTAssertEqual(left, [])
    for name in ["../bundles", "", ".", ".download-1"] {
      await refused(.badArgument, "is not the name of a bundle") { try await store.delete(name) }
    }
    do {
      try await store.delete("nowhere")
      XCTFail("nothing was thrown")
    } catch { XCTAssert(error is CocoaError, "\(error)") }
  }

  // MARK: imports

  private func write(_ text: String, _ path: String) throws {
    let file = home.appending(path: path)
    try FileManager.default.createDirectory(at: file.deletingLastPathComponent(), withIntermediateDirectories: true)
    try Data(text.utf8).write(to: file)
  }

  /// A folder that the user may choose.
  private func outside(_ name: String = "demo", _ files: [String: String]) throws -> FolderSource {
    for (path, text) in files { try write(text, "outside/\(name)/\(path)") }
    return FolderSource(home.appending(path: "outside/\(name)"))
  }

  private var small: BundleStore {
    var limits = BundleLimits()
    (limits.files, limits.bytes, limits.depth) = (5, 10_000, 3)
    return store(limits: limits)
  }

  private func refusedImport(_ source: FolderSource, _ named: String, line: UInt = #line) async {
    await refused(.badFile, named, line: line) { _ = try await self.small.importBundle(source) }
    XCTAssertEqual(left, [], line: line)
  }

  func testASoundFolderIsListedUnderItsNameTheSecondOneBesideIt() async throws {
    let source = try outside("demo", ["manifest.json": "{}", "model.mlpackage/Data/weights.bin": "12345", ".DS_Store": "x"])
    for name in ["demo", "demo 2"] {
      let bundle = try await small.importBundle(source)
      XCTAssertEqual(bundle.name, name)
      XCTAssertEqual(bundle.bytes, 7)
      XCTAssertEqual(try Data(contentsOf: bundle.folder.appending(path: "model.mlpackage/Data/weights.bin")), Data("12345".utf8))
    }
    let around = try await small.importBundle(outside("unpacked", ["inner/manifest.json": "{}", "__MACOSX/inner": "x"]))
    XCTAssertEqual([around.name, "\(around.bytes)"], ["unpacked", "2"], "a folder around it")
  }

  func testUntrustedFoldersAreRefused() async throws {
    try write("secret", "secret/file")
    for (name, target) in [("weights.bin", "secret/file"), ("weights", "secret")] {
      let source = try outside("evil-\(name)", ["manifest.json": "{}"])
      try FileManager.default.createSymbolicLink(
        at: source.folder.appending(path: name), withDestinationURL: home.appending(path: target))
      await refusedImport(source, "the name \"\(name)\" is not allowed in a bundle")
    }
    await refusedImport(try outside("deep", ["manifest.json": "{}", "a/b/c/d": ""]), "the name \"a/b/c\" is not allowed")
    await refusedImport(try outside("large", ["manifest.json": "{}", "model.pte": String(repeating: "x", count: 10_000)]), "larger than the limit")
    let files = Dictionary(uniqueKeysWithValues: (0..<5).map { ("file\($0)", "") })
    await refusedImport(try outside("many", files.merging(["manifest.json": "{}"]) { $1 }), "more than 5 files")
    await refusedImport(try outside("photos", ["a.jpg": "x"]), "photos contains no bundle: manifest.json is missing")
    await refusedImport(try outside("bad", ["manifest.json": "{}", "damaged": ""]), "model.pte is damaged")
    let full = store(freeBytes: { _ in 64 << 20 }), source = try outside("full", ["manifest.json": "{}"])
    await refused(.noSpace, "too little free space") { _ = try await full.importBundle(source) }
  }

  func testUntrustedNamesBecomePlainOnes() async throws {
    for (wanted, name) in [("a:b*", "a_b_"), (".. .", "bundle"), (" 模型.", "模型")] {
      let bundle = try await small.importBundle(outside(wanted, ["manifest.json": "{}"]))
      XCTAssertEqual(bundle.name, name)
    }
  }

  func testACancelledImportLeavesNothing() async throws {
    let gate = DispatchSemaphore(value: 0)
    let plain = try outside("demo", ["manifest.json": "{}", "model.pte": "1"])
    let source = FolderSource(plain.folder) { place, body in
      if place.lastPathComponent == "model.pte" { gate.wait() }
      try body(place)
    }
    let store = store()
    let running = Task { try await store.importBundle(source) }
    running.cancel()
    gate.signal()
    do {
      _ = try await running.value
      XCTFail("it was not cancelled")
    } catch { XCTAssert(error is CancellationError, "\(error)") }
    XCTAssertEqual(left, [])
  }

  func testALinkInABundleIsDeletedWhatItLeadsToIsNot() async throws {
    try write("still here", "elsewhere/precious")
    let bundle = try await small.importBundle(outside("demo", ["manifest.json": "{}"]))
    try FileManager.default.createSymbolicLink(
      at: bundle.folder.appending(path: "inner"), withDestinationURL: home.appending(path: "elsewhere"))
    try await small.delete("demo")
    XCTAssertEqual(left, [])
    XCTAssertEqual(try String(contentsOf: home.appending(path: "elsewhere/precious"), encoding: .utf8), "still here")
  }
}

private final class Counter: Sendable {
  let count = Mutex(0)
}

/// 64 hexadecimal digits.
func sha256(_ data: Data) -> String {
  var hash = FileHash()
  hash.update(data)
  return hash.digits()
}
