#if canImport(UIKit)
  import AppModel
  import SwiftUI

  /// The saved chats.
  struct ChatListScreen: View {
    /// The chats.
    let chats: ChatList
    /// Shows the open chat where there is room for one column only.
    let showChat: @MainActor () -> Void

    @State private var query = ""
    @State private var renamed: ChatSummary?
    @State private var isRenaming = false
    @State private var title = ""

    var body: some View {
      List {
        if chats.shown.isEmpty { Text(chats.all.isEmpty ? .noChats : .nothingFound).foregroundStyle(.secondary) }
        ForEach(chats.shown) { row($0) }
        if let message = chats.message { Text(verbatim: message).foregroundStyle(Color(.error)) }
      }
      .listStyle(.sidebar)
      .navigationTitle(Text(.chats))
      .searchable(text: $query, prompt: Text(.search))
      .onChange(of: query) { _, words in chats.search(words) }
      .toolbar {
        ToolbarItemGroup(placement: .topBarTrailing) {
          Button {
            chats.new()
            showChat()
          } label: {
            Label(.newChat, "square.and.pencil")
          }
          .keyboardShortcut("n", modifiers: .command)
        }
      }
      .safeAreaInset(edge: .bottom) { undo }
      .alert(Text(.rename), isPresented: $isRenaming) {
        TextField(Word.title(), text: $title)
        Button {
          if let renamed { chats.rename(renamed.id, title) }
        } label: {
          Text(.save)
        }
        Button(role: .cancel) {} label: { Text(.cancel) }
      }
      .onChange(of: chats.deleted) { _, deleted in
        if let deleted { announce(Word.deleted(deleted.title)) }
      }
    }

    private func row(_ chat: ChatSummary) -> some View {
      Button {
        chats.open(chat.id)
        showChat()
      } label: {
        VStack(alignment: .leading, spacing: 2) {
          Text(verbatim: chat.title).lineLimit(2).foregroundStyle(Color(.text))
          Text(verbatim: Word.bundleRow(chat.bundle, chat.changed.formatted(date: .abbreviated, time: .shortened)))
            .font(.footnote).foregroundStyle(Color(.textSecondary))
        }
        .frame(maxWidth: .infinity, alignment: .leading)
      }
      .listRowBackground(chat.id == chats.open ? Color(.question) : nil)
      .accessibilityAddTraits(chat.id == chats.open ? .isSelected : [])
      .swipeActions {
        Button(role: .destructive) { chats.delete(chat.id) } label: { Label(.delete, "trash") }
        Button { rename(chat) } label: { Label(.rename, "pencil") }
      }
      .contextMenu {
        Button { rename(chat) } label: { Label(.rename, "pencil") }
        Button(role: .destructive) { chats.delete(chat.id) } label: { Label(.delete, "trash") }
      }
    }

    @ViewBuilder private var undo: some View {
      if let deleted = chats.deleted {
        HStack {
          Text(verbatim: Word.deleted(deleted.title)).lineLimit(2)
          Spacer()
          Button { chats.undo() } label: { Text(.undo) }
        }
        .padding(.horizontal, 16)
        .padding(.vertical, 12)
        .floating()
        .padding(12)
      }
    }

    private func rename(_ chat: ChatSummary) {
      (renamed, title) = (chat, chat.title)
      isRenaming = true
    }
  }
#endif
