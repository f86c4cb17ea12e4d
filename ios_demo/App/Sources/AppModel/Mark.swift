import StreamFuseCore

/// The tint of drafted text, by its source.
public enum Mark: CaseIterable, Sendable {
  case streams, lookup, table, memory

  /// The tint of a source; nil for the model itself.
  public init?(_ source: Source) {
    guard let mark = Mark.allCases.first(where: { $0.source == source }) else { return nil }
    self = mark
  }

  /// The source of the text.
  public var source: Source {
    switch self {
    case .streams: .streams
    case .lookup: .lookup
    case .table: .table
    case .memory: .memory
    }
  }

  /// Its name.
  public var word: Word {
    switch self {
    case .streams: .streams
    case .lookup: .lookup
    case .table: .table
    case .memory: .memory
    }
  }
}
