import Foundation
import XCTest

@testable import AppModel

/// Both apps show the same words.
final class SameAsAndroidTests: XCTestCase {
  private let repository = URL(filePath: #filePath).appending(path: "../../../../..").standardizedFileURL

  /// Names and values of one of the Android app's resources.
  private func resource(_ path: String) throws -> [String: String] {
    let xml = try String(
      contentsOf: repository.appending(path: "android_demo/app/src/main/res/\(path).xml"), encoding: .utf8)
    return Dictionary(
      uniqueKeysWithValues: xml.matches(of: /<string name="(\w+)">(.*)<\//).map { match in
        var value = String(match.2)
        if value.hasPrefix("\"") { value = String(value.dropFirst().dropLast()) }  // keeps spaces
        for (from, to) in [("\\'", "'"), ("\\\"", "\""), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")] {
          value = value.replacing(from, with: to)
        }
        return (String(match.1), value)
      })
  }

  /// topKHelp is top_k_help, and suggestion1 is suggestion_1.
  private func name(_ swift: String) -> String { swift.replacing(/[A-Z0-9]/) { "_" + $0.0.lowercased() } }

  func testWords() throws {
    let android = try resource("values/strings")
    // Android unpacks zips, names what its buttons have more of, and names its version and its threads itself.
    let own: Set<Word> = [.noneInstalled, .more, .reportSystem, .reportBundle]
    for word in Word.allCases where !own.contains(word) {
      XCTAssertEqual(word.rawValue, android[name("\(word)")], "\(word)")
    }
  }

  func testArgumentsStayWhatTheyAre() {
    XCTAssertEqual(Word.acceptedOf(3, 8), "3 of 8 drafted tokens accepted")
    XCTAssertEqual(Word.useNamed("%2$s \\1", "5 MB"), "Use %2$s \\1, 5 MB")
  }
}
