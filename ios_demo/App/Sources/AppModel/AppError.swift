import Foundation
import StreamFuseCore

/// What the app itself could not do, in one sentence.
public struct AppError: Error, Equatable {
  /// The sentence.
  public let message: String

  init(_ message: String) { self.message = message }
}

/// One sentence for the user.
func sentence(of error: any Error) -> String {
  switch error {
  case let error as AppError: error.message
  case let error as StreamFuseError: error.message
  case is CocoaError, is POSIXError: Word.errorFile(reason(of: error))
  default: Word.errorOther(reason(of: error))
  }
}

/// The system's words, which may be a sentence of their own.
func reason(of error: any Error) -> String {
  let words = (error as? AppError)?.message ?? (error as? StreamFuseError)?.message ?? error.localizedDescription
  return words.hasSuffix(".") ? String(words.dropLast()) : words
}
