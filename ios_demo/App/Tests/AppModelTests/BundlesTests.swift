import Foundation
import StreamFuseCore
import XCTest

@testable import AppModel

/// The bundles screen: what a publisher has and what becomes of it on this device, and what comes in from other apps.
/// What is untrusted in both is tested with the library's store.
final class BundlesTests: AppTestCase {
  private let publisher = FakePublisher()
  private let demo = try! bundle(["model.pte": Data(count: 100_000)])
  private var second: [String: Data] { get throws { try bundle(demo, note: "second") } }
  /// The bytes of `demo` when half of the model is there.
  private var half: Int64 { Int64((demo["manifest.json"]?.count ?? 0) + 50_000) }
  private var left: [String] {
    (try? FileManager.default.contentsOfDirectory(atPath: root.appending(path: "bundles").path)) ?? []
  }

  /// A folder that the user may choose.
  private func outside(_ files: [String: String] = ["manifest.json": "{}"]) throws -> URL {
    let folder = root.appending(path: "outside/demo")
    for (path, text) in files { try write(text, to: folder.appending(path: path)) }
    return folder
  }

  private func asked(_ bundles: BundlesModel) async -> [Offer] {
    await bundles.ask(FakePublisher.address)?.value
    return bundles.offers
  }

  func testWhatIsDownloadedIsUsedWhereNothingIsInUseAndCanBeHadAgainWhenItIsDeleted() async throws {
    try publisher.publish([("demo", demo), ("other", try second)])
    let parts = start(publisher), bundles = parts.bundles
    let offers = await asked(bundles)
    XCTAssertEqual(offers.map(\.entry.title), ["The demo", "The other"])
    XCTAssertEqual(offers.map(\.state), [.available, .available])
    XCTAssertEqual(offers[0].facts, "100 KB · licence apache-2.0 · context of 1024 tokens")
    await bundles.download(offers[0].entry)?.value
    XCTAssertEqual(bundles.offers.map(\.state), [.installed, .available])
    XCTAssertEqual(bundles.offers[0].text, "On this device")
    XCTAssertEqual(bundles.chosen, "demo")
    try await ready(parts.chat)
    await bundles.download(offers[1].entry)?.value
    XCTAssertEqual(bundles.installed?.map(\.name), ["demo", "other"])
    XCTAssertEqual(bundles.chosen, "demo")
    await bundles.delete("demo").value
    XCTAssertEqual(bundles.offers.map(\.state), [.available, .installed])
    XCTAssertEqual(bundles.message, "demo is deleted.")
    XCTAssertEqual(library.forgotten, [demo["manifest.json"]])
  }

  func testADownloadIsPausedIsStillThereInANewProcessGoesOnAndIsDiscarded() async throws {
    try publisher.publish([("demo", demo)])
    let gate = DispatchSemaphore(value: 0)
    publisher.change { $0.gate = gate }
    let parts = start(publisher), bundles = parts.bundles
    let entry = await asked(bundles)[0].entry
    let task = try XCTUnwrap(bundles.download(entry))
    XCTAssertNil(bundles.download(entry), "once")
    try await until { bundles.offers[0].state == .downloading(half) }
    XCTAssertTrue(parts.isBusy)
    XCTAssertEqual(try XCTUnwrap(bundles.offers[0].fraction), 0.5, accuracy: 0.001)
    bundles.pause(entry)
    await task.value
    XCTAssertFalse(parts.isBusy)
    XCTAssertEqual(bundles.offers[0].state, .paused(half))
    XCTAssertEqual(bundles.offers[0].text, "Paused at 50 KB of 100 KB")
    publisher.change { $0.gate = nil }
    let again = start(publisher).bundles
    XCTAssertEqual(again.catalog, FakePublisher.address)
    let offers = await asked(again)
    XCTAssertEqual(offers[0].state, .paused(half))
    await again.discard(entry).value
    XCTAssertEqual(again.offers[0].state, .available)
    XCTAssertEqual(left, [])
    await again.download(entry)?.value
    XCTAssertEqual(again.offers[0].state, .installed)
  }

