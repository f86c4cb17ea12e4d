// Hashes of the test vectors of FIPS 180-4, in one block and in several.
import Foundation
import XCTest

@testable import StreamFuseCore

final class HashTests: XCTestCase {
  func testVectors() {
    XCTAssertEqual(sha256(Data()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    XCTAssertEqual(sha256(Data("abc".utf8)), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    let long = Data(repeating: UInt8(ascii: "a"), count: 1_000_000)
    let digits = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
    XCTAssertEqual(sha256(long), digits)
    var parts = FileHash()
    for start in stride(from: 0, to: 1_000_000, by: 777) { parts.update(long[start..<min(start + 777, 1_000_000)]) }
    XCTAssertEqual(parts.digits(), digits)
  }
}
