// See Views.swift.

public struct ButtonRole: Equatable, Sendable { public static let destructive = ButtonRole(), cancel = ButtonRole() }
public struct Button: View {
  public init<V: View>(role: ButtonRole? = nil, action: @escaping @MainActor () -> Void, @ViewBuilder label: () -> V) {}
  public var body: Never { return fatalError() }
}
public struct Menu: View {
  public init<V: View, L: View>(@ViewBuilder content: () -> V, @ViewBuilder label: () -> L) {}
  public var body: Never { return fatalError() }
}
public struct Label<Title: View, Icon: View>: View { public var body: Never { return fatalError() } }
extension Label where Title == Text, Icon == Image {
  public init<S: StringProtocol>(_ title: S, systemImage name: String) {}
}
public struct Toggle: View {
  public init<L: View>(isOn: Binding<Bool>, @ViewBuilder label: () -> L) {}
  public var body: Never { return fatalError() }
}
public struct Slider: View {
  public init<N: BinaryFloatingPoint, L: View>(
    value: Binding<N>, in bounds: ClosedRange<N>, step: N.Stride = 1, @ViewBuilder label: () -> L
  ) where N.Stride: BinaryFloatingPoint {}
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