  func testARunningDownloadKeepsItsRowWhenAnotherCatalogueIsShown() async throws {
    try publisher.publish([("demo", demo)])
    let gate = DispatchSemaphore(value: 0)
    publisher.change { $0.gate = gate }
    let bundles = start(publisher).bundles
    let entry = await asked(bundles)[0].entry
    let task = try XCTUnwrap(bundles.download(entry))
    try await until { bundles.offers[0].state == .downloading(half) }
    try publisher.publish([("demo", try second)])
    let offers = await asked(bundles)
    XCTAssertEqual(offers.map(\.state), [.available, .downloading(half)])
    XCTAssertEqual(offers.last?.entry.id, entry.id)
    bundles.pause(entry)
    await task.value
    XCTAssertEqual(bundles.offers.map(\.state), [.available, .paused(half)])
    publisher.change { $0.gate = nil }
    await bundles.download(entry)?.value
    XCTAssertEqual(bundles.offers.map(\.state), [.available, .installed])
  }

  func testTheErrorOfADownloadIsShownInItsRowAndThatOfACatalogueBelow() async throws {
    try publisher.publish([("demo", demo), ("damaged", try bundle(demo.merging(["damaged": Data([1])]) { $1 })), ("npu", demo)]) { entry in
      if entry["name"] as? String == "npu" { entry["backend"] = "qnn" }
    }
    let bundles = start(publisher).bundles
    let offers = await asked(bundles)
    XCTAssertEqual(offers[2].state, .unsupported("this library has no backend qnn"))
    XCTAssertEqual(offers[2].text, "Not for this device: this library has no backend qnn.")
    await bundles.download(offers[1].entry)?.value
    XCTAssertEqual(bundles.offers[1].text, "model.pte is not the file that the manifest names.")
    XCTAssertEqual(bundles.offers[1].state, .available)
    publisher.change { $0.statuses["/demo/model.pte"] = 404 }
    await bundles.download(offers[0].entry)?.value
    XCTAssertEqual(bundles.offers[0].state, .paused(half - 50_000))
    XCTAssert(bundles.offers[0].error?.contains("404") ?? false, bundles.offers[0].error ?? "")
    await bundles.ask("http://models.example")?.value
    XCTAssert(bundles.message?.contains("https://") ?? false, bundles.message ?? "")
    XCTAssertEqual(bundles.offers.count, 3, "what was there stays")
    try publisher.publish([])
    _ = await asked(bundles)
    XCTAssertEqual(bundles.message, "This catalogue is empty.")
  }

  func testACancelledImportLeavesNothing() async throws {
    let parts = start()
    let source = try outside()
    let task = try XCTUnwrap(parts.bundles.take(source))
    XCTAssertNil(parts.bundles.take(source), "one at a time")
    parts.bundles.cancel()
    await task.value
    XCTAssertEqual(parts.bundles.message, "The import was cancelled; nothing was kept.")
    XCTAssertNil(parts.bundles.importing)
    XCTAssertEqual(left, [])
  }

  func testAnImportThatTheLibraryRefusesIsNotListed() async throws {
    let parts = start()
    await parts.bundles.take(try outside(["manifest.json": "{}", "damaged": ""]))?.value
    XCTAssertEqual(parts.bundles.message, "model.pte is not the file that the manifest names.")
    XCTAssertEqual(left, [])
  }

  func testAnImportIsUsedAndADeletedBundleIsGoneAndWhatAnEndedProcessLeftIsSwept() async throws {
    try write("", to: root.appending(path: "bundles/.unfinished-1/model.pte"))
    let parts = start()
    await parts.bundles.take(try outside())?.value
    XCTAssertEqual(parts.bundles.message, "demo is checked and in use.")
    XCTAssertEqual(parts.bundles.chosen, "demo")
    XCTAssertEqual(parts.chat.state.phase, .ready)
    await parts.bundles.delete("demo").value
    XCTAssertEqual(parts.chat.state.phase, .noBundle)
    XCTAssertEqual(parts.bundles.installed, [])
    XCTAssertEqual(left, [])
  }
}
