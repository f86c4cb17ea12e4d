package dev.streamfuse

/**
 * What a model and its sessions hold outside Java's memory. It refers to none of the objects that the app has, so the
 * garbage collector can tell when those are forgotten.
 */
internal class ModelMemory(private val native: NativeModel) {
    private val lock = Any()
    private val open = mutableSetOf<Sequence>() // guarded by the lock, like `closed`
    private var closed = false

    fun open(make: (NativeModel) -> NativeSession): Sequence = synchronized(lock) {
        if (closed) throw StreamFuseException(ErrorCode.CLOSED, "this model is closed; load it again")
        Sequence(make(native)).also { open += it }
    }

    /** Frees one session; false where that was done. */
    fun close(sequence: Sequence): Boolean {
        try {
            return sequence.free()
        } finally {
            synchronized(lock) { open -= sequence }
        }
    }

    /**
     * Frees all; false where that was done. Where the end of an answer fails the rest is freed all the same, and the
     * first failure is thrown.
     */
    fun close(): Boolean {
        val left = synchronized(lock) {
            if (closed) return false
            closed = true
            open.toList()
        }
        val failures = left.mapNotNull { runCatching { close(it) }.exceptionOrNull() }
        native.close()
        failures.firstOrNull()?.let { throw it.apply { failures.drop(1).forEach(::addSuppressed) } }
        return true
    }
}
