// Loading with progress, its end before it is done, the estimate, the self-test, and memory that is given back.
import Arithmetic
import Foundation
import StreamFuse
import Synchronization
import XCTest

final class LoadTests: XCTestCase {
  func testLoadingReportsAFractionThatEndsAtOne() async throws {
    let seen = Mutex<[Double]>([])
    _ = try await StreamFuse.load(from: made("build/demo"), progress: { fraction in seen.withLock { $0.append(fraction) } })
    let fractions = seen.withLock { $0 }
    XCTAssertEqual(fractions, fractions.sorted())
    XCTAssertEqual(fractions.last, 1)
    let engine = ArithmeticEngine(spec: .arithmetic(deferred: false))
    seen.withLock { $0 = [] }
    _ = try await StreamFuse.load(
      from: made("build/ios/letters/fused"), progress: { fraction in seen.withLock { $0.append(fraction) } },
      engine: { _, _ in
        XCTAssertLessThanOrEqual(seen.withLock { $0.last ?? 0 }, 0.5)
        return engine
      })
    XCTAssertEqual(seen.withLock { $0.last }, 1)
  }

  func testACancelledLoadThrowsCancellationError() async throws {
    let folder = try made("build/demo")
    let (begun, bytes) = AsyncStream.makeStream(of: Double.self)
    let loading = Task {
      try await StreamFuse.load(from: folder, progress: { if $0 > 0 { bytes.yield($0) } })
    }
    for await _ in begun { break }  // some bytes are checked
    loading.cancel()
    do {
      _ = try await loading.value
      XCTFail("it was not cancelled")
    } catch is CancellationError {}
  }

  func testTheEstimateIsWhatTheBundlesFilesAndCacheTake() throws {
    let demo = try made("build/demo").resolvingSymlinksInPath()
    let found = try StreamFuse.estimate(demo)
    let size = try demo.appending(path: "model.pte").resourceValues(forKeys: [.fileSizeKey]).fileSize
    XCTAssertEqual(found.weightsBytes, size)
    XCTAssertEqual(found.cacheBytes, 2 * 30 * 1024 * 3 * 70)  // layers, positions, heads, bytes of a key or value
    XCTAssertEqual(found.totalBytes(chats: 2), found.weightsBytes + found.tablesBytes + 2 * found.cacheBytes)
    XCTAssertThrowsError(try StreamFuse.estimate(temporaryFolder())) {
      XCTAssertEqual(($0 as? StreamFuseError)?.code, .badFile)
    }
  }

  func testACompiledPackageStaysWhileABundleThatDiffersInItsPrefixUsesIt() async throws {
    let demo = try made("build/demo"), prefixed = try made("build/ios/prefix"), compiled = temporaryFolder()
    let identity = Mutex("")
    _ = try? await StreamFuse.load(
      from: demo,
      engine: { spec, _ -> ArithmeticEngine in
        identity.withLock { $0 = spec.identity }
        throw CancellationError()
      })
    let kept = compiled.appending(path: identity.withLock { $0.prefix(64) } + ".mlmodelc")
    try FileManager.default.createDirectory(at: kept, withIntermediateDirectories: true)
    await StreamFuse.removeCaches(of: demo, unlessUsedBy: [compiled, prefixed]) { $0.compiledFolder = compiled }
    XCTAssert(FileManager.default.fileExists(atPath: kept.path))
    await StreamFuse.removeCaches(of: demo, unlessUsedBy: [compiled]) { $0.compiledFolder = compiled }
    XCTAssertFalse(FileManager.default.fileExists(atPath: kept.path))
  }

  func testTheSelfTestOfTheRealBundleGivesTheRecordedBits() async throws {
    let found = try await opened("build/demo").selfTest()
    XCTAssert(found.passed && found.equal && found.tokensEqual, "\(found.differences)")
    XCTAssertEqual(Set(found.methods.keys), ["decode", "streams", "verify_4", "verify_8", "verify_16"])
    XCTAssertEqual(found.methods["verify_8"]?.nodes, 8)
  }

  func testTheSelfTestOfADamagedBundleNamesTheFigures() async throws {
    let folder = temporaryFolder()
    try FileManager.default.copyItem(at: made("build/demo").resolvingSymlinksInPath(), to: folder)
    defer { try? FileManager.default.removeItem(at: folder) }
    let file = folder.appending(path: "model.pte")
    var program = try Data(contentsOf: file)
    for place in program.count / 2..<program.count / 2 + 4096 { program[place] ^= 0x11 }
    try program.write(to: file)
    let model = try await StreamFuse.load(from: folder) { $0.checkHashes = false }
    let found = try await model.selfTest()
    XCTAssertFalse(found.passed)
    XCTAssert(found.differences.contains { $0.contains("snr_db is") }, "\(found.differences)")
    let recorded = folder.appending(path: "selftest.npz")
    var damaged = try Data(contentsOf: recorded)
    damaged[5000] ^= 1
    try damaged.write(to: recorded)
    do {
      _ = try await model.selfTest()
      XCTFail("the damage was missed")
    } catch let error as StreamFuseError {
      XCTAssertEqual(error.code, .badFile)
    }
  }

  func testATrimmedChatGoesOnWithTheSameText() async throws {
    let model = try await lettersModel()
    let (chat, other, answering) = (model.chat(), model.chat(), model.chat())
    for one in [chat, other] { try await one.respond(to: "abc") { $0.maxNewTokens = 12 } }
    let pieces = answering.stream(to: "abc") { $0.maxNewTokens = 12 }.makeAsyncIterator()
    _ = try await pieces.next()
    try await model.trim()  // not the one that answers
    var rest = 0
    while try await pieces.next() != nil { rest += 1 }
    XCTAssertGreaterThan(rest, 5)
    try await chat.trim()
    let messages = try await (chat.messages, other.messages)
    XCTAssertEqual(messages.0, messages.1)
    let (mine, theirs) = try await (
      chat.respond(to: "de") { $0.maxNewTokens = 12 }, other.respond(to: "de") { $0.maxNewTokens = 12 }
    )
    XCTAssertEqual(mine.tokens, theirs.tokens)
  }
}
