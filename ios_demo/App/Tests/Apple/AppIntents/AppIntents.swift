// See ../SwiftUI/Views.swift.

@_exported import Foundation

public struct LocalizedStringResource: ExpressibleByStringLiteral, Sendable { public init(stringLiteral: String) {} }
public struct IntentDescription: Sendable {
  public init(_ text: LocalizedStringResource, categoryName: LocalizedStringResource? = nil) {}
}
public protocol IntentResult: Sendable {}
public struct IntentResultContainer: IntentResult {}
extension IntentResult where Self == IntentResultContainer { public static func result() -> Self { IntentResultContainer() } }
public protocol PersistentlyIdentifiable {}
public protocol AppIntent: PersistentlyIdentifiable, Sendable {
  associatedtype PerformResult: IntentResult
  static var title: LocalizedStringResource { get }
  static var description: IntentDescription? { get }
  static var openAppWhenRun: Bool { get }
  init()
  func perform() async throws -> PerformResult
}
extension AppIntent { public typealias Parameter = IntentParameter }
@propertyWrapper public final class IntentParameter<Value: Sendable>: @unchecked Sendable {
  public init(title: LocalizedStringResource) {}
  public var wrappedValue: Value { get { fatalError() } set {} }
}

public enum AppShortcutPhraseToken: Sendable { case applicationName }
public struct AppShortcutPhrase<Intent: AppIntent>: ExpressibleByStringInterpolation, Sendable {
  public struct StringInterpolation: StringInterpolationProtocol {
    public init(literalCapacity: Int, interpolationCount: Int) {}
    public mutating func appendLiteral(_ text: String) {}
    public mutating func appendInterpolation(_ token: AppShortcutPhraseToken) {}
  }
  public init(stringLiteral: String) {}
  public init(stringInterpolation: StringInterpolation) {}
}
public struct AppShortcut: Sendable {
  public init<Intent: AppIntent>(
    intent: Intent, phrases: [AppShortcutPhrase<Intent>], shortTitle: LocalizedStringResource, systemImageName: String
  ) {}
}
@resultBuilder public enum AppShortcutsBuilder {
  public static func buildBlock(_ shortcuts: AppShortcut...) -> [AppShortcut] { shortcuts }
}
public protocol AppShortcutsProvider { @AppShortcutsBuilder static var appShortcuts: [AppShortcut] { get } }
