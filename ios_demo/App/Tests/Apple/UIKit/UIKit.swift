// See ../SwiftUI/Views.swift.

@_exported import Foundation

public enum UIKeyboardType { case `default`, numberPad, decimalPad, URL }

public final class UIColor: Sendable {
  public static let label = UIColor(), secondarySystemBackground = label
}

@MainActor public final class UIPasteboard {
  public static let general = UIPasteboard()
  public var string: String?
}

@MainActor public final class UIDevice {
  public static let current = UIDevice()
  public let systemName = "", systemVersion = ""
}

public struct UIBackgroundTaskIdentifier: Equatable, Sendable {
  public static let invalid = UIBackgroundTaskIdentifier()
}

@MainActor public final class UIApplication {
  public static let shared = UIApplication()
  public nonisolated static let didReceiveMemoryWarningNotification = Notification.Name("memory")
  public var isIdleTimerDisabled = false
  public func beginBackgroundTask(expirationHandler: (@MainActor @Sendable () -> Void)? = nil) -> UIBackgroundTaskIdentifier {
    .invalid
  }
  public func endBackgroundTask(_ identifier: UIBackgroundTaskIdentifier) {}
}

extension ProcessInfo {
  public enum ThermalState: Int, Sendable { case nominal, fair, serious, critical }
  public var thermalState: ThermalState { .nominal }
  public var isLowPowerModeEnabled: Bool { false }
}
