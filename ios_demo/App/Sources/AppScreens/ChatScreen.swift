#if canImport(UIKit)
  import Accessibility
  import AppModel
  import SwiftUI

  /// The open chat: the conversation, and the field to ask in. The conversation scrolls under both bars.
  struct ChatScreen: View {
    /// The chat.
    let chat: ChatModel
    /// The settings.
    let settings: SettingsStore
    /// Opens the bundles screen.
    let chooseBundle: @MainActor () -> Void

    @State private var position = ScrollPosition(edge: .bottom)
    @State private var isAtEnd = true

    private var state: ChatState { chat.state }

    var body: some View {
      ScrollView {
        LazyVStack(alignment: .leading, spacing: 16) {
          ForEach(Array(state.turns.enumerated()), id: \.offset) { turn($0.element, $0.offset) }
          WritingView(answer: chat.answer, note: state.note ?? "", showsDrafts: settings.settings.showsDrafts)
          foot
        }
        .frame(maxWidth: 720, alignment: .leading)
        .padding(.horizontal, 16)
        .padding(.vertical, 12)
        .frame(maxWidth: .infinity)
      }
      .id(state.chat)
      .defaultScrollAnchor(.bottom)
      .scrollPosition($position)
      .scrollDismissesKeyboard(.interactively)
      .onScrollGeometryChange(for: Bool.self) {
        $0.visibleRect.maxY >= $0.contentSize.height - 80
      } action: { _, end in
        isAtEnd = end
      }
      .overlay(alignment: .bottom) { toEnd }
      .overlay {
        if state.turns.isEmpty && state.phase == .ready { WelcomeView { chat.send($0) } }
      }
      .safeAreaInset(edge: .bottom) { Composer(chat: chat) }
      .sensoryFeedback(trigger: state.phase) { old, new in
        new == .writing ? .impact(weight: .light) : old == .writing ? .success : nil
      }
      .onChange(of: state.note) { _, note in announce(note) }
      .onChange(of: state.error) { _, error in announce(error) }
    }

    private func turn(_ turn: Turn, _ index: Int) -> some View {
      let isLast = index == state.turns.count - 1
      var view = TurnView(turn: turn, showsDrafts: settings.settings.showsDrafts)
      if chat.canAsk { view.edit = { chat.edit(index) } }
      if isLast && chat.canRetry { view.retry = { chat.retry() } }
      return view
    }

    /// Status, error and button below the conversation.
    @ViewBuilder private var foot: some View {
      if [.loading, .lent].contains(state.phase) {
        ProgressView { Text(verbatim: state.note ?? "") }
      } else if state.phase != .writing, let note = state.shownNote {
        Text(verbatim: note).font(.footnote).foregroundStyle(.secondary)
      }
      if let error = state.error {
        Text(verbatim: error).foregroundStyle(Color(.error)).textSelection(.enabled)
      }
      if state.wantsBundle {
        Button(action: chooseBundle) { Text(.chooseBundle) }.buttonStyle(.borderedProminent)
      }
    }

    @ViewBuilder private var toEnd: some View {
      if !isAtEnd && !state.turns.isEmpty {
        Button { withAnimation { position.scrollTo(edge: .bottom) } } label: {
          Image(systemName: "arrow.down").frame(width: 44, height: 44).floating(22)
        }
        .padding(.bottom, 8)
        .accessibilityLabel(Text(.toEnd))
      }
    }
  }

  /// Posts a VoiceOver announcement, unless there is nothing to announce.
  @MainActor func announce(_ words: String?) {
    if let words { AccessibilityNotification.Announcement(words).post() }
  }

  /// The answer that is being written. A view of its own: with each step this is drawn, and no other turn.
  private struct WritingView: View {
    let answer: AnswerModel
    let note: String
    let showsDrafts: Bool

    var body: some View {
      if let turn = answer.turn {
        if turn.runs.isEmpty {  // the model reads, or thinks
          ProgressView { Text(verbatim: note) }
        } else {
          TurnView(turn: turn, showsDrafts: showsDrafts)
        }
      }
    }
  }

  /// An empty chat: something to begin with.
  private struct WelcomeView: View {
    private static let suggestions: [Word] = [.suggestion1, .suggestion2, .suggestion3, .suggestion4]

    let ask: @MainActor (String) -> Void

    var body: some View {
      ScrollView {
        VStack(spacing: 12) {
          Text(.hello).font(.title2.bold()).accessibilityAddTraits(.isHeader)
          Text(.welcome).foregroundStyle(.secondary)
          ForEach(Self.suggestions, id: \.self) { word in
            Button { ask(word()) } label: {
              Text(word).frame(maxWidth: .infinity, alignment: .leading).padding(12)
            }
            .buttonStyle(.bordered)
          }
        }
        .frame(maxWidth: 480)
        .padding(24)
        .frame(maxWidth: .infinity)
      }
    }
  }
#endif
