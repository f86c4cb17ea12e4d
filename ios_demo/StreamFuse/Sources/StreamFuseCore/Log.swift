#if canImport(os)
  import os

  /// The log of the library: models that are loaded, and figures of a self-test that differ. Console shows it by its
  /// subsystem.
  private let logger = Logger(subsystem: "dev.streamfuse", category: "model")

  /// Logs a sentence.
  package func log(_ sentence: String) { logger.notice("\(sentence, privacy: .public)") }
#else
  /// Linux has no log.
  package func log(_ sentence: String) {}
#endif
