import Foundation
import StreamFuseCore

/// The state of a published bundle on this device.
public enum OfferState: Sendable, Equatable {
  case available
  /// This device cannot run it, for this reason.
  case unsupported(String)
  /// Bytes received so far.
  case downloading(Int64)
  /// All bytes are received and being checked.
  case checking
  /// Interrupted; it continues from this number of bytes.
  case paused(Int64)
  case installed
}

/// A published bundle.
public struct Offer: Sendable, Equatable, Identifiable {
  /// Its entry in the catalogue.
  public let entry: CatalogEntry
  /// Its state on this device.
  public internal(set) var state = OfferState.available
  /// Why its last download ended.
  public internal(set) var error: String?
  /// Its name, which is unique in a catalogue, and its contents: offers of several catalogues may have the same name.
  public var id: String { "\(entry.name) \(entry.id)" }

  /// Size, licence and context length, to show.
  public var facts: String {
    Word.offerFacts(size(entry.bytes), entry.license ?? Word.licenceUnknown(), entry.contextLength)
  }

  /// The status line of its row, or the error of its last download; nil if there is neither.
  public var text: String? {
    if let error { return error }
    switch state {
    case .available: return nil
    case .unsupported(let reason): return Word.offerUnsupported(reason)
    case .downloading(let done): return Word.downloadingOf(size(done), size(entry.bytes))
    case .checking: return Word.checking()
    case .paused(let done): return Word.offerPaused(size(done), size(entry.bytes))
    case .installed: return Word.offerInstalled()
    }
  }

  /// The fraction that is received, from 0 to 1; nil if no progress is shown.
  public var fraction: Double? {
    switch state {
    case .downloading(let done), .paused(let done): Double(done) / Double(max(1, entry.bytes))
    default: nil
    }
  }
}

/// Bytes as people write them.
public func size(_ bytes: Int64) -> String { ByteCountFormatter.string(fromByteCount: bytes, countStyle: .file) }

extension BundleProgress {
  /// The status line of an import.
  public var text: String {
    switch self {
    case .receiving(let done, let total): Word.copyingOf(size(done), size(total))
    case .checking: Word.checking()
    }
  }
}
