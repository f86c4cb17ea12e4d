#if canImport(UIKit)
  import AppModel
  import Observation
  import SwiftUI
  import UIKit

  /// Requests from outside of the app's screens: Siri, Shortcuts and Spotlight.
  @MainActor @Observable
  public final class Outside {
    /// The instance that the app observes.
    public static let shared = Outside()
    /// A question to ask in a new chat.
    public var question: String?
  }

  /// The whole app over a library: `var body: some Scene { DemoScene(library: ...) }`.
  public struct DemoScene: Scene {
    /// How long an answer continues after the user has left: most of the background time that the system gives, with
    /// the rest for saving the chat.
    private static let grace = Duration.seconds(20)

    @Environment(\.scenePhase) private var phase
    @State private var parts: Parts

    /// Keeps bundles and chats in the app's support folder. The system may make this value more than once, so nothing
    /// begins here.
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
        RootScreen(parts: parts, outside: .shared)
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

    /// Requests background time for the rest of an answer and for saving.
    private func leave() {
      let time = BackgroundTime { parts.endNow() }
      let saved = parts.leave(grace: Self.grace)
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

  /// Background time after the user has left. When it expires, `isOver` is called and it ends.
  @MainActor
  private final class BackgroundTime {
    private var id = UIBackgroundTaskIdentifier.invalid

    init(isOver: @escaping @MainActor @Sendable () -> Void) {
      id = UIApplication.shared.beginBackgroundTask { [weak self] in
        isOver()
        self?.end()
      }
    }

    func end() {
      if id != .invalid { UIApplication.shared.endBackgroundTask(id) }
      id = .invalid
    }
  }
#endif
