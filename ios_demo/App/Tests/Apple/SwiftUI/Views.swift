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
  public func stroke<S: ShapeStyle>(_ style: S, lineWidth: CGFloat = 1) -> some View { SomeView() }
}
public struct Color: ShapeStyle, View, Hashable {
  public init(uiColor: UIColor) {}
  public static let clear = Color(uiColor: UIColor(red: 0, green: 0, blue: 0, alpha: 0))
  public var body: Never { return fatalError() }
}
public struct Circle: Shape { public init() {} }
public struct RoundedRectangle: Shape { public init(cornerRadius: CGFloat) {} }

public struct LocalizedStringKey: ExpressibleByStringLiteral { public init(stringLiteral: String) {} }
public struct Text: View {
  public struct LineStyle: Hashable, Sendable {
    public struct Pattern: Hashable, Sendable {
      public static let solid = Pattern(), dot = Pattern(), dash = Pattern()
    }
    public init(pattern: Pattern = .solid, color: Color? = nil) {}
  }
  public init(verbatim: String) {}
  public init(_ key: LocalizedStringKey) {}
  public init<S: StringProtocol>(_ text: S) {}
  public init(_ text: AttributedString) {}
  public var body: Never { return fatalError() }
}
public enum ColorAttribute: AttributedStringKey {
  public typealias Value = Color
  public static let name = "SwiftUI.ForegroundColor"
}
public enum UnderlineAttribute: AttributedStringKey {
  public typealias Value = Text.LineStyle
  public static let name = "SwiftUI.UnderlineStyle"
}
extension AttributeScopes {
  public struct SwiftUIAttributes: AttributeScope {
    public let foregroundColor: ColorAttribute
    public let underlineStyle: UnderlineAttribute
  }
}
extension AttributeDynamicLookup {
  public subscript<T: AttributedStringKey>(dynamicMember path: KeyPath<AttributeScopes.SwiftUIAttributes, T>) -> T { self[T.self] }
}
public struct Font: Sendable {
  public static let footnote = Font()
  public func bold() -> Font { self }
  public func monospaced() -> Font { self }
}
public struct Image: View {
  public init(systemName: String) {}
  public var body: Never { return fatalError() }
}

public enum HorizontalAlignment { case leading, center, trailing }
public enum VerticalAlignment { case top, center, bottom }
public enum Alignment { case center, leading, trailing }
public enum Axis {
  case horizontal, vertical
  public struct Set: OptionSet, Sendable {
    public let rawValue: Int
    public init(rawValue: Int) { self.rawValue = rawValue }
    public static let horizontal = Set(rawValue: 1), vertical = Set(rawValue: 2)
  }
}
public struct Edge {
  public struct Set: OptionSet, Sendable {
    public let rawValue: Int
    public init(rawValue: Int) { self.rawValue = rawValue }
    public static let all = Set(rawValue: 15), horizontal = Set(rawValue: 1), bottom = Set(rawValue: 2)
  }
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
  public init<D: MutableCollection & RandomAccessCollection & RangeReplaceableCollection, V: View>(
    path: Binding<D>, @ViewBuilder root: () -> V
  ) where D.Element: Hashable {}
  public var body: Never { return fatalError() }
}

public struct ButtonRole: Equatable, Sendable { public static let destructive = ButtonRole(), cancel = ButtonRole() }
public struct Button: View {
  public init<V: View>(role: ButtonRole? = nil, action: @escaping @MainActor () -> Void, @ViewBuilder label: () -> V) {}
  public var body: Never { return fatalError() }
}
public struct Menu: View {
  public init<V: View, L: View>(@ViewBuilder content: () -> V, @ViewBuilder label: () -> L) {}
  public var body: Never { return fatalError() }
}
public struct TextField: View {
  public init<S: StringProtocol>(_ title: S, text: Binding<String>) {}
  public init<S: StringProtocol>(_ title: S, text: Binding<String>, axis: Axis) {}
  public var body: Never { return fatalError() }
}
public struct Picker: View {
  public init<T: Hashable, V: View, L: View>(selection: Binding<T>, @ViewBuilder content: () -> V, @ViewBuilder label: () -> L) {}
  public var body: Never { return fatalError() }
}
public struct ProgressView: View {
  public init<L: View>(@ViewBuilder label: () -> L) {}
  public init<N: BinaryFloatingPoint>(value: N?, total: N = 1.0) {}
  public init<N: BinaryFloatingPoint, L: View>(value: N?, total: N = 1.0, @ViewBuilder label: () -> L) {}
  public var body: Never { return fatalError() }
}
public struct ShareLink: View {
  public init<L: View>(item: String, subject: Text? = nil, message: Text? = nil, @ViewBuilder label: () -> L) {}
  public var body: Never { return fatalError() }
}
