import Foundation
import StreamFuseCore

/// Where a published bundle is on its way to this device.
public enum OfferState: Sendable, Equatable {
  case available
  /// This device cannot run it, for this reason.
  case unsupported(String)
  /// So many bytes are here.
  case downloading(Int64)
  /// All bytes are here, and the library checks them.
  case checking
  /// Interrupted; it goes on from so many bytes.
  case paused(Int64)
  case installed
}

/// A published bundle.
public struct Offer: Sendable, Equatable, Identifiable {
  /// What the publisher says of it.
  public let entry: CatalogEntry
  /// Where it is.
  public internal(set) var state = OfferState.available
  /// Why its last download ended.
  public internal(set) var error: String?
  /// Its name, which is unique in a catalogue.
  public var id: String { entry.name }

  /// What the screen says of it.
  public var facts: String {
    Word.offerFacts(size(entry.bytes), entry.license ?? Word.licenceUnknown(), entry.contextLength)
  }

  /// What the screen says of its state; nil where there is nothing to say.
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

  /// What part of it is here, from 0 to 1; nil where that is not shown.
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
  /// What the screen says of an import.
  public var text: String {
    switch self {
    case .receiving(let done, let total): Word.copyingOf(size(done), size(total))
    case .checking: Word.checking()
    }
  }
}
