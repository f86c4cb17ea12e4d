import StreamFuseCore

/// A block of Markdown. Its lines keep who proposed each part of them.
public struct Block: Sendable, Equatable {
  /// What kind of block.
  public enum Kind: Sendable, Equatable {
    case paragraph
    /// A heading of level 1 to 6.
    case heading(Int)
    /// An item of a list: `-` or its number, and how many lists it is in, from 0.
    case item(marker: String, depth: Int)
    case quote
    /// Code between fences, of a language or none.
    case code(language: String)
    case table
    case rule
  }

  /// What kind of block.
  public let kind: Kind
  /// Its lines, without the block's markers; inline markup is kept.
  public internal(set) var lines: [[Run]]

  /// Its text.
  public var text: String { lines.map { $0.map(\.text).joined() }.joined(separator: "\n") }

  /// The block in parts of `count` lines each; a new line changes only the last one.
  public func parts(of count: Int) -> [Block] {
    stride(from: 0, to: lines.count, by: count).map {
      Block(kind: kind, lines: Array(lines[$0..<min($0 + count, lines.count)]))
    }
  }

  /// Its parts, with the ends of lines.
  public var runs: [Run] {
    var all: [Run] = []
    for (number, line) in lines.enumerated() {
      if number > 0 { all.append("\n", line.first?.source ?? .model) }
      for run in line { all.append(run.text, run.source) }
    }
    return all
  }
}

/// Incrementally parsed Markdown: appending costs time in proportion to the new text and the last line, however long
/// the whole is. It parses the blocks that models write; inline markup is left to the view.
public struct Markdown: Sendable, Equatable {
  /// What the next line depends on.
  private struct Place: Sendable, Equatable {
    /// The fence that ends the code that is open, and how far it is indented.
    var fence: (marks: String, indent: Int)?
    /// Whether the next line may go on with the last block.
    var open = false
    /// How far the items of the open lists are indented.
    var indents: [Int] = []

    static func == (left: Self, right: Self) -> Bool {
      left.fence?.marks == right.fence?.marks && left.open == right.open && left.indents == right.indents
    }
  }

  /// The blocks so far.
  public private(set) var blocks: [Block] = []
  /// The last line, which may go on.
  private var line: [Run] = []
  /// The place before that line.
  private var place = Place()
  /// How the last line changed the blocks, to undo it when the line grows.
  private var tentative = Change.none
  private enum Change: Equatable { case none, block, line }

  /// Empty text.
  public init() {}

  /// Adds text of one source.
  mutating func append(_ text: String, _ source: Source) {
    undo()
    var rest = Substring(text)
    var now = place
    while let end = rest.firstIndex(where: \.isNewline) {
      line.append(String(rest[..<end]), source)
      _ = take(line, &now)
      line = []
      rest = rest[rest.index(after: end)...]
    }
    place = now
    line.append(String(rest), source)
    if !line.isEmpty { tentative = take(line, &now) }
  }

  private mutating func undo() {
    switch tentative {
    case .none: break
    case .block: blocks.removeLast()
    case .line: blocks[blocks.count - 1].lines.removeLast()
    }
    tentative = .none
  }

  /// Adds a line at a place. Returns how it changed the blocks.
  private mutating func take(_ line: [Run], _ place: inout Place) -> Change {
    let text = line.map(\.text).joined()
    if let fence = place.fence {
      if isEnd(text, of: fence.marks) {
        place = Place()
        return .none
      }
      return add(line.dropping(min(fence.indent, text.prefix { $0 == " " }.count)))
    }
    if text.allSatisfy(\.isWhitespace) {
      place.open = false
      return .none
    }
    let mark = LineMark(text)
    switch mark.kind {
    case .fence(let fence, let language):
      place = Place(fence: (fence, mark.indent))
      return begin(.code(language: language), nil)
    case .heading(let level):
      place = Place()
      return begin(.heading(level), line.dropping(mark.length))
    case .rule:
      place = Place()
      return begin(.rule, nil)
    case .item(let marker):
      while let last = place.indents.last, last >= mark.indent { place.indents.removeLast() }
      place.indents.append(mark.indent)
      place.open = true
      return begin(.item(marker: marker, depth: place.indents.count - 1), line.dropping(mark.length))
    case .quote: return goOn(.quote, line.dropping(mark.length), &place)
    case .table: return goOn(.table, line, &place)
    case .none:
      if case .item = blocks.last?.kind, place.open || mark.indent > (place.indents.last ?? 0) {
        return add(line.dropping(mark.length))
      }
      return goOn(.paragraph, line.dropping(mark.length), &place)
    }
  }

  /// Adds a line to the last block where that is open and of this kind, or else begins one.
  private mutating func goOn(_ kind: Block.Kind, _ line: [Run], _ place: inout Place) -> Change {
    if place.open && blocks.last?.kind == kind { return add(line) }
    place = Place(open: true)
    return begin(kind, line)
  }

  private mutating func begin(_ kind: Block.Kind, _ line: [Run]?) -> Change {
    blocks.append(Block(kind: kind, lines: line.map { [$0] } ?? []))
    return .block
  }

  private mutating func add(_ line: [Run]) -> Change {
    blocks[blocks.count - 1].lines.append(line)
    return .line
  }

  /// Whether a line ends code: at least as many marks as began it, and nothing else.
  private func isEnd(_ text: String, of fence: String) -> Bool {
    let marks = text.drop { $0 == " " }
    let end = marks.prefix { $0 == fence.first }
    return end.count >= fence.count && marks.dropFirst(end.count).allSatisfy(\.isWhitespace)
  }
}
