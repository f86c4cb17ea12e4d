package dev.streamfuse

import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock

/**
 * A native session and the rule of its use: one thread at a time, none after [free], but [stop] at any time.
 *
 * [use] may wait for the token that another thread computes (or for its prompt); claiming and stopping never do.
 */
internal class Sequence(native: NativeSession) {
    private val lock = ReentrantLock(true) // fair, because whoever writes an answer takes it anew for each token
    private val gate = Any() // around what follows, held for moments only; to change it takes the lock too, but to claim
    private var native: NativeSession? = native
    private var running: Answer? = null // what the native half writes
    private var claimed: Answer? = null // the last that was asked for; what runs beside it is ending
    private var closing = false

    /** Makes [answer] the one to be written next. What is being written ends at its next token. */
    fun claim(answer: Answer): Unit = synchronized(gate) {
        if (closing) throw closed()
        stop()
        claimed = answer
    }

    /** Whether [answer] may begin: none was asked for after it. */
    fun isClaimed(answer: Answer): Boolean = synchronized(gate) { claimed === answer }

    /** [answer] begins, once what ran has been ended; under the lock. */
    fun begin(answer: Answer) {
        running?.end()
        synchronized(gate) { running = answer }
    }

    /** [answer] has ended, or will not begin. */
    fun release(answer: Answer): Unit = synchronized(gate) {
        if (running === answer) running = null
        if (claimed === answer) claimed = null
    }

    /** Ends what is being written at its next token; with [only] given, nothing but that. */
    fun stop(only: Answer? = null): Unit = synchronized(gate) {
        val answers = listOfNotNull(running, claimed).filter { only == null || it === only }
        answers.forEach { it.stopped = true } // one that has not begun looks at it when it does
        if (running in answers) native?.stop()
    }

    /** Runs [body] while nobody else uses the session; what is being written goes on. */
    fun <T> use(body: (NativeSession) -> T): T = lock.withLock { body(native ?: throw closed()) }

    /** [use] once what is being written has been ended. */
    fun <T> alone(body: (NativeSession) -> T): T = use {
        endAll()
        body(it)
    }

    /** Runs [body] with the lock held, closed or not. */
    fun <T> locked(body: () -> T): T = lock.withLock(body)

    /** Gives the memory back, once the token that is being computed is there; also where the answer's end fails. False where that was done. */
    fun free(): Boolean {
        synchronized(gate) { closing = true }
        stop()
        lock.withLock {
            val freed = native ?: return false
            try {
                endAll()
            } finally {
                synchronized(gate) { native = null }
                freed.free()
            }
        }
        return true
    }

    private fun endAll() {
        val (ran, asked) = synchronized(gate) { running to claimed }
        try {
            ran?.end()
        } finally {
            asked?.end()
        }
    }

    private fun closed() = StreamFuseException(ErrorCode.CLOSED, "this session is closed; ask the model for another one")
}
