#if canImport(UIKit)
  import AppModel
  import SwiftUI
  import UIKit

  /// An answer in blocks. Blocks that have not changed are not drawn again.
  struct MarkdownView: View {
    /// The answer.
    let markdown: Markdown
    /// Whether drafted words are tinted.
    let showsDrafts: Bool

    var body: some View {
      VStack(alignment: .leading, spacing: 10) {
        ForEach(Array(markdown.blocks.enumerated()), id: \.offset) {
          BlockView(block: $0.element, showsDrafts: showsDrafts).equatable()
        }
      }
    }
  }

  /// A block of an answer.
  private struct BlockView: View, Equatable {
    let block: Block
    let showsDrafts: Bool

    nonisolated static func == (left: BlockView, right: BlockView) -> Bool {
      left.block == right.block && left.showsDrafts == right.showsDrafts
    }

    var body: some View {
      switch block.kind {
      case .paragraph: text
      case .heading(let level): text.font(font(of: level)).accessibilityAddTraits(.isHeader)
      case .item(let marker, let depth):
        HStack(alignment: .firstTextBaseline, spacing: 8) {
          Text(verbatim: marker).foregroundStyle(.secondary)
          text
        }
        .padding(.leading, CGFloat(depth) * 20)
      case .quote:
        text.foregroundStyle(.secondary).padding(.leading, 13)
          .overlay(alignment: .leading) { Rectangle().fill(.secondary).frame(width: 3) }
      case .code(let language): CodeView(language: language, block: block, showsDrafts: showsDrafts)
      case .table: ScrollView(.horizontal) { Text(plain(block.runs, showsDrafts)).font(.callout.monospaced()) }
      case .rule: Divider()
      }
    }

    private var text: some View { Text(inline(block.runs, showsDrafts)).textSelection(.enabled) }

    private func font(of level: Int) -> Font {
      switch level {
      case 1: .title2.bold()
      case 2: .title3.bold()
      default: .headline
      }
    }
  }

  /// Code, with a way to copy it.
  private struct CodeView: View {
    let language: String
    let block: Block
    let showsDrafts: Bool

    var body: some View {
      VStack(alignment: .leading, spacing: 0) {
        HStack {
          Text(verbatim: language.isEmpty ? Word.code() : language).font(.footnote).foregroundStyle(.secondary)
          Spacer()
          Button { copyText(block.text) } label: { Label(.copy, "doc.on.doc").font(.footnote) }
            .buttonStyle(.borderless)
        }
        .padding(.horizontal, 12)
        .padding(.vertical, 8)
        ScrollView(.horizontal) {
          VStack(alignment: .leading, spacing: 0) {
            ForEach(Array(block.parts(of: 40).enumerated()), id: \.offset) {
              CodePart(block: $0.element, showsDrafts: showsDrafts).equatable()
            }
          }
          .padding(.horizontal, 12)
          .padding(.bottom, 12)
        }
      }
      .background(Color(.question), in: RoundedRectangle(cornerRadius: 12))
      .environment(\.layoutDirection, .leftToRight)  // code is, in every language
    }
  }

  /// Some lines of code.
  private struct CodePart: View, Equatable {
    let block: Block
    let showsDrafts: Bool

    nonisolated static func == (left: CodePart, right: CodePart) -> Bool {
      left.block == right.block && left.showsDrafts == right.showsDrafts
    }

    var body: some View { Text(plain(block.runs, showsDrafts)).font(.callout.monospaced()).textSelection(.enabled) }
  }

  /// Text in which Markdown's inline marks are drawn; what does not parse stays as it is written.
  private func inline(_ runs: [Run], _ showsDrafts: Bool) -> AttributedString {
    let text = runs.map(\.text).joined()
    let options = AttributedString.MarkdownParsingOptions(
      interpretedSyntax: .inlineOnlyPreservingWhitespace, failurePolicy: .returnPartiallyParsedIfPossible)
    var drawn = (try? AttributedString(markdown: text, options: options)) ?? AttributedString(text)
    for run in drawn.runs where run.link.map(isOfTheWeb) == false { drawn[run.range].link = nil }
    if showsDrafts { tint(&drawn, sources(of: String(drawn.characters), in: runs)) }
    return drawn
  }

  /// Other addresses are not links: one may start another app or a shortcut.
  private func isOfTheWeb(_ address: URL) -> Bool {
    ["http", "https", "mailto"].contains(address.scheme?.lowercased() ?? "")
  }

  /// Text as it is.
  private func plain(_ runs: [Run], _ showsDrafts: Bool) -> AttributedString {
    var drawn = AttributedString(runs.map(\.text).joined())
    if showsDrafts { tint(&drawn, runs) }
    return drawn
  }

  /// Tints a text, whose parts are `runs`, by who drafted them.
  private func tint(_ text: inout AttributedString, _ runs: [Run]) {
    var place = text.startIndex
    for run in runs {
      // A character may have parts of two runs.
      let end = text.unicodeScalars.index(place, offsetBy: run.text.unicodeScalars.count)
      if let mark = Mark(run.source) { text[place..<end].backgroundColor = mark.tint }
      place = end
    }
  }

  /// Puts a text on the clipboard.
  @MainActor func copyText(_ text: String) {
    UIPasteboard.general.string = text
    announce(Word.copied())
  }
#endif
