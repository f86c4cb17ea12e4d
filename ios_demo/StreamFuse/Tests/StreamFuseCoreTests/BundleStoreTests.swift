// Downloads from a server that has the faults of real ones: only a whole, checked bundle is ever listed.
import Foundation
import Synchronization
import XCTest

@testable import StreamFuseCore

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

final class BundleStoreTests: StoreTestCase {
  func testABundleOfTheCatalogueIsDownloadedCheckedAndListed() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry(), store = store()
    XCTAssertEqual([entry.name, entry.title, entry.license], ["demo", "The demo", "apache-2.0"])
    XCTAssertEqual([Int64(entry.contextLength), entry.bytes], [1024, demoBytes])
    let steps = Mutex<[BundleProgress]>([])
    let bundle = try await store.download(entry) { step in steps.withLock { $0.append(step) } }
    XCTAssertEqual(bundle, InstalledBundle(name: "demo", folder: store.folder("demo"), bytes: demoBytes, id: entry.id))
    let listed = await store.list()
    XCTAssertEqual(listed, [bundle])
    XCTAssertEqual(left, ["demo"])
    for (path, data) in demo { XCTAssertEqual(try Data(contentsOf: bundle.folder.appending(path: path)), data, path) }
    XCTAssertEqual(steps.withLock { $0.last }, .checking)
    XCTAssertEqual(publisher.requests[1].path, "demo/manifest.json", "the manifest comes first")
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

  /// A transport whose first requests fail; later ones are made.
  private struct Failing: BundleTransport {
    let error: any Error
    var times = Int.max
    let requests = Counter()

    func get(
      _ url: URL, from offset: Int64, arriving: @escaping @Sendable (Int64) throws -> Void,
      head: @escaping @Sendable (TransportHead) throws -> Void, body: @escaping @Sendable (Data) throws -> Void
    ) async throws {
      requests.count.withLock { $0 += 1 }
      if requests.count.withLock({ $0 }) <= times { throw error }
      try await URLSessionTransport().get(url, from: offset, arriving: arriving, head: head, body: body)
    }
  }

