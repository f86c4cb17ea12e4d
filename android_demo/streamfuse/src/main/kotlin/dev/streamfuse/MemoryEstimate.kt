package dev.streamfuse

/**
 * What a bundle occupies in memory once it is loaded: [StreamFuse.estimate]. Its tokenizer and the native library take
 * some ten megabytes more.
 *
 * @property weightsBytes the files of the graphs. They are mapped: the system can drop their pages and read them again.
 * @property tablesBytes drafting tables, also mapped.
 * @property cacheBytes the cache of one chat with a full context, in memory of its own. A chat uses as much of it as it
 *   has tokens.
 */
public data class MemoryEstimate(
    public val weightsBytes: Long,
    public val tablesBytes: Long,
    public val cacheBytes: Long,
) {
    /** Bytes with this many chats. */
    public fun totalBytes(chats: Int = 1): Long = weightsBytes + tablesBytes + chats * cacheBytes
}
