#if canImport(UIKit)
  import AppModel
  import SwiftUI

  /// A message of the conversation, and what can be done with it.
  struct TurnView: View {
    /// The message.
    let turn: Turn
    /// Whether drafted words are tinted.
    let showsDrafts: Bool
    /// Edits the question; nil: it cannot be edited now.
    var edit: (@MainActor () -> Void)?
    /// Asks for another answer; nil: that cannot be done now.
    var retry: (@MainActor () -> Void)?

    @State private var showsFigures = false

    var body: some View {
      if turn.role == .user { question } else { answer }
    }

    private var question: some View {
      HStack {
        Spacer(minLength: 48)
        Text(verbatim: turn.text)
          .textSelection(.enabled)
          .padding(.horizontal, 14)
          .padding(.vertical, 10)
          .background(Color(.question), in: RoundedRectangle(cornerRadius: 18))
          .contextMenu { actions }
          .accessibilityLabel(Text(verbatim: Word.youSaid(turn.text)))
      }
    }

    private var answer: some View {
      VStack(alignment: .leading, spacing: 8) {
        MarkdownView(markdown: turn.markdown, showsDrafts: showsDrafts)
        if turn.end != nil {
          HStack(spacing: 0) {
            icon(.copy, "doc.on.doc") { copyText(turn.text) }
            ShareLink(item: turn.text) { Label(.share, "square.and.arrow.up").frame(minWidth: 44, minHeight: 44) }
            if let retry { icon(.retry, "arrow.clockwise", retry) }
            if let figures = turn.figures, let chip = figures.chip() {
              Button { showsFigures = true } label: {
                Text(verbatim: chip).monospacedDigit()
                  .padding(.horizontal, 10)
                  .padding(.vertical, 4)
                  .background(Color(.question), in: Capsule())
              }
              .frame(minHeight: 44)
              .accessibilityLabel(Text(verbatim: Word.figuresOf(chip)))
              .popover(isPresented: $showsFigures) { FiguresView(figures: figures) }
            }
          }
          .labelStyle(.iconOnly)
          .font(.footnote)
          .foregroundStyle(.secondary)
          .buttonStyle(.borderless)
        }
      }
      .frame(maxWidth: .infinity, alignment: .leading)
    }

    @ViewBuilder private var actions: some View {
      Button { copyText(turn.text) } label: { Label(.copy, "doc.on.doc") }
      ShareLink(item: turn.text) { Label(.share, "square.and.arrow.up") }
      if let edit { Button(action: edit) { Label(.edit, "pencil") } }
    }

    private func icon(_ word: Word, _ symbol: String, _ action: @escaping @MainActor () -> Void) -> some View {
      Button(action: action) { Label(word, symbol).frame(minWidth: 44, minHeight: 44) }
    }
  }

  /// All figures of an answer.
  private struct FiguresView: View {
    let figures: Live

    var body: some View {
      VStack(alignment: .leading, spacing: 6) {
        Text(.figures).font(.headline)
        ForEach(figures.details(), id: \.self) { Text(verbatim: $0).monospacedDigit() }
      }
      .padding(16)
      .presentationCompactAdaptation(.popover)
    }
  }
#endif
