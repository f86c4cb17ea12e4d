// Declarations of Apple's modules, as far as the app's screens use them and as Apple's documentation has them, so that the
// compiler on Linux checks the screens' types. Nothing in here does anything, and nothing of it is in the app.

@MainActor @preconcurrency public protocol View {
  associatedtype Body: View
  @ViewBuilder var body: Body { get }
}

extension Never: View { public var body: Never { return fatalError() } }
public struct SomeView: View { public var body: Never { return fatalError() } }

@resultBuilder public enum ViewBuilder {
  public static func buildExpression<V: View>(_ view: V) -> SomeView { SomeView() }
  public static func buildBlock(_ views: SomeView...) -> SomeView { SomeView() }
  public static func buildOptional(_ view: SomeView?) -> SomeView { SomeView() }
  public static func buildEither(first: SomeView) -> SomeView { first }
  public static func buildEither(second: SomeView) -> SomeView { second }
}

public protocol ShapeStyle: Sendable {}
public protocol Shape: View {}
extension Shape {
  public var body: Never { return fatalError() }
  public func fill<S: ShapeStyle>(_ style: S) -> some View { SomeView() }
}
public struct Color: ShapeStyle, Hashable {
  public init(uiColor: UIColor) {}
  public static let primary = Color(uiColor: .label), secondary = primary, accentColor = primary
  public static let red = primary, green = primary, blue = primary, orange = primary, purple = primary
  public func opacity(_ opacity: Double) -> Color { self }
}
extension Color: View { public var body: Never { return fatalError() } }
public struct HierarchicalShapeStyle: ShapeStyle {}
extension ShapeStyle where Self == HierarchicalShapeStyle {
  public static var primary: HierarchicalShapeStyle { HierarchicalShapeStyle() }
  public static var secondary: HierarchicalShapeStyle { HierarchicalShapeStyle() }
}
public struct Material: ShapeStyle {}
extension ShapeStyle where Self == Material { public static var regularMaterial: Material { Material() } }
public struct Capsule: Shape { public init() {} }
public struct Rectangle: Shape { public init() {} }
public struct RoundedRectangle: Shape { public init(cornerRadius: CGFloat) {} }

public struct LocalizedStringKey: ExpressibleByStringLiteral { public init(stringLiteral: String) {} }
public struct Text: View {
  public init(verbatim: String) {}
  public init(_ key: LocalizedStringKey) {}
  public init<S: StringProtocol>(_ text: S) {}
  public init(_ text: AttributedString) {}
  public var body: Never { return fatalError() }
}
public enum BackgroundColorAttribute: AttributedStringKey {
  public typealias Value = Color
  public static let name = "SwiftUI.BackgroundColor"
}
extension AttributeScopes {
  public struct SwiftUIAttributes: AttributeScope { public let backgroundColor: BackgroundColorAttribute }
}
extension AttributeDynamicLookup {
  public subscript<T: AttributedStringKey>(dynamicMember path: KeyPath<AttributeScopes.SwiftUIAttributes, T>) -> T { self[T.self] }
}
public struct Font: Sendable {
  public static let footnote = Font(), callout = Font(), headline = Font()
  public static let title = Font(), title2 = Font(), title3 = Font(), largeTitle = Font()
  public func bold() -> Font { self }
  public func monospaced() -> Font { self }
}
public struct Image: View {
  public init(systemName: String) {}
  public var body: Never { return fatalError() }
}

public enum HorizontalAlignment { case leading, center, trailing }
public enum VerticalAlignment { case top, center, bottom, firstTextBaseline }
public enum VerticalEdge { case top, bottom }
public enum Alignment { case center, leading, trailing, bottom }
public enum Axis {
  case horizontal, vertical
  public struct Set: OptionSet, Sendable {
    public let rawValue: Int
    public init(rawValue: Int) { self.rawValue = rawValue }
    public static let horizontal = Set(rawValue: 1), vertical = Set(rawValue: 2)
  }
}
public enum Edge {
  public struct Set: OptionSet, Sendable {
    public let rawValue: Int
    public init(rawValue: Int) { self.rawValue = rawValue }
    public static let all = Set(rawValue: 15), horizontal = Set(rawValue: 1), bottom = Set(rawValue: 2)
    public static let vertical = Set(rawValue: 4), leading = Set(rawValue: 8)
  }
  case top, bottom
}
public struct UnitPoint: Sendable { public static let bottom = UnitPoint() }

public struct VStack: View {
  public init<V: View>(alignment: HorizontalAlignment = .center, spacing: CGFloat? = nil, @ViewBuilder content: () -> V) {}
  public var body: Never { return fatalError() }
}
public typealias LazyVStack = VStack
public struct HStack: View {
  public init<V: View>(alignment: VerticalAlignment = .center, spacing: CGFloat? = nil, @ViewBuilder content: () -> V) {}
  public var body: Never { return fatalError() }
}
public struct ScrollView: View {
  public init<V: View>(_ axes: Axis.Set = .vertical, @ViewBuilder content: () -> V) {}
  public var body: Never { return fatalError() }
}
public struct List: View {
  public init<V: View>(@ViewBuilder content: () -> V) {}
  public var body: Never { return fatalError() }
}
public typealias Form = List
public struct Section: View {
  public init<V: View>(@ViewBuilder content: () -> V) {}
  public init<V: View, F: View>(@ViewBuilder content: () -> V, @ViewBuilder footer: () -> F) {}
  public init<V: View, H: View>(@ViewBuilder content: () -> V, @ViewBuilder header: () -> H) {}
  public init<V: View, H: View, F: View>(
    @ViewBuilder content: () -> V, @ViewBuilder header: () -> H, @ViewBuilder footer: () -> F
  ) {}
  public var body: Never { return fatalError() }
}
public struct ForEach<Data: RandomAccessCollection, ID: Hashable>: View {
  public init<V: View>(_ data: Data, id: KeyPath<Data.Element, ID>, @ViewBuilder content: @escaping (Data.Element) -> V) {}
  public init<V: View>(_ data: Data, @ViewBuilder content: @escaping (Data.Element) -> V)
  where Data.Element: Identifiable, ID == Data.Element.ID {}
  public var body: Never { return fatalError() }
}
public struct NavigationStack: View {
  public init<V: View>(@ViewBuilder root: () -> V) {}
  public var body: Never { return fatalError() }
}
public enum NavigationSplitViewColumn { case sidebar, content, detail }
public struct NavigationSplitView: View {
  public init<S: View, D: View>(
    preferredCompactColumn: Binding<NavigationSplitViewColumn>, @ViewBuilder sidebar: () -> S, @ViewBuilder detail: () -> D
  ) {}
  public var body: Never { return fatalError() }
}
public struct Grid: View {
  public init<V: View>(
    alignment: Alignment = .center, horizontalSpacing: CGFloat? = nil, verticalSpacing: CGFloat? = nil,
    @ViewBuilder content: () -> V
  ) {}
  public var body: Never { return fatalError() }
}
public struct GridRow: View {
  public init<V: View>(@ViewBuilder content: () -> V) {}
  public var body: Never { return fatalError() }
}
public struct Spacer: View {
  public init(minLength: CGFloat? = nil) {}
  public var body: Never { return fatalError() }
}
public struct Divider: View {
  public init() {}
  public var body: Never { return fatalError() }
}
public struct DisclosureGroup: View {
  public init<V: View, L: View>(isExpanded: Binding<Bool>, @ViewBuilder content: @escaping () -> V, @ViewBuilder label: () -> L) {}
  public var body: Never { return fatalError() }
}
