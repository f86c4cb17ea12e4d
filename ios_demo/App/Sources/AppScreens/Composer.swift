#if canImport(UIKit)
  import AppModel
  import SwiftUI

  /// The field to ask in, over the conversation.
  struct Composer: View {
    /// The chat.
    let chat: ChatModel

    @FocusState private var isFocused: Bool

    private var state: ChatState { chat.state }
    private var isWriting: Bool { state.phase == .writing }

    var body: some View {
      VStack(alignment: .leading, spacing: 8) {
        if state.editing != nil { editing }
        HStack(alignment: .bottom, spacing: 8) {
          TextField(state.canChat ? Word.ask() : Word.continueText(), text: input, axis: .vertical)
            .lineLimit(1...6)
            .focused($isFocused)
            .padding(.vertical, 8)
          Button(action: press) {
            Image(systemName: isWriting ? "stop.circle.fill" : "arrow.up.circle.fill").font(.title)
              .frame(minWidth: 44, minHeight: 44)
          }
          .keyboardShortcut(.return, modifiers: .command)
          .disabled(!isWriting && !(chat.canAsk && hasText))
          .accessibilityLabel(Text(isWriting ? .stop : .send))
        }
      }
      .padding(.horizontal, 16)
      .padding(.vertical, 4)
      .floating()
      .frame(maxWidth: 720)
      .padding(.horizontal, 12)
      .padding(.bottom, 8)
      .frame(maxWidth: .infinity)
      .onChange(of: state.editing) { _, editing in if editing != nil { isFocused = true } }
    }

    private var editing: some View {
      HStack {
        Text(.editHelp).font(.footnote).foregroundStyle(.secondary)
        Spacer()
        Button {
          chat.endEdit()
        } label: {
          Text(.cancel).font(.footnote)
        }
      }
      .padding(.vertical, 4)
    }

    private var input: Binding<String> {
      Binding { @MainActor in
        chat.input
      } set: { @MainActor in
        chat.type($0)
      }
    }

    private var hasText: Bool { !chat.input.allSatisfy(\.isWhitespace) }

    private func press() {
      if isWriting { chat.stop() } else { chat.sendInput() }
    }
  }
#endif
