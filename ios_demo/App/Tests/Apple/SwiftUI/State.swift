// See Views.swift.

@_exported import Foundation
@_exported import UIKit

@MainActor @preconcurrency public protocol App {
  associatedtype Body: Scene
  @SceneBuilder var body: Body { get }
  init()
}
extension App { public static func main() {} }

@MainActor @preconcurrency public protocol Scene {
  associatedtype Body: Scene
  @SceneBuilder var body: Body { get }
}

extension Never: Scene {}
public struct SomeScene: Scene { public var body: Never { return fatalError() } }
@resultBuilder public enum SceneBuilder {
  public static func buildBlock<S: Scene>(_ scene: S) -> S { scene }
}
extension Scene {
  public func onChange<V: Equatable>(of value: V, initial: Bool = false, _ action: @escaping (V, V) -> Void) -> some Scene {
    SomeScene()
  }
}
public struct WindowGroup: Scene {
  public init<V: View>(@ViewBuilder content: @escaping () -> V) {}
  public var body: Never { return fatalError() }
}

@propertyWrapper public struct State<Value> {
  public init(wrappedValue: Value) {}
  public init(initialValue: Value) {}
  public var wrappedValue: Value { get { fatalError() } nonmutating set {} }
  public var projectedValue: Binding<Value> { fatalError() }
}
@propertyWrapper public struct Binding<Value> {
  public init(projectedValue: Binding<Value>) {}
  public init(
    get: @escaping @isolated(any) @Sendable () -> Value, set: @escaping @isolated(any) @Sendable (Value) -> Void
  ) {}
  public var wrappedValue: Value { get { fatalError() } nonmutating set {} }
}
@propertyWrapper public struct FocusState<Value: Hashable> {
  @propertyWrapper public struct Binding {
    public init() {}
    public var wrappedValue: Value { get { fatalError() } nonmutating set {} }
  }
  public init() where Value == Bool {}
  public var wrappedValue: Value { get { fatalError() } nonmutating set {} }
  public var projectedValue: Binding { fatalError() }
}
@propertyWrapper public struct Environment<Value> {
  public init(_ path: KeyPath<EnvironmentValues, Value>) {}
  public var wrappedValue: Value { fatalError() }
}
public struct EnvironmentValues {
  public var scenePhase: ScenePhase { .active }
  public var layoutDirection = LayoutDirection.leftToRight
}
public enum ScenePhase { case background, inactive, active }
