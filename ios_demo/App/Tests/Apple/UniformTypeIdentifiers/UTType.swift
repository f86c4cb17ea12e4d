// See ../SwiftUI/Views.swift.

public struct UTType: Sendable { public static let folder = UTType() }
