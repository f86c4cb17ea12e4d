/// The block marker at the beginning of a line of Markdown. It is parsed again for each token of the line, so it reads
/// no more characters than it must.
struct LineMark {
  enum Kind: Equatable {
    case none, rule, quote, table
    case heading(Int)
    case item(String)
    case fence(String, language: String)
  }

  let kind: Kind
  /// Spaces before it.
  let indent: Int
  /// Characters of the line that are no text of the block.
  let length: Int

  init(_ line: String) {
    let spaces = line.prefix { $0 == " " || $0 == "\t" }
    let text = line.dropFirst(spaces.count)
    indent = spaces.reduce(0) { $0 + ($1 == "\t" ? 4 : 1) }
    let found: (kind: Kind, length: Int)? =
      switch text.first {
      case "`", "~": Self.fence(text)
      case "#": Self.heading(text)
      case "-", "*", "_", "+": Self.rule(text) ?? Self.bullet(text)
      case ">": (.quote, text.dropFirst().first == " " ? 2 : 1)
      case "|": (.table, -spaces.count)
      case let first? where ("0"..."9").contains(first): Self.number(text)
      default: nil
      }
    kind = found?.kind ?? .none
    length = spaces.count + (found?.length ?? 0)
  }

  private static func fence(_ text: Substring) -> (Kind, Int)? {
    let marks = text.prefix { $0 == text.first }
    let rest = text.dropFirst(marks.count)
    if marks.count < 3 || rest.contains("`") { return nil }
    let language = rest.drop(while: \.isWhitespace).prefix { !$0.isWhitespace }
    return (.fence(String(marks), language: String(language)), text.count)
  }

  private static func heading(_ text: Substring) -> (Kind, Int)? {
    let level = text.prefix { $0 == "#" }.count
    guard level < 7, let gap = gap(text, after: level) ?? (text.count == level ? 0 : nil) else { return nil }
    return (.heading(level), level + gap)
  }

  private static func rule(_ text: Substring) -> (Kind, Int)? {
    var marks = 0
    for character in text {
      if character == text.first { marks += 1 } else if !character.isWhitespace { return nil }
    }
    return marks > 2 && text.first != "+" ? (.rule, text.count) : nil
  }

  private static func bullet(_ text: Substring) -> (Kind, Int)? {
    guard text.first != "_", let gap = gap(text, after: 1) else { return nil }
    return (.item("•"), 1 + gap)
  }

  private static func number(_ text: Substring) -> (Kind, Int)? {
    let digits = text.prefix { ("0"..."9").contains($0) }
    guard digits.count < 10, let end = text.dropFirst(digits.count).first, end == "." || end == ")",
      let gap = gap(text, after: digits.count + 1)
    else { return nil }
    return (.item(String(digits) + String(end)), digits.count + 1 + gap)
  }

  /// The number of spaces after `count` characters; nil if there are none.
  private static func gap(_ text: Substring, after count: Int) -> Int? {
    let spaces = text.dropFirst(count).prefix { $0 == " " || $0 == "\t" }.count
    return spaces > 0 ? spaces : nil
  }
}

extension [Run] {
  /// Without its first characters.
  func dropping(_ count: Int) -> [Run] {
    var left = count
    var rest: [Run] = []
    for run in self {
      let cut = Swift.min(left, run.text.count)
      left -= cut
      rest.append(String(run.text.dropFirst(cut)), run.source)
    }
    return rest
  }
}
