import StreamFuseCore

/// The app's colours, by day and at night, as 0xRRGGBB. Those of the Android app, which holds their contrasts to 4.5 to 1,
/// under the same names; a test compares them.
public enum Paint: String, CaseIterable, Sendable {
  case background, question, outline, text, textSecondary, accent, onAccent, error, streams, lookup, table

  /// By day.
  public var light: UInt32 {
    switch self {
    case .background: 0xFAFAFC
    case .question: 0xE3E8F4
    case .outline: 0x767A86
    case .text: 0x1A1B20
    case .textSecondary: 0x565A66
    case .accent: 0x2D4FA3
    case .onAccent: 0xFFFFFF
    case .error: 0xB3261E
    case .streams: 0x0B6B3A
    case .lookup: 0x1558C0
    case .table: 0x9A3D00
    }
  }

  /// At night.
  public var dark: UInt32 {
    switch self {
    case .background: 0x121318
    case .question: 0x2A3040
    case .outline: 0x8E919D
    case .text: 0xE5E5EA
    case .textSecondary: 0xB0B3BE
    case .accent: 0xA9C0FF
    case .onAccent: 0x10204D
    case .error: 0xFFB4AB
    case .streams: 0x6FDB9C
    case .lookup: 0x8DB9FF
    case .table: 0xFFB27A
    }
  }
}

/// How drafted text looks: a colour, and a kind of line for those who cannot tell colours apart.
public enum Mark: CaseIterable, Sendable {
  case streams, lookup, table

  /// The kind of line under the text.
  public enum Line: Sendable { case solid, dashed, dotted }

  /// That of a drafted token's source; nil where the model wrote it itself.
  public init?(_ source: Source) {
    guard let mark = Mark.allCases.first(where: { $0.source == source }) else { return nil }
    self = mark
  }

  /// Who drafts what looks so.
  public var source: Source {
    switch self {
    case .streams: .streams
    case .lookup: .lookup
    case .table: .table
    }
  }

  /// Its word, its colour and its line.
  public var look: (word: Word, paint: Paint, line: Line) {
    switch self {
    case .streams: (.streams, .streams, .solid)
    case .lookup: (.lookup, .lookup, .dashed)
    case .table: (.table, .table, .dotted)
    }
  }
}
