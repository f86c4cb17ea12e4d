#if canImport(UIKit)
  import Accessibility
  import AppModel
  import StreamFuseCore
  import SwiftUI

  /// The chat: the conversation, figures under it, and the field to ask in.
  struct ChatScreen: View {
    /// The chat.
    let chat: ChatModel
    /// Opens the bundles screen.
    let chooseBundle: @MainActor () -> Void

    @State private var input = ""

    private var state: ChatState { chat.state }
    private var writing: Bool { state.phase == .writing }

    var body: some View {
      VStack(spacing: 8) {
        legend
        conversation
        FiguresView(answer: chat.answer)
        field
      }
      .padding(.horizontal, 16)
      .padding(.bottom, 8)
      .background(Color(.background))
      .onChange(of: state.note) { _, note in announce(note) }
      .onChange(of: state.error) { _, error in announce(error) }
      .onChange(of: state.unsent, initial: true) { _, unsent in giveBack(unsent) }
    }

    private var legend: some View {
      Text(runs: [Run(text: Word.legend(), source: .model)] + Mark.allCases.flatMap { mark in
        [Run(text: " ", source: .model), Run(text: mark.look.word(), source: mark.source)]
      })
      .font(.footnote)
      .foregroundStyle(Color(.textSecondary))
      .frame(maxWidth: .infinity, alignment: .leading)
      .accessibilityLabel(Text(.legendSpoken))
    }

    private var conversation: some View {
      ScrollView {
        LazyVStack(alignment: .leading, spacing: 12) {
          ForEach(Array(state.turns.enumerated()), id: \.offset) { TurnView(turn: $0.element) }
          WritingView(answer: chat.answer)
          if let note = state.note {
            Text(verbatim: note).foregroundStyle(Color(.textSecondary))
          }
          if let error = state.error {
            Text(verbatim: error).foregroundStyle(Color(.error)).textSelection(.enabled)
          }
          if state.wantsBundle {
            Button(action: chooseBundle) { Text(.chooseBundle) }.buttonStyle(.borderedProminent)
          }
        }
        .frame(maxWidth: .infinity, alignment: .leading)
      }
      .defaultScrollAnchor(.bottom)
      .scrollDismissesKeyboard(.interactively)
    }

    private var field: some View {
      HStack(alignment: .bottom, spacing: 8) {
        TextField(state.canChat ? Word.ask() : Word.continueText(), text: $input, axis: .vertical)
          .lineLimit(1...5)
          .padding(12)
          .overlay(RoundedRectangle(cornerRadius: 12).stroke(Color(.outline)))
        Button {
          if writing { chat.stop() } else { send() }
        } label: {
          Image(systemName: writing ? "stop.fill" : "arrow.up")
            .frame(width: 48, height: 48)
            .foregroundStyle(Color(.onAccent))
            .background(Color(.accent), in: Circle())
        }
        .disabled(!writing && state.phase != .ready)
        .opacity(writing || state.phase == .ready ? 1 : 0.5)
        .accessibilityLabel(Text(writing ? .stop : .send))
      }
    }

    private func send() {
      if chat.send(input) { input = "" }
    }

    private func giveBack(_ unsent: String?) {
      guard let unsent else { return }
      if input.isEmpty { input = unsent }
      chat.takeUnsent()
    }

    private func announce(_ words: String?) {
      if let words { AccessibilityNotification.Announcement(words).post() }
    }
  }

  /// The answer that is being written. A view of its own: with each step this is drawn, and no other turn.
  private struct WritingView: View {
    let answer: AnswerModel

    var body: some View {
      if let turn = answer.turn { TurnView(turn: turn) }
    }
  }

  /// The figures under the conversation, likewise.
  private struct FiguresView: View {
    let answer: AnswerModel

    var body: some View {
      if let line = answer.live?.line(), !line.isEmpty {
        Text(verbatim: line).font(.footnote).foregroundStyle(Color(.textSecondary))
          .frame(maxWidth: .infinity, alignment: .leading)
      }
    }
  }

  /// A message of the conversation.
  private struct TurnView: View {
    let turn: Turn

    private var asked: Bool { turn.role == .user }

    var body: some View {
      VStack(alignment: .leading, spacing: 4) {
        Text(asked ? .you : .model).font(.footnote.bold()).foregroundStyle(Color(.textSecondary))
        Text(runs: turn.runs)
          .foregroundStyle(Color(.text))
          .lineSpacing(4)
          .textSelection(.enabled)
          .padding(asked ? 12 : 0)
          .background(asked ? Color(.question) : Color.clear, in: RoundedRectangle(cornerRadius: 16))
      }
      .accessibilityElement(children: .combine)
    }
  }
#endif
