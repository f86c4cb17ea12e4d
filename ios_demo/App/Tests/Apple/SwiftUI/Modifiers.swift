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
  public static var bordered: AnyStyle { AnyStyle() }
  public static var borderless: AnyStyle { AnyStyle() }
}
public protocol TextSelectability {}
public struct EnabledTextSelectability: TextSelectability {}
extension TextSelectability where Self == EnabledTextSelectability {
  public static var enabled: EnabledTextSelectability { EnabledTextSelectability() }
}
public struct ScrollDismissesKeyboardMode: Sendable { public static let interactively = ScrollDismissesKeyboardMode() }
public struct AccessibilityChildBehavior: Sendable { public static let combine = AccessibilityChildBehavior() }
public struct AccessibilityTraits: SetAlgebra, OptionSet, Sendable {
  public let rawValue: Int
  public init(rawValue: Int) { self.rawValue = rawValue }
  public static let isHeader = AccessibilityTraits(rawValue: 1), isSelected = AccessibilityTraits(rawValue: 2)
}
public protocol LabelStyle {}
public struct IconOnlyLabelStyle: LabelStyle {}
extension LabelStyle where Self == IconOnlyLabelStyle { public static var iconOnly: Self { Self() } }
public protocol ListStyle {}
public struct SidebarListStyle: ListStyle {}
extension ListStyle where Self == SidebarListStyle { public static var sidebar: Self { Self() } }
public protocol PickerStyle {}
public struct SegmentedPickerStyle: PickerStyle {}
extension PickerStyle where Self == SegmentedPickerStyle { public static var segmented: Self { Self() } }
public enum TextAlignment { case leading, center, trailing }
public enum LayoutDirection { case leftToRight, rightToLeft }
public struct KeyEquivalent: Sendable, ExpressibleByExtendedGraphemeClusterLiteral {
  public static let `return` = KeyEquivalent(extendedGraphemeClusterLiteral: "\r")
  public init(extendedGraphemeClusterLiteral: Character) {}
}
public struct EventModifiers: OptionSet, Sendable {
  public let rawValue: Int
  public init(rawValue: Int) { self.rawValue = rawValue }
  public static let command = EventModifiers(rawValue: 1)
}
public struct SensoryFeedback: Equatable, Sendable {
  public enum Weight: Sendable { case light, medium, heavy }
  public static let success = SensoryFeedback()
  public static func impact(weight: Weight = .medium, intensity: Double = 1) -> SensoryFeedback { success }
}
public struct PresentationAdaptation: Sendable { public static let popover = PresentationAdaptation() }
public struct Animation: Sendable { public static let `default` = Animation() }
@MainActor public func withAnimation<Result>(_ animation: Animation? = .default, _ body: () throws -> Result) rethrows -> Result {
  try body()
}
public struct ScrollPosition: Sendable {
  public init(edge: Edge) {}
  public mutating func scrollTo(edge: Edge) {}
}
public struct ScrollGeometry: Sendable { public var contentSize: CGSize, visibleRect: CGRect }
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
  public func overlay<V: View>(alignment: Alignment = .center, @ViewBuilder content: () -> V) -> some View { SomeView() }
  public func safeAreaInset<V: View>(
    edge: VerticalEdge, alignment: HorizontalAlignment = .center, spacing: CGFloat? = nil, @ViewBuilder content: () -> V
  ) -> some View { SomeView() }
  public func foregroundStyle<S: ShapeStyle>(_ style: S) -> some View { SomeView() }
  public func font(_ font: Font?) -> some View { SomeView() }
  public func bold(_ isActive: Bool = true) -> some View { SomeView() }
  public func monospacedDigit() -> some View { SomeView() }
  public func multilineTextAlignment(_ alignment: TextAlignment) -> some View { SomeView() }
  public func lineLimit(_ limit: ClosedRange<Int>) -> some View { SomeView() }
  public func lineLimit(_ limit: Int?) -> some View { SomeView() }
  public func focused(_ condition: FocusState<Bool>.Binding) -> some View { SomeView() }
  public func keyboardShortcut(_ key: KeyEquivalent, modifiers: EventModifiers = .command) -> some View { SomeView() }
  public func labelStyle<S: LabelStyle>(_ style: S) -> some View { SomeView() }
  public func listStyle<S: ListStyle>(_ style: S) -> some View { SomeView() }
  public func pickerStyle<S: PickerStyle>(_ style: S) -> some View { SomeView() }
  public func listRowBackground<V: View>(_ view: V?) -> some View { SomeView() }
  public func tag<V: Hashable>(_ tag: V) -> some View { SomeView() }
  public func environment<V>(_ path: WritableKeyPath<EnvironmentValues, V>, _ value: V) -> some View { SomeView() }
  public func searchable(text: Binding<String>, prompt: Text? = nil) -> some View { SomeView() }
  public func swipeActions<V: View>(allowsFullSwipe: Bool = true, @ViewBuilder content: () -> V) -> some View { SomeView() }
  public func contextMenu<V: View>(@ViewBuilder menuItems: () -> V) -> some View { SomeView() }
  public func popover<V: View>(isPresented: Binding<Bool>, @ViewBuilder content: @escaping () -> V) -> some View { SomeView() }
  public func presentationCompactAdaptation(_ adaptation: PresentationAdaptation) -> some View { SomeView() }
  public func sheet<I: Identifiable, V: View>(
    item: Binding<I?>, onDismiss: (() -> Void)? = nil, @ViewBuilder content: @escaping (I) -> V
  ) -> some View { SomeView() }
  public func onAppear(perform action: (() -> Void)? = nil) -> some View { SomeView() }
  public func sensoryFeedback<T: Equatable>(trigger: T, _ feedback: @escaping (T, T) -> SensoryFeedback?) -> some View {
    SomeView()
  }
  public func scrollPosition(_ position: Binding<ScrollPosition>, anchor: UnitPoint? = nil) -> some View { SomeView() }
  public func onScrollGeometryChange<T: Equatable>(
    for type: T.Type, of transform: @escaping (ScrollGeometry) -> T, action: @escaping (T, T) -> Void
  ) -> some View { SomeView() }
  public func textSelection<S: TextSelectability>(_ selectability: S) -> some View { SomeView() }
  public func keyboardType(_ type: UIKeyboardType) -> some View { SomeView() }
  public func disabled(_ disabled: Bool) -> some View { SomeView() }
  public func id<ID: Hashable>(_ id: ID) -> some View { SomeView() }
  public func buttonStyle<S: PrimitiveButtonStyle>(_ style: S) -> some View { SomeView() }
  public func defaultScrollAnchor(_ anchor: UnitPoint?) -> some View { SomeView() }
  public func scrollDismissesKeyboard(_ mode: ScrollDismissesKeyboardMode) -> some View { SomeView() }
  public func accessibilityLabel(_ label: Text) -> some View { SomeView() }
  public func accessibilityValue(_ value: Text) -> some View { SomeView() }
  public func accessibilityAddTraits(_ traits: AccessibilityTraits) -> some View { SomeView() }
  public func accessibilityElement(children: AccessibilityChildBehavior) -> some View { SomeView() }
  public func onChange<V: Equatable>(of value: V, initial: Bool = false, _ action: @escaping (V, V) -> Void) -> some View {
    SomeView()
  }
  public func navigationTitle(_ title: Text) -> some View { SomeView() }
  public func navigationBarTitleDisplayMode(_ mode: NavigationBarItem.TitleDisplayMode) -> some View { SomeView() }
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
extension View where Self: Equatable { public func equatable() -> some View { SomeView() } }
