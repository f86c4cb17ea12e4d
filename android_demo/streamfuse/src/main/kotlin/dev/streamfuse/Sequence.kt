package dev.streamfuse

import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock

/**
 * A native session and the rule of its use: one thread at a time, none after [free], but [stop] at any time.
 *
 * [use] may wait for the token that another thread computes (or for its prompt); claiming and stopping never do.
 */
internal class Sequence(private var handle: Long, private val reply: Reply) {
    private val lock = ReentrantLock(true) // fair, because whoever writes an answer takes it anew for each token
    private val gate = Any() // around what follows and the handle's end, held for moments only
    private var current: Answer? = null
    private var closing = false

    /** Makes [answer] the one that is being written. */
    fun claim(answer: Answer): Unit = synchronized(gate) {
        check(!closing) { CLOSED }
        check(current == null) { "this session is writing an answer; stop that one or wait for its end" }
        current = answer
    }

    /** [answer] has ended. */
    fun release(answer: Answer): Unit = synchronized(gate) { if (current === answer) current = null }

    /** Ends what is being written at its next token; with [only] given, nothing but that. */
    fun stop(only: Answer? = null): Unit = synchronized(gate) {
        val answer = current
        if (answer != null && (only == null || only === answer)) {
            answer.stopped = true
            Native.stop(handle)
        }
    }

    /** Runs [body] while nobody else uses the session; what is being written goes on. */
    fun <T> use(body: (handle: Long, reply: Reply) -> T): T = lock.withLock {
        check(handle != 0L) { CLOSED }
        body(handle, reply)
    }

    /** [use] once what is being written has been ended; [body] returns a code. */
    fun alone(body: (handle: Long) -> Int): Unit = use { handle, _ ->
        synchronized(gate) { current }?.end()
        check(body(handle))
    }

    /** Throws what the last native function said, unless its code is 0; under the lock. */
    fun check(code: Int) {
        if (code != Native.OK) throw failure(code, Native.error(handle).text())
    }

    /** Gives the memory back, once the token that is being computed is there. */
    fun free() {
        synchronized(gate) { closing = true }
        stop()
        lock.withLock {
            if (handle == 0L) return
            synchronized(gate) { current }?.end()
            val freed = handle
            synchronized(gate) {
                handle = 0L
                current = null
            }
            Native.freeSession(freed)
        }
    }

    /** Runs [body] with the lock held, closed or not. */
    fun <T> locked(body: () -> T): T = lock.withLock(body)

    private companion object {
        const val CLOSED = "this session is closed; ask the model for another one"
    }
}
