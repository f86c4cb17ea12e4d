// See Views.swift.

@_exported import UniformTypeIdentifiers

public protocol Publisher<Output> { associatedtype Output }
extension NotificationCenter {
  public struct Publisher: SwiftUI.Publisher { public typealias Output = Notification }
  public func publisher(for name: Notification.Name, object: AnyObject? = nil) -> Publisher { Publisher() }
}

public protocol PrimitiveButtonStyle {}
public struct AnyStyle: PrimitiveButtonStyle {}
extension PrimitiveButtonStyle where Self == AnyStyle {
  public static var borderedProminent: AnyStyle { AnyStyle() }
  public static var borderless: AnyStyle { AnyStyle() }
}
public protocol TextSelectability {}
public struct EnabledTextSelectability: TextSelectability {}
extension TextSelectability where Self == EnabledTextSelectability {
  public static var enabled: EnabledTextSelectability { EnabledTextSelectability() }
}
public struct ScrollDismissesKeyboardMode: Sendable { public static let interactively = ScrollDismissesKeyboardMode() }
public struct AccessibilityChildBehavior: Sendable { public static let combine = AccessibilityChildBehavior() }
public enum NavigationBarItem { public enum TitleDisplayMode: Sendable { case automatic, inline, large } }

@MainActor @preconcurrency public protocol ToolbarContent {}
public struct ToolbarItemPlacement: Sendable { public static let topBarTrailing = ToolbarItemPlacement() }
public struct ToolbarItemGroup: ToolbarContent {
  public init<V: View>(placement: ToolbarItemPlacement, @ViewBuilder content: () -> V) {}
}
@resultBuilder public enum ToolbarContentBuilder {
  public static func buildBlock<C: ToolbarContent>(_ content: C) -> C { content }
}

extension View {
  public func padding(_ length: CGFloat) -> some View { SomeView() }
  public func padding(_ edges: Edge.Set = .all, _ length: CGFloat? = nil) -> some View { SomeView() }
  public func frame(width: CGFloat? = nil, height: CGFloat? = nil, alignment: Alignment = .center) -> some View { SomeView() }
  public func frame(
    minWidth: CGFloat? = nil, idealWidth: CGFloat? = nil, maxWidth: CGFloat? = nil, minHeight: CGFloat? = nil,
    idealHeight: CGFloat? = nil, maxHeight: CGFloat? = nil, alignment: Alignment = .center
  ) -> some View { SomeView() }
  public func background<S: ShapeStyle>(_ style: S) -> some View { SomeView() }
  public func background<S: ShapeStyle, T: Shape>(_ style: S, in shape: T) -> some View { SomeView() }
  public func overlay<V: View>(_ overlay: V, alignment: Alignment = .center) -> some View { SomeView() }
  public func foregroundStyle<S: ShapeStyle>(_ style: S) -> some View { SomeView() }
  public func tint(_ tint: Color?) -> some View { SomeView() }
  public func opacity(_ opacity: Double) -> some View { SomeView() }
  public func font(_ font: Font?) -> some View { SomeView() }
  public func lineSpacing(_ spacing: CGFloat) -> some View { SomeView() }
  public func lineLimit(_ limit: ClosedRange<Int>) -> some View { SomeView() }
  public func textSelection<S: TextSelectability>(_ selectability: S) -> some View { SomeView() }
  public func keyboardType(_ type: UIKeyboardType) -> some View { SomeView() }
  public func disabled(_ disabled: Bool) -> some View { SomeView() }
  public func id<ID: Hashable>(_ id: ID) -> some View { SomeView() }
  public func buttonStyle<S: PrimitiveButtonStyle>(_ style: S) -> some View { SomeView() }
  public func defaultScrollAnchor(_ anchor: UnitPoint?) -> some View { SomeView() }
  public func scrollDismissesKeyboard(_ mode: ScrollDismissesKeyboardMode) -> some View { SomeView() }
  public func accessibilityLabel(_ label: Text) -> some View { SomeView() }
  public func accessibilityElement(children: AccessibilityChildBehavior) -> some View { SomeView() }
  public func onChange<V: Equatable>(of value: V, initial: Bool = false, _ action: @escaping (V, V) -> Void) -> some View {
    SomeView()
  }
  public func navigationTitle(_ title: Text) -> some View { SomeView() }
  public func navigationBarTitleDisplayMode(_ mode: NavigationBarItem.TitleDisplayMode) -> some View { SomeView() }
  public func navigationDestination<D: Hashable, C: View>(
    for data: D.Type, @ViewBuilder destination: @escaping (D) -> C
  ) -> some View { SomeView() }
  public func toolbar<C: ToolbarContent>(@ToolbarContentBuilder content: () -> C) -> some View { SomeView() }
  public func fileImporter(
    isPresented: Binding<Bool>, allowedContentTypes: [UTType], onCompletion: @escaping (Result<URL, any Error>) -> Void
  ) -> some View { SomeView() }
  public func alert<A: View>(_ title: Text, isPresented: Binding<Bool>, @ViewBuilder actions: () -> A) -> some View { SomeView() }
  public func task(priority: TaskPriority = .userInitiated, _ action: @escaping @MainActor @Sendable () async -> Void) -> some View {
    SomeView()
  }
  public func onReceive<P: Publisher>(_ publisher: P, perform action: @escaping (P.Output) -> Void) -> some View { SomeView() }
  public func alert<A: View, T>(
    _ title: Text, isPresented: Binding<Bool>, presenting data: T?, @ViewBuilder actions: (T) -> A
  ) -> some View { SomeView() }
}
