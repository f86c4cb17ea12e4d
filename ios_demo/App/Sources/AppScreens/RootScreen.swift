#if canImport(UIKit)
  import AppModel
  import SwiftUI

  /// The chats beside the open one, and the other screens over both.
  struct RootScreen: View {
    private enum Page: String, Identifiable {
      case bundles, settings, benchmark
      var id: String { rawValue }
    }

    /// The app.
    let parts: Parts
    /// Questions that come from outside.
    let outside: Outside

    @State private var page: Page?
    @State private var column = NavigationSplitViewColumn.detail

    var body: some View {
      NavigationSplitView(preferredCompactColumn: $column) {
        ChatListScreen(chats: parts.chats) { column = .detail }
      } detail: {
        NavigationStack {
          ChatScreen(chat: parts.chat, settings: parts.settings) { page = .bundles }
            .navigationTitle(Text(verbatim: parts.chat.state.bundle ?? ""))
            .navigationBarTitleDisplayMode(.inline)
            .toolbar { toolbar }
        }
      }
      // Some settings load the bundle again: once the user is back, not with each change.
      .sheet(item: $page, onDismiss: { parts.chat.applySettings() }) { page in
        NavigationStack {
          screen(page).toolbar {
            ToolbarItemGroup(placement: .topBarTrailing) {
              Button { self.page = nil } label: { Text(.close) }
            }
          }
        }
      }
      .onChange(of: outside.question, initial: true) { _, _ in
        guard let question = outside.question else { return }  // another window has taken it
        outside.question = nil
        (page, column) = (nil, .detail)
        parts.chat.applySettings()  // before the question: later it would stop the answer
        Task { await parts.ask(question) }
      }
    }

    @ViewBuilder private func screen(_ page: Page) -> some View {
      switch page {
      case .bundles: BundlesScreen(bundles: parts.bundles)
      case .settings: SettingsScreen(store: parts.settings, chat: parts.chat)
      case .benchmark: BenchmarkScreen(benchmark: parts.benchmark, check: parts.check)
      }
    }

    private var toolbar: some ToolbarContent {
      ToolbarItemGroup(placement: .topBarTrailing) {
        Button { parts.chats.new() } label: { Label(.newChat, "square.and.pencil") }
        Menu {
          Toggle(isOn: drafts) { Text(.showDrafts) }
          Button { page = .bundles } label: { Label(.bundles, "shippingbox") }
          Button { page = .settings } label: { Label(.settings, "slider.horizontal.3") }
          Button { page = .benchmark } label: { Label(.benchmark, "gauge.with.needle") }
        } label: {
          Label(.more, "ellipsis.circle")
        }
      }
    }

    private var drafts: Binding<Bool> {
      Binding { @MainActor in
        parts.settings.settings.showsDrafts
      } set: { @MainActor in
        parts.settings.set(.showsDrafts, $0)
      }
    }
  }
#endif
