// Downloads whose responses are stored before they are given, over sessions of this process: Linux has no background
// sessions. What another process finds is what an earlier transport of this one left.
import Foundation
import Synchronization
import XCTest

@testable import StreamFuseCore

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// The bytes that a call for a file is given, from byte `offset` on. `head` is called before them.
private func readBytes(
  _ transport: BackgroundTransport, _ url: URL, from offset: Int64 = 0, head: @escaping @Sendable () -> Void = {}
) async throws -> Data {
  let bytes = Mutex(Data())
  try await transport.get(url, from: offset, arriving: { _ in }, head: { _ in head() }) { block in
    bytes.withLock { $0 += block }
  }
  return bytes.withLock { $0 }
}

final class BackgroundTransportTests: StoreTestCase {
  private var folder: URL { home.appending(path: "responses") }

  private func transport() -> BackgroundTransport { BackgroundTransport(.ephemeral, folder: folder) }

  private func store(_ transport: BackgroundTransport, freeBytes: Int64 = 1 << 40) -> BundleStore {
    let downloader = Downloader(transport: transport, retries: [.milliseconds(5), .milliseconds(5)])
    return BundleStore(
      root, BundleLimits(), downloader, freeBytes: { _ in freeBytes }, removeCaches: { _, _ in }, checkManifest: { _ in },
      check: { _ in })
  }

  /// Starts a request of which no transport of this process knows, as the session of an earlier process has left it.
  private func startInAnEarlierProcess(_ url: URL) -> (session: URLSession, responses: StoredResponses, name: String) {
    let name = ResponseFiles.name(url, from: 0), responses = StoredResponses(folder)
    let session = URLSession(configuration: .ephemeral, delegate: responses, delegateQueue: nil)
    let task = session.downloadTask(with: URLRequest(url, from: 0))
    task.taskDescription = name
    task.resume()
    return (session, responses, name)
  }

  private var responses: [String] { (try? FileManager.default.contentsOfDirectory(atPath: folder.path)) ?? [] }

  func testABundleIsDownloadedAndNoResponseIsLeft() async throws {
    try publisher.publish([("demo", demo)])
    let steps = Mutex<[Int64]>([])
    let store = store(transport())
    let entry = try await store.catalog(publisher.address).entries[0]
    let bundle = try await store.download(entry) { step in
      if case .receiving(let bytes, _) = step { steps.withLock { $0.append(bytes) } }
    }
    for (path, data) in demo { XCTAssertEqual(try Data(contentsOf: bundle.folder.appending(path: path)), data, path) }
    XCTAssertEqual(steps.withLock { $0 }, steps.withLock { $0.sorted() }, "the bytes that arrive are not counted twice")
    XCTAssertEqual(responses, [])
  }

  func testProgressIsThatOfTheBytesThatArrive() async throws {
    try publisher.publish([("demo", demo)])
    let gate = DispatchSemaphore(value: 0), halfway = Mutex<Int64>(0), manifest = demoBytes - 301_000
    publisher.change { $0.halfway = { path in if path == "demo/model.pte" { gate.wait() } } }
    let store = store(transport())
    let entry = try await store.catalog(publisher.address).entries[0]
    let running = Task {
      try await store.download(entry) { step in
        if case .receiving(let bytes, _) = step { halfway.withLock { $0 = max($0, bytes) } }
      }
    }
    try await until { halfway.withLock { $0 } > manifest + 1_000 + 100_000 }
    XCTAssertLessThan(halfway.withLock { $0 }, demoBytes)
    gate.signal()
    _ = try await running.value
  }

