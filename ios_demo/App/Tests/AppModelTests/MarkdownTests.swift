import StreamFuseCore
import XCTest

@testable import AppModel

/// Answers in blocks of Markdown, in whatever pieces they come.
final class MarkdownTests: XCTestCase {
  private func blocks(_ text: String) -> [Block] {
    var markdown = Markdown()
    markdown.append(text, .model)
    return markdown.blocks
  }

  /// A word for each kind, and the text.
  private func outline(_ text: String) -> [String] {
    blocks(text).map { block in
      let kind =
        switch block.kind {
        case .paragraph: "p"
        case .heading(let level): "h\(level)"
        case .item(let marker, let depth): String(repeating: ">", count: depth) + marker
        case .quote: "quote"
        case .code(let language): "code(\(language))"
        case .table: "table"
        case .rule: "rule"
        }
      return "\(kind)|\(block.text)"
    }
  }

  private let sample = """
    # A title
    Some **bold** text
    that goes on.

    ## Steps
    1. First
       and more
    2. Second
       - inner *one*
         - deeper
       - inner two
    3) Third

    * star
    + plus

    > quoted
    > twice

    ```swift
    let x = "# no heading"

      - no list
    ```
    after
    ---
    | a | b |
    |---|---|
    ~~~
    a ``` b
    ~~~~
    #hash is no heading, -dash is no item, 3.14 is a number
    """

  func testBlocksThatModelsWrite() {
    XCTAssertEqual(
      outline(sample),
      [
        "h1|A title", "p|Some **bold** text\nthat goes on.", "h2|Steps", "1.|First\nand more", "2.|Second", ">•|inner *one*",
        ">>•|deeper", ">•|inner two", "3)|Third", "•|star", "•|plus", "quote|quoted\ntwice",
        "code(swift)|let x = \"# no heading\"\n\n  - no list", "p|after", "rule|", "table|| a | b |\n|---|---|",
        "code()|a ``` b", "p|#hash is no heading, -dash is no item, 3.14 is a number",
      ])
  }

  func testAnyPiecesGiveTheSameBlocks() {
    for size in [1, 2, 3, 7, 50] {
      var markdown = Markdown()
      var rest = Substring(sample)
      while !rest.isEmpty {
        markdown.append(String(rest.prefix(size)), .model)
        rest = rest.dropFirst(size)
      }
      XCTAssertEqual(markdown.blocks, blocks(sample), "pieces of \(size)")
    }
  }

  func testABlockIsThereBeforeItsEnd() {
    XCTAssertEqual(outline("Look:\n```py\nprint("), ["p|Look:", "code(py)|print("])
    XCTAssertEqual(outline("- a\n- "), ["•|a", "•|"])
    XCTAssertEqual(outline("\n\n"), [])
    XCTAssertEqual(outline("1. a\n   ```\n   x\n     y\n   ```\n2. b"), ["1.|a", "code()|x\n  y", "2.|b"])
  }

  func testTheCostOfAPieceDoesNotGrowWithTheAnswer() {
    func time(_ lines: Int) -> Double {
      var markdown = Markdown()
      for _ in 0..<lines { markdown.append("- a line\n", .model) }
      let clock = ContinuousClock()
      return (0..<5).map { _ in
        clock.measure { for _ in 0..<200 { markdown.append("- a line\n", .model) } } / .milliseconds(1)
      }.min()!
    }
    _ = time(100)
    XCTAssertLessThan(time(3000), 4 * time(100) + 5)
  }

  func testLongCodeIsDrawnInPartsOfWhichOnlyTheLastChanges() {
    let code = "```\n" + (0..<100).map { "line \($0)" }.joined(separator: "\n")
    let before = blocks(code)[0].parts(of: 40), after = blocks(code + "\nmore")[0].parts(of: 40)
    XCTAssertEqual(before.map(\.lines.count), [40, 40, 20])
    XCTAssertEqual(Array(before.prefix(2)), Array(after.prefix(2)))
    XCTAssertEqual(after[2].text.suffix(5), "\nmore")
  }

  func testLinesKeepWhoDraftedThem() {
    var markdown = Markdown()
    markdown.append("- He", .model)
    markdown.append("llo\nwor", .streams)
    markdown.append("ld", .table)
    XCTAssertEqual(markdown.blocks.count, 1)
    XCTAssertEqual(
      markdown.blocks[0].runs,
      [Run(text: "He", source: .model), Run(text: "llo\nwor", source: .streams), Run(text: "ld", source: .table)])
  }

  func testDraftedPartsAreFoundInWhatIsDrawn() {
    let written = [
      Run(text: "a **bo", source: .model), Run(text: "ld** wo", source: .streams),
      Run(text: "rd [x](http://a.b/c) *", source: .lookup), Run(text: "end*", source: .table),
    ]
    XCTAssertEqual(
      sources(of: "a bold word x end", in: written),
      [
        Run(text: "a bo", source: .model), Run(text: "ld wo", source: .streams), Run(text: "rd x ", source: .lookup),
        Run(text: "end", source: .table),
      ])
    XCTAssertEqual(sources(of: "é", in: []), [Run(text: "é", source: .model)])
  }

  func testAQuestionIsNoMarkdownAndASavedAnswerIs() throws {
    XCTAssertEqual(Turn.question("# x").markdown.blocks, [])
    let turn = Turn(role: .assistant, runs: [Run(text: "# x", source: .table)])
    let again = try JSONDecoder().decode(Turn.self, from: JSONEncoder().encode(turn))
    XCTAssertEqual(again, turn)
    XCTAssertEqual(again.markdown.blocks.map(\.kind), [.heading(1)])
  }
}
