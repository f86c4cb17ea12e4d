package dev.streamfuse

import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.locks.ReentrantLock
import java.util.concurrent.locks.ReentrantReadWriteLock
import kotlin.concurrent.read
import kotlin.concurrent.withLock
import kotlin.concurrent.write

/**
 * The native memory of a model and its sessions. It holds no reference to the app's objects, so the garbage collector
 * can find those that are unreachable.
 */
internal class ModelMemory(private val native: NativeModel) {
    private val lock = ReentrantReadWriteLock() // shared by calls of the native side, which any thread may make
    private val open: MutableSet<Sequence> = ConcurrentHashMap.newKeySet()
    private var closed = false // guarded by the write lock
    private val testing = ReentrantLock() // during a self-test, which takes seconds; `close` waits for it

    fun open(make: (NativeModel) -> NativeSession): Sequence = withOpen { native ->
        Sequence(make(native)).also { open += it }
    }

    fun forget(): Unit = withOpen(NativeModel::forget)

    fun selfTest(): String = testing.withLock {
        withOpen { }
        native.selfTest()
    }

    /**
     * Gives back the memory of the caches of sessions that are not in use. If one fails, the others are trimmed anyway,
     * and the first failure is thrown.
     */
    fun trim(): Unit = throwFirst(failuresOf(open, Sequence::trimIfIdle))

    /** Ends all answers at their next token, without waiting for that. */
    fun stopAll(): Unit = open.forEach { it.stop() }

    fun countTokens(text: String): Int = withOpen { it.countTokens(text) }

    private fun <T> withOpen(body: (NativeModel) -> T): T = lock.read {
        if (closed) throw StreamFuseException(ErrorCode.CLOSED, "this model is closed; load it again")
        body(native)
    }

    /** Frees one session; false if that was done already. */
    fun close(sequence: Sequence): Boolean {
        try {
            return sequence.free()
        } finally {
            open -= sequence
        }
    }

    /**
     * Frees all; false if that was done already. If ending an answer fails, the rest is freed anyway, and the first
     * failure is thrown.
     */
    fun close(): Boolean {
        val left = lock.write {
            if (closed) return false
            closed = true
            open.toList()
        }
        val failures = failuresOf(left) { close(it) }
        testing.withLock { native.close() }
        throwFirst(failures)
        return true
    }

    private fun failuresOf(sequences: Collection<Sequence>, body: (Sequence) -> Unit): List<Throwable> =
        sequences.mapNotNull { runCatching { body(it) }.exceptionOrNull() }

    private fun throwFirst(failures: List<Throwable>) {
        failures.firstOrNull()?.let { throw it.apply { failures.drop(1).forEach(::addSuppressed) } }
    }
}