  func testWhatArrivedForAProcessThatEndedIsGivenToTheNextOneWithoutARequest() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry()
    let name = startInAnEarlierProcess(try entry.address(of: "model.pte")).name
    try await until { self.responses.contains("\(name).head") }
    publisher.change { $0.requests = [] }
    let bundle = try await store(transport()).download(entry)
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte").count, 0)
    XCTAssertEqual(try Data(contentsOf: bundle.folder.appending(path: "model.pte")), demo["model.pte"])
    XCTAssertEqual(responses, [])
  }

  func testAPartlyReadResponseIsContinuedByTheNextProcess() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry(), file = try XCTUnwrap(entry.files["model.pte"])
    let name = startInAnEarlierProcess(try entry.address(of: "model.pte")).name
    try await until { self.responses.contains("\(name).head") }
    let part = root.appending(path: ".download-\(entry.id)/\(file.sha256).part")
    try FileManager.default.createDirectory(at: part.deletingLastPathComponent(), withIntermediateDirectories: true)
    try Self.bytes(100_000).write(to: part)
    publisher.change { $0.requests = [] }
    let room = (64 << 20) + demoBytes - 100_000 + 10_000  // it is stored already
    let bundle = try await store(transport(), freeBytes: room).download(entry)
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte"), [])
    XCTAssertEqual(try Data(contentsOf: bundle.folder.appending(path: "model.pte")), demo["model.pte"])
    XCTAssertEqual(responses, [])
  }

  func testACallCancelledWhileReadingContinuesFromThere() async throws {
    let whole = Self.bytes(2_500_000)
    try publisher.publish([("demo", bundle(["model.pte": whole]))])
    let url = try await entry().address(of: "model.pte"), transport = transport()
    let read = Mutex(Data())
    let first = Task {
      try await transport.get(url, from: 0, arriving: { _ in }, head: { _ in }) { block in
        read.withLock { $0 += block }
        withUnsafeCurrentTask { $0?.cancel() }
      }
    }
    let result = await first.result
    XCTAssertThrowsError(try result.get()) { XCTAssert($0 is CancellationError, "\($0)") }
    let count = read.withLock { $0.count }
    XCTAssertEqual(count, 1 << 20)
    let rest = try await readBytes(transport, url, from: Int64(count))
    XCTAssertEqual(rest, whole.dropFirst(count))
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte").count, 1)
    XCTAssertEqual(responses, [])
  }

  func testACallCancelledBeforeItsFirstByteKeepsTheResponse() async throws {
    try publisher.publish([("demo", demo)])
    let url = try await entry().address(of: "model.pte"), transport = transport()
    let first = Task { try await readBytes(transport, url) { withUnsafeCurrentTask { $0?.cancel() } } }
    let result = await first.result
    XCTAssertThrowsError(try result.get()) { XCTAssert($0 is CancellationError, "\($0)") }
    let bytes = try await readBytes(transport, url)
    XCTAssertEqual(bytes, demo["model.pte"])
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte").count, 1)
    XCTAssertEqual(responses, [])
  }

  func testBytesHeldByTheTransportAreCountedAndDiscarded() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry(), store = store(transport())
    publisher.change { $0.statuses["demo/model.pte"] = [404] }
    await refused(.network, "404") { _ = try await store.download(entry) }
    let before = await store.receivedBytes(entry)
    XCTAssertEqual(before, demoBytes - 300_000)
    let name = startInAnEarlierProcess(try entry.address(of: "model.pte")).name
    try await until { self.responses.contains("\(name).head") }
    let stored = await store.receivedBytes(entry)
    XCTAssertEqual(stored, demoBytes)
    try await store.discard(entry)
    let after = await store.receivedBytes(entry)
    XCTAssertEqual(after, 0)
    XCTAssertEqual(responses, [])
  }

  func testAnExpiredResponseIsDeletedAndRequestedAgain() async throws {
    try publisher.publish([("demo", demo)])
    let url = try await entry().address(of: "model.pte")
    let name = startInAnEarlierProcess(url).name
    try await until { self.responses.contains("\(name).head") }
    let body = folder.appending(path: "\(name).body"), old = Date(timeIntervalSinceNow: -8 * 86_400)
    try FileManager.default.setAttributes([.modificationDate: old], ofItemAtPath: body.path)
    let transport = transport()
    XCTAssertEqual(responses, [])
    let bytes = try await readBytes(transport, url)
    XCTAssertEqual(bytes, demo["model.pte"])
  }

  func testDiscardWithoutADownloadFolderReachesTheTransport() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry(), store = store(transport())
    let name = startInAnEarlierProcess(try entry.address(of: "model.pte")).name
    try await until { self.responses.contains("\(name).head") }
    let stored = await store.receivedBytes(entry)
    XCTAssertEqual(stored, 300_000)
    try await store.discard(entry)
    XCTAssertEqual(responses, [])
    XCTAssertEqual(left, [])
  }

  func testADiscardedRequestIsCancelledAndCanBeRepeated() async throws {
    try publisher.publish([("demo", demo)])
    let gate = DispatchSemaphore(value: 0)
    publisher.change { $0.halfway = { path in if path == "demo/model.pte" { gate.wait() } } }
    let url = try await entry().address(of: "model.pte")
    let (session, earlier, _) = startInAnEarlierProcess(url)
    try await until { self.publisher.ranges(of: "demo/model.pte").count == 1 }
    let transport = BackgroundTransport(session, earlier)
    await transport.discard(url)
    publisher.change { $0.halfway = { _ in } }
    gate.signal()
    let bytes = try await readBytes(transport, url)
    XCTAssertEqual(bytes, demo["model.pte"])
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte").count, 2)
    XCTAssertEqual(responses, [])
  }

  func testResumableBytesCountUntilResumedOrDiscarded() async throws {
    let url = try XCTUnwrap(URL(string: publisher.address)), transport = transport()
    let earlier = StoredResponses(folder), name = ResponseFiles.name(url, from: 5)
    earlier.keep(Data([1, 2]), bytes: 1000, for: name)
    let held = await transport.heldBytes(url, from: 5), room = await transport.storageBytes(url, from: 5, of: 3000)
    XCTAssertEqual([held, room], [1000, 2000])
    XCTAssertEqual(earlier.files.resumeData(name), Data([1, 2]))
    XCTAssertEqual(responses, [])
    earlier.keep(Data([3]), bytes: 2000, for: name)
    earlier.discard(url)
    earlier.keep(Data([4]), bytes: 2000, for: name)  // of the request that was cancelled
    let left = await transport.heldBytes(url, from: 5)
    XCTAssertEqual(left, 0)
    XCTAssertEqual(responses, [])
  }

  func testAStoredErrorResponseIsNotReplayed() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry()
    publisher.change { $0.statuses["demo/model.pte"] = [404] }
    let name = startInAnEarlierProcess(try entry.address(of: "model.pte")).name
    try await until { self.responses.contains("\(name).head") }
    _ = try await store(transport()).download(entry)
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte").count, 2)
    XCTAssertEqual(left, ["demo"])
    XCTAssertEqual(responses, [])
  }

  func testAResponseResumedByTheSystemIsComplete() async throws {
    try publisher.publish([("demo", demo)])
    publisher.change { $0.resumedAt["demo/model.pte"] = 100_000 }
    let entry = try await entry()
    let bundle = try await store(transport()).download(entry)
    XCTAssertEqual(try Data(contentsOf: bundle.folder.appending(path: "model.pte")), demo["model.pte"])
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte"), [nil])
    XCTAssertEqual(responses, [])
  }

  func testTheHeadOfAResumedResponseCoversAllItsBytes() {
    func whole(_ status: Int, _ range: String?, from offset: Int64, bytes: Int64) -> String {
      let head = TransportHead(status: status, contentLength: 1, contentRange: range).whole(from: offset, bytes: bytes)
      return "\(head.status) \(head.contentLength ?? -1) \(head.contentRange ?? "none")"
    }
    XCTAssertEqual(whole(206, "bytes 400-999/1000", from: 0, bytes: 1000), "200 1000 none")
    XCTAssertEqual(whole(206, "bytes 400-999/*", from: 0, bytes: 1000), "200 1000 none")
    XCTAssertEqual(whole(206, "bytes 400-999/1000", from: 100, bytes: 900), "206 900 bytes 100-999/1000")
    // Not resumed, or another file than that of the head.
    XCTAssertEqual(whole(206, "bytes 100-999/1000", from: 100, bytes: 900), "206 1 bytes 100-999/1000")
    XCTAssertEqual(whole(206, "bytes 400-999/1000", from: 100, bytes: 600), "206 1 bytes 400-999/1000")
    XCTAssertEqual(whole(206, "bytes 400", from: 0, bytes: 1000), "206 1 bytes 400")
    XCTAssertEqual(whole(200, nil, from: 0, bytes: 1000), "200 1 none")
  }

  func testAFileHasRoomTwiceUnlessItIsStoredAlready() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry(), once = (64 << 20) + demoBytes + 10_000
    publisher.change { $0.requests = [] }
    await refused(.noSpace, "make room and try again") { [store = store(transport(), freeBytes: once)] in
      _ = try await store.download(entry)
    }
    XCTAssertEqual(publisher.requests, [])
    _ = try await store(transport(), freeBytes: once + 300_000).download(entry)
    try await store(transport()).delete("demo")

    let name = startInAnEarlierProcess(try entry.address(of: "model.pte")).name
    try await until { self.responses.contains("\(name).head") }
    _ = try await store(transport(), freeBytes: once).download(entry)
    XCTAssertEqual(left, ["demo"])
  }

  func testARequestThatRunsIsNotMadeTwice() async throws {
    try publisher.publish([("demo", demo)])
    let gate = DispatchSemaphore(value: 0)
    publisher.change { $0.halfway = { path in if path == "demo/model.pte" { gate.wait() } } }
    let entry = try await entry()
    let (session, responses, _) = startInAnEarlierProcess(try entry.address(of: "model.pte"))
    try await until { self.publisher.ranges(of: "demo/model.pte").count == 1 }
    let transport = BackgroundTransport(session, responses)
    let running = Task { [store = store(transport)] in try await store.download(entry) }
    try await until { self.publisher.requests.contains { $0.path == "demo/model.mlpackage/Data/weights #1.bin" } }
    try await Task.sleep(for: .milliseconds(100))
    gate.signal()
    _ = try await running.value
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte").count, 1)
  }

  func testCallsForTheSameBytesShareOneRequest() async throws {
    try publisher.publish([("demo", demo)])
    let gate = DispatchSemaphore(value: 0)
    publisher.change { $0.halfway = { path in if path == "demo/model.pte" { gate.wait() } } }
    let url = try await entry().address(of: "model.pte"), transport = transport()
    let calls = (0..<8).map { _ in Task { try await readBytes(transport, url) } }
    try await until { self.publisher.ranges(of: "demo/model.pte").count > 0 }
    try await Task.sleep(for: .milliseconds(100))
    calls[0].cancel()
    calls[5].cancel()
    try await Task.sleep(for: .milliseconds(50))
    for _ in 0..<10 { gate.signal() }
    for (number, call) in calls.enumerated() {
      switch await call.result {
      case .success(let bytes): XCTAssertEqual(bytes, demo["model.pte"], "\(number)")
      case .failure(let error): XCTAssert([0, 5].contains(number) && error is CancellationError, "\(number): \(error)")
      }
    }
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte").count, 1)
    XCTAssertEqual(responses, [])
  }

  func testAStoredResponseIsThereUntilAllCallsForItHaveReadIt() async throws {
    try publisher.publish([("demo", demo)])
    let url = try await entry().address(of: "model.pte"), transport = transport()
    let gate = DispatchSemaphore(value: 0), isReading = Mutex(false)
    let first = Task {
      try await readBytes(transport, url) {
        isReading.withLock { $0 = true }
        gate.wait()
      }
    }
    try await until { isReading.withLock { $0 } }
    let second = try await readBytes(transport, url)
    gate.signal()
    let bytes = try await first.value
    XCTAssertEqual([bytes, second], [demo["model.pte"], demo["model.pte"]])
    XCTAssertEqual(publisher.ranges(of: "demo/model.pte").count, 1)
    XCTAssertEqual(responses, [])
  }

  func testACallAfterOneThatWasCancelledMakesARequestOfItsOwn() async throws {
    try publisher.publish([("demo", demo)])
    let gate = DispatchSemaphore(value: 0)
    publisher.change { $0.halfway = { path in if path == "demo/model.pte" { gate.wait() } } }
    let url = try await entry().address(of: "model.pte"), transport = transport()
    let first = Task { try await readBytes(transport, url) }
    try await until { self.publisher.ranges(of: "demo/model.pte").count == 1 }
    publisher.change { $0.halfway = { _ in } }
    first.cancel()
    let second = Task { try await readBytes(transport, url) }
    try await Task.sleep(for: .milliseconds(50))
    gate.signal()
    let bytes = try await second.value
    XCTAssertEqual(bytes, demo["model.pte"])
    XCTAssertEqual(responses, [])
  }

  func testAResponseWhoseBytesAreRefusedIsNotKept() async throws {
    try publisher.publish([("demo", demo)])
    let url = try await entry().address(of: "model.pte"), folder = folder
    await refused(.badFile, "too many bytes") {
      try await self.transport().get(
        url, from: 0,
        arriving: { _ in
          let isStored = {
            try FileManager.default.contentsOfDirectory(atPath: folder.path).contains { $0.hasSuffix(".head") }
          }
          for _ in 0..<2000 where try !isStored() { Thread.sleep(forTimeInterval: 0.005) }
          throw StreamFuseError(.badFile, "too many bytes")
        }, head: { _ in }, body: { _ in })
    }
    XCTAssertEqual(responses, [])
  }

  func testErrorsAndRefusalsAreThoseOfTheOtherTransport() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry(), store = store(transport())
    publisher.change { $0.statuses["demo/model.pte"] = [503] }
    _ = try await store.download(entry)
    try await store.delete("demo")
    publisher.change { $0.statuses["demo/model.pte"] = [404] }
    await refused(.network, "404") { _ = try await store.download(entry) }
    publisher.change { $0.files["demo/model.pte"] = Data(count: 300_000) }
    await refused(.badFile, "model.pte is not the file of the catalogue") { _ = try await store.download(entry) }
    publisher.change {
      $0.files["demo/model.pte"] = Self.bytes(900_000)
      $0.tellsSize = false
    }
    await refused(.badFile, "model.pte is larger on the server") { _ = try await store.download(entry) }
    XCTAssertEqual(responses, [])
  }

  func testADownloadThatIsCancelledEndsItsRequest() async throws {
    try publisher.publish([("demo", demo)])
    let gate = DispatchSemaphore(value: 0)
    publisher.change { $0.halfway = { path in if path == "demo/model.pte" { gate.wait() } } }
    let entry = try await entry(), store = store(transport())
    let running = Task { try await store.download(entry) }
    try await until { self.publisher.ranges(of: "demo/model.pte").count == 1 }
    running.cancel()
    do {
      _ = try await running.value
      XCTFail("it was not cancelled")
    } catch { XCTAssert(error is CancellationError, "\(error)") }
    for _ in 0..<10 { gate.signal() }
    publisher.change { $0.halfway = { _ in } }
    _ = try await store.download(entry)
    XCTAssertEqual(left, ["demo"])
  }

  func testTheHandlerOfTheAppIsCalledWhenWhatArrivedIsGiven() async throws {
    try publisher.publish([("demo", demo)])
    let entry = try await entry(), transport = transport(), called = Counter()
    transport.handleEvents { called.count.withLock { $0 += 1 } }
    try await Task.sleep(for: .milliseconds(50))
    XCTAssertEqual(called.count.withLock { $0 }, 0, "the session has not delivered its events")
    _ = try await store(transport).download(entry)
    transport.deliveredEvents()
    try await until { called.count.withLock { $0 } > 0 }
    XCTAssertEqual(called.count.withLock { $0 }, 1)
  }

  func testACatalogueThatIsStoredIsRequestedAgain() async throws {
    try publisher.publish([("demo", demo)])
    let name = startInAnEarlierProcess(try XCTUnwrap(URL(string: publisher.address))).name
    try await until { self.responses.contains("\(name).head") }
    try publisher.publish([("other", demo)])
    let entries = try await store(transport()).catalog(publisher.address).entries
    XCTAssertEqual(entries.map(\.name), ["other"])
  }

  func testTheHandlerOfTheAppWaitsForAResponseThatNoCallHasReadYet() async throws {
    try publisher.publish([("demo", demo)])
    let url = try await entry().address(of: "model.pte"), called = Counter()
    let (_, responses, name) = startInAnEarlierProcess(url)
    try await until { self.responses.contains("\(name).head") }
    responses.handleEvents { called.count.withLock { $0 += 1 } }
    responses.deliveredEvents()
    try await Task.sleep(for: .milliseconds(1300))
    XCTAssertEqual(called.count.withLock { $0 }, 0, "the app may be suspended after it")
    try await responses.give(name, from: 0, head: { _ in }, body: { _ in })
    try await until { called.count.withLock { $0 } == 1 }
  }

  func testACompletionHandlerIsCalledOnceAndNotByAnEarlierTimer() async throws {
    let responses = StoredResponses(folder), first = Counter(), second = Counter(), third = Counter()
    responses.deliveredEvents()
    responses.handleEvents(within: 0.2) { first.count.withLock { $0 += 1 } }
    responses.handleEvents { second.count.withLock { $0 += 1 } }
    try await Task.sleep(for: .milliseconds(500))
    XCTAssertEqual(first.count.withLock { $0 }, 1)
    XCTAssertEqual(second.count.withLock { $0 }, 0, "its session has not delivered its events")
    responses.handleEvents(within: 0.2) { third.count.withLock { $0 += 1 } }
    try await until { third.count.withLock { $0 } == 1 }
    XCTAssertEqual(second.count.withLock { $0 }, 0, "it has more time")
    responses.deliveredEvents()
    try await until { second.count.withLock { $0 } == 1 }
  }
}