  func testAConnectionThatTheSystemCutsIsTriedAgain() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry()
    _ = try await store(transport: Failing(error: POSIXError(.ECONNABORTED), times: 1)).download(entry)
    XCTAssertEqual(left, ["demo"])
  }

  func testADiskThatIsFullForTheTransportIsNamedAndNotTriedAgain() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry()
    let errors: [any Error] = [
      POSIXError(.ENOSPC), URLError(.cannotWriteToFile), URLError(.cannotCreateFile), CocoaError(.fileWriteOutOfSpace),
    ]
    for error in errors {
      let transport = Failing(error: error)
      await refused(.noSpace, "make room and try again") {
        _ = try await self.store(transport: transport).download(entry)
      }
      XCTAssertEqual(transport.requests.count.withLock { $0 }, 1, "\(error)")
    }
  }

  func testARequestThatEndsBeforeTheWaitIsReported() async throws {
    let task = URLSession.shared.dataTask(with: try XCTUnwrap(URL(string: publisher.address)))
    let cancelled = Answering(head: { _ in }, body: { _ in }), whole = Answering(head: { _ in }, body: { _ in })
    cancelled.urlSession(.shared, task: task, didCompleteWithError: URLError(.cancelled))
    whole.urlSession(.shared, task: task, didCompleteWithError: nil)
    do {
      try await withCheckedThrowingContinuation { cancelled.begin($0) }
      XCTFail("it was cancelled")
    } catch {
      XCTAssertEqual((error as? URLError)?.code, .cancelled)
    }
    try await withCheckedThrowingContinuation { whole.begin($0) }
  }

  func testWhatHasArrivedIsKeptWhenTheServerIsGoneAndAnotherStoreGoesOnFromThere() async throws {
    try publisher.publish([("demo", demo)])
    publisher.change { $0.cuts["demo/model.pte"] = [200_000, 0, 0] }
    let entry = try await entry()
    await refused(.network, "model.pte") { _ = try await self.store().download(entry) }
    let here = await store().receivedBytes(entry)
    XCTAssertEqual(here, demoBytes - 100_000)
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

  func testAFileThatIsIncompleteOnTheServerIsNotRequestedForEver() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry(), whole = demo["model.pte"]!
    publisher.change {
      $0.tellsSize = false
      $0.files["demo/model.pte"] = whole.prefix(100_000)
    }
    await refused(.network, "the connection ended early") { _ = try await self.store().download(entry) }
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte"), [nil, "bytes=100000-", nil])
    publisher.change {
      $0.statuses["demo/model.pte"] = Array(repeating: 416, count: 9)
      $0.requests = []
    }
    await refused(.network, "416") { _ = try await self.store().download(entry) }
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte"), ["bytes=100000-", nil])
    publisher.change {
      $0.statuses = [:]
      $0.files["demo/model.pte"] = whole
    }
    _ = try await store().download(entry)
    XCTAssertEqual(left, ["demo"])
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

    try publisher.publish([("other", try second)])
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
    await refused(.badFile, "has 300001 bytes on the server, but 300000 in the catalogue") {
      _ = try await store.download(entry)
    }
    publisher.change { $0.tellsSize = false }
    await refused(.badFile, "model.pte is larger on the server") { _ = try await store.download(entry) }
    let kept = await store.receivedBytes(entry)
    XCTAssertEqual(kept, demoBytes - 300_000, "the other files")
    publisher.change { $0.files["demo/model.pte"] = Self.bytes(300_000) }
    _ = try await store.download(entry)
    XCTAssertEqual(left, ["demo"])
  }

  func testBeforeTheManifestSaysThatAFileBelongsToTheBundleItIsNotRequested() async throws {
    let hostile: [(problem: String, change: [String: Data?])] = [
      ("does not list more.bin, which is in the catalogue", ["more.bin": Data([1])]),
      ("lists empty, which is not in the catalogue", ["empty": nil]),
      ("has another size or SHA-256 of model.pte than the catalogue", ["model.pte": Self.bytes(299_999)]),
      ("has another size or SHA-256 of model.pte", ["model.pte": Data(count: 300_000)]),
      ("has no list of files", ["manifest.json": Data("{}".utf8)]),
    ]
    for (problem, change) in hostile {
      var content = demo
      for (path, data) in change { content[path] = data }
      try publisher.publish([("demo", content)])
      let entry = try await entry()
      publisher.change { $0.requests = [] }
      await refused(.badFile, problem) { _ = try await self.store().download(entry) }
      XCTAssertEqual(publisher.requests, [.init(path: "demo/manifest.json", range: nil)], problem)
      XCTAssertEqual(left, [], problem)
    }
    try publisher.publish([("demo", demo)]) { entry in
      var files = entry["files"] as? [String: [String: Any]]
      files?["manifest.json"]?["bytes"] = 17 << 20
      entry["files"] = files
      entry["bytes"] = Int(demoBytes) - (demo["manifest.json"]?.count ?? 0) + (17 << 20)
    }
    let entry = try await entry()
    publisher.change { $0.requests = [] }
    await refused(.badFile, "at most 16 MiB are accepted") { _ = try await self.store().download(entry) }
    XCTAssertEqual(publisher.requests, [])
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

  func testOnlyAFailureThatARetryCanFixIsTemporary() async throws {
    func isTemporary(_ body: () async throws -> Void) async -> Bool? {
      do {
        try await body()
        return nil
      } catch {
        return (error as? StreamFuseError)?.isTemporary
      }
    }
    try publisher.publish([("demo", demo)])
    let entry = try await entry(), store = store()
    for status in [500, 503, 429, 408, 302, 403, 404] {  // 302: to an address that is not HTTPS
      publisher.change {
        $0.statuses["catalog.json"] = [status]
        $0.statuses["demo/model.pte"] = Array(repeating: status, count: 3)
      }
      let expected = status >= 500 || status == 408 || status == 429
      let catalog = await isTemporary { _ = try await self.entries() }
      XCTAssertEqual(catalog, expected, "the catalogue: \(status)")
      let file = await isTemporary { _ = try await store.download(entry) }
      XCTAssertEqual(file, expected, "a file: \(status)")
    }
    publisher.change {
      $0.statuses = [:]
      $0.cuts["demo/model.pte"] = [200_000, 0, 0]
    }
    let cut = await isTemporary { _ = try await store.download(entry) }
    XCTAssertEqual(cut, true)
    publisher.change { $0.files["demo/model.pte"] = Data(count: 300_000) }
    let other = await isTemporary { _ = try await store.download(entry) }
    XCTAssertEqual(other, false, "another file")
    publisher.stop()
    let gone = await isTemporary { _ = try await self.entries() }
    XCTAssertEqual(gone, true, "no server")
  }

  func testABundleThatTheLibraryRefusesIsNeverListedAndNothingIsKept() async throws {
    try publisher.publish([("demo", try bundle(demo.merging(["damaged": Data([1])]) { $1 }))])
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
    #if os(Linux)  // every write to /dev/full fails with ENOSPC
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
    try publisher.publish([("second", try second)]) { $0["name"] = "demo" }
    _ = try await other.download(self.entry())
    gate.signal()
    _ = try await running.value
    let listed = await one.list()
    XCTAssertEqual(listed.map(\.name), ["demo", "demo 2"])
    XCTAssertEqual(left, ["demo", "demo 2"])
  }

  func testABundleThatAnotherStoreInstalledSinceTheFirstLookIsNotDownloadedAgain() async throws {
    try publisher.publish([("demo", demo)])
    let gate = DispatchSemaphore(value: 0)
    publisher.change { $0.halfway = { path in if path == "demo/model.pte" { gate.wait() } } }
    let entry = try await entry(), one = store(), other = store()
    let first = Task { try await one.download(entry) }
    try await until { await other.receivedBytes(entry) > 100_000 }
    // The other store's first look stands still at each bundle whose manifest is a pipe, until something opens that to
    // write. Once it has passed the first of them, it has the names of all bundles.
    let pipes = ["a", "b"].map { home.appending(path: $0) }
    for pipe in pipes {
      try write("", "bundles/\(pipe.lastPathComponent)/other")
      XCTAssertEqual(mkfifo(pipe.path, 0o600), 0)
      try FileManager.default.linkItem(at: pipe, to: root.appending(path: "\(pipe.lastPathComponent)/\(manifestName)"))
    }
    let second = Task { try await other.download(entry) }
    try await until {
      let writer = open(pipes[0].path, O_WRONLY | O_NONBLOCK)  // fails while nothing reads
      if writer >= 0 { close(writer) }
      return writer >= 0
    }
    gate.signal()
    let installed = try await first.value
    for pipe in pipes { try FileManager.default.removeItem(at: root.appending(path: pipe.lastPathComponent)) }
    publisher.change { ($0.requests, $0.halfway) = ([], { _ in }) }
    close(open(pipes[1].path, O_RDWR))
    let found = try await second.value
    XCTAssertEqual(found, installed)
    XCTAssertEqual(publisher.requests, [])
    XCTAssertEqual(left, ["demo"])
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

  func testWhatTheCheckStoresElsewhereGoesWithTheLastBundleThatUsesIt() async throws {
    let stored = Mutex<Set<String>>([]), checks = Mutex(0)
    let manifest: @Sendable (URL) throws -> String = { folder in  // a prefix has no part in what is stored
      let text = try String(contentsOf: folder.appending(path: manifestName), encoding: .utf8)
      return text.replacing(", \"prefix\": true", with: "")
    }
    let store = BundleStore(
      directory: root,
      removeCaches: { folder, others in
        guard let text = try? manifest(folder), !others.contains(where: { (try? manifest($0)) == text }) else { return }
        stored.withLock { _ = $0.remove(text) }
      }
    ) { folder in
      let text = try manifest(folder)
      stored.withLock { _ = $0.insert(text) }
      checks.withLock { $0 += 1 }
      if text.contains("damaged") { throw StreamFuseError(.badProgram, "it does not load") }
      if text.contains("slow") { try await Task.sleep(for: .seconds(60)) }
    }
    let cancelled: (@escaping @Sendable () async throws -> InstalledBundle) async throws -> Void = { work in
      let task = Task { try await work() }
      try await self.until { stored.withLock { !$0.isEmpty } }
      task.cancel()
      _ = await task.result
    }
    for name in ["damaged", "slow", "mine"] { try write("{\"note\": \"\(name)\"}", "outside/\(name)/manifest.json") }
    let source: (String) -> FolderSource = { FolderSource(self.home.appending(path: "outside/\($0)")) }
    await refused(.badProgram, "it does not load") { _ = try await store.importBundle(source("damaged")) }
    XCTAssertEqual(stored.withLock { $0.count }, 0)
    try await cancelled { [slow = source("slow")] in try await store.importBundle(slow) }
    XCTAssertEqual(stored.withLock { $0.count }, 0)

    checks.withLock { $0 = 0 }
    var copies: [Task<InstalledBundle, any Error>] = []
    for number in 1...2 {
      copies.append(Task { [slow = source("slow")] in try await store.importBundle(slow) })
      try await until { checks.withLock { $0 == number } }
    }
    for (number, copy) in copies.enumerated() {
      copy.cancel()
      _ = await copy.result
      XCTAssertEqual(stored.withLock { $0.count }, 1 - number, "of two copies that are checked at once")
    }

    try publisher.publish([("slow", try bundle(demo, note: "slow"))])
    let entry = try await entry()
    for giveUp in [{ try await store.discard(entry) }, { await store.sweep(keepDays: -1) }] as [() async throws -> Void] {
      try await cancelled { try await store.download(entry) }
      XCTAssertEqual(stored.withLock { $0.count }, 1, "the download can go on")
      try await giveUp()
      XCTAssertEqual(stored.withLock { $0.count }, 0)
    }

    for _ in 0..<2 { _ = try await store.importBundle(source("mine")) }
    try await store.delete("mine")
    XCTAssertEqual(stored.withLock { $0.count }, 1, "mine 2 uses it")
    try write("{\"note\": \"mine\", \"prefix\": true}", "outside/prefixed/manifest.json")
    _ = try await store.importBundle(source("prefixed"))
    try await store.delete("mine 2")
    XCTAssertEqual(stored.withLock { $0.count }, 1, "a bundle with another manifest uses it")
    try await store.delete("prefixed")
    XCTAssertEqual(stored.withLock { $0.count }, 0)
    XCTAssertEqual(left, [])
  }
}
