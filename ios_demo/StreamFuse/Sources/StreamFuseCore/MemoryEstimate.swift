/// What a bundle occupies in memory once it is loaded: `StreamFuse.estimate`. Its tokenizer and the native library take
/// some ten megabytes more.
public struct MemoryEstimate: Sendable, Hashable {
  /// Bytes of the files of the graphs. They are mapped: the system can drop their pages and read them again.
  public let weightsBytes: Int
  /// Bytes of drafting tables, also mapped.
  public let tablesBytes: Int
  /// Bytes of the cache of one chat with a full context, in memory of its own. A chat of the native engine uses as much
  /// of it as it has tokens.
  public let cacheBytes: Int

  /// An estimate.
  public init(weightsBytes: Int, tablesBytes: Int, cacheBytes: Int) {
    self.weightsBytes = weightsBytes
    self.tablesBytes = tablesBytes
    self.cacheBytes = cacheBytes
  }

  /// Bytes with this many chats.
  public func totalBytes(chats: Int = 1) -> Int { weightsBytes + tablesBytes + chats * cacheBytes }
}
