import Foundation
import XCTest

@testable import AppModel

/// The Xcode project is written by hand: it is well-formed, and what it names exists. Only Xcode itself can say more.
final class XcodeProjectTests: XCTestCase {
  func testEveryReferenceOfTheProjectLeadsSomewhere() throws {
    let app = URL(filePath: #filePath).appending(path: "../../..").standardizedFileURL
    let place = app.appending(path: "StreamFuseDemo")
    let text = try Data(contentsOf: place.appending(path: "StreamFuseDemo.xcodeproj/project.pbxproj"))
    let project = try XCTUnwrap(PropertyListSerialization.propertyList(from: text, format: nil) as? [String: Any])
    let objects = try XCTUnwrap(project["objects"] as? [String: [String: Any]])

    /// All strings in a value, keys aside.
    func strings(_ value: Any) -> [String] {
      switch value {
      case let text as String: [text]
      case let list as [Any]: list.flatMap(strings)
      case let table as [String: Any]: table.values.flatMap(strings)
      default: []
      }
    }
    let identifiers = strings(project).filter { $0.wholeMatch(of: /[0-9A-F]{24}/) != nil }
    XCTAssertEqual(Set(identifiers), Set(objects.keys), "all are defined, and all are used")

    func all(_ isa: String) -> [[String: Any]] { objects.values.filter { $0["isa"] as? String == isa } }
    let sources = all("PBXFileReference").filter { $0["sourceTree"] as? String == "<group>" }
    XCTAssertFalse(sources.isEmpty)
    for source in sources {
      let path = source["path"] as? String ?? ""
      XCTAssertTrue(FileManager.default.fileExists(atPath: place.appending(path: path).path), path)
    }
    let manifest = try String(contentsOf: app.appending(path: "Package.swift"), encoding: .utf8)
    for product in all("XCSwiftPackageProductDependency") {
      XCTAssertTrue(manifest.contains(".library(name: \"\(product["productName"] as? String ?? "")\""))
    }
  }

  func testTheStringCatalogHasAllWords() throws {
    struct Catalog: Decodable {
      struct Entry: Decodable { let extractionState: String }
      let sourceLanguage: String
      let strings: [String: Entry]
    }
    let file = URL(filePath: #filePath).appending(path: "../../../StreamFuseDemo/Localizable.xcstrings").standardizedFileURL
    let catalog = try JSONDecoder().decode(Catalog.self, from: Data(contentsOf: file))
    XCTAssertEqual(catalog.sourceLanguage, "en")
    // Xcode finds none of them in the target's code, and would drop those that are not marked so.
    XCTAssertEqual(Set(catalog.strings.values.map(\.extractionState)), ["manual"])
    let wanted = Set(Word.allCases.map(\.rawValue))
    XCTAssertEqual(Set(catalog.strings.keys).symmetricDifference(wanted).sorted(), [])
  }
}
