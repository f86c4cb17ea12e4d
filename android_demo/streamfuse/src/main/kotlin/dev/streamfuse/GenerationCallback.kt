package dev.streamfuse

/**
 * Hears of an answer without coroutines. Its functions are called one after another by the thread that generates, never
 * by the main thread: what they do delays the next token.
 */
public interface GenerationCallback {
    /** The next step of the answer. An exception thrown here ends the answer and comes back to [onError]. */
    public fun onPiece(piece: Piece)

    /** The answer has ended, whole or stopped. An exception thrown here comes to [onError]. */
    public fun onDone(statistics: Statistics)

    /**
     * The answer has failed; nothing follows. An exception thrown here is the app's own: it reaches the thread's handler
     * of uncaught exceptions, which on Android ends the process.
     */
    public fun onError(error: Throwable)
}
