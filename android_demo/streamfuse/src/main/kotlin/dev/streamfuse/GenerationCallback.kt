package dev.streamfuse

/**
 * Hears of an answer without coroutines. Its functions are called one after another by the thread that generates, never
 * by the main thread: what they do delays the next token.
 */
public interface GenerationCallback {
    /** The next step of the answer. An exception thrown here ends the answer and comes back to [onError]. */
    public fun onPiece(piece: Piece)

    /** The answer has ended, whole or stopped. The chat is free for the next one. */
    public fun onDone(statistics: Statistics)

    /** The answer has failed; nothing follows. The chat is free for the next one. */
    public fun onError(error: Throwable)
}
