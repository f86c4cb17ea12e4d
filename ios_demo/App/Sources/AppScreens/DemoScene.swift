#if canImport(UIKit)
  import AppModel
  import SwiftUI
  import UIKit

  /// The whole app over a library: `var body: some Scene { DemoScene(library: ...) }`.
  public struct DemoScene: Scene {
    @Environment(\.scenePhase) private var phase
    @State private var parts: Parts

    /// Keeps bundles and chats in the app's support folder. The system may make this value more than once, so nothing begins
    /// here.
    public init(library: any Library) {
      let folder = FileManager.default.urls(for: .applicationSupportDirectory, in: .userDomainMask)[0]
        .appending(path: "streamfuse")
      let device = UIDevice.current
      let lines = [
        Word.reportDevice(Self.machine), Word.reportSystem("\(device.systemName) \(device.systemVersion)"),
      ]
      _parts = State(initialValue: Parts(library, folder: folder, defaults: .standard, device: lines) { Self.power })
    }

    public var body: some Scene {
      WindowGroup {
        RootScreen(parts: parts).tint(Color(.accent))
          .task { parts.begin() }
          .onChange(of: parts.isBusy) { _, busy in UIApplication.shared.isIdleTimerDisabled = busy }
          .onReceive(NotificationCenter.default.publisher(for: UIApplication.didReceiveMemoryWarningNotification)) { _ in
            parts.memoryIsShort(onScreen: phase != .background)
          }
      }
      .onChange(of: phase) { _, phase in
        switch phase {
        case .background: leave()
        case .active: parts.comeBack()
        default: break
        }
      }
    }

    /// Asks the system for the moment that saving takes.
    private func leave() {
      let time = BackgroundTime(), saved = parts.leave()
      Task {
        await saved.value
        time.end()
      }
    }

    /// Heat and low power mode.
    private static var power: Power {
      let process = ProcessInfo.processInfo
      let heat: Heat =
        switch process.thermalState {
        case .nominal: .normal
        case .fair: .warm
        default: .hot
        }
      return Power(heat, isSaving: process.isLowPowerModeEnabled)
    }

    /// For example iPhone17,1.
    private static var machine: String {
      var name = utsname()
      uname(&name)
      return withUnsafeBytes(of: &name.machine) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
    }
  }

  /// Time that the system gives after the user has left; it ends by itself where it was too short.
  @MainActor
  private final class BackgroundTime {
    private var id = UIBackgroundTaskIdentifier.invalid

    init() { id = UIApplication.shared.beginBackgroundTask { [weak self] in self?.end() } }

    func end() {
      if id != .invalid { UIApplication.shared.endBackgroundTask(id) }
      id = .invalid
    }
  }

  /// The chat, and the ways to the other screens.
  private struct RootScreen: View {
    private enum Page: Hashable { case bundles, settings, benchmark }

    let parts: Parts
    @State private var path: [Page] = []
    @State private var asking = false

    var body: some View {
      NavigationStack(path: $path) {
        ChatScreen(chat: parts.chat) { path.append(.bundles) }
          .navigationTitle(Text(verbatim: parts.chat.state.bundle ?? ""))
          .navigationBarTitleDisplayMode(.inline)
          .toolbar { toolbar }
          .navigationDestination(for: Page.self) { page in
            switch page {
            case .bundles: BundlesScreen(bundles: parts.bundles)
            case .settings: SettingsScreen(store: parts.settings)
            case .benchmark: BenchmarkScreen(benchmark: parts.benchmark)
            }
          }
      }
      .alert(Text(.newChatQuestion), isPresented: $asking) {
        Button(role: .destructive) { parts.chat.newChat() } label: { Text(.newChat) }
        Button(role: .cancel) {} label: { Text(.cancel) }
      }
      // Other threads load the bundle again: once the user is back, not with each digit.
      .onChange(of: path) { _, path in
        if path.isEmpty { parts.chat.applySettings() }
      }
    }

    private var toolbar: some ToolbarContent {
      ToolbarItemGroup(placement: .topBarTrailing) {
        Button {
          if parts.chat.holdsWords { asking = true } else { parts.chat.newChat() }
        } label: {
          Image(systemName: "square.and.pencil")
        }
          .accessibilityLabel(Text(.newChat))
        Menu {
          Button { path.append(.bundles) } label: { Text(.bundles) }
          Button { path.append(.settings) } label: { Text(.settings) }
          Button { path.append(.benchmark) } label: { Text(.benchmark) }
        } label: {
          Image(systemName: "ellipsis.circle")
        }
        .accessibilityLabel(Text(.more))
      }
    }
  }
#endif
