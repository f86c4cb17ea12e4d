package dev.streamfuse

/**
 * Receives an answer without coroutines. Its functions are called one after another on [Options.dispatcher], by default
 * not the main thread; the next token waits until they return.
 */
public interface GenerationCallback {
    /** The next step of the answer. An exception thrown here ends the answer and is passed to [onError]. */
    public fun onPiece(piece: Piece)

    /** The answer has ended, complete or stopped. An exception thrown here is passed to [onError]. */
    public fun onDone(statistics: Statistics)

    /**
     * The answer has failed; no further call follows. An exception thrown here goes to the thread's handler of uncaught
     * exceptions, which on Android ends the process.
     */
    public fun onError(error: Throwable)
}
