package dev.streamfuse

import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock

/** A [Session.score] that was asked for. */
internal class Scoring {
    /** Whether its end was requested. */
    @Volatile var stopped = false
}

/**
 * A native session with its threading rules: one thread at a time, none after [free], and [stop] at any time.
 *
 * [use] may wait while another thread computes a token or prefills; claiming and stopping never wait.
 */
internal class Sequence(native: NativeSession) {
    private val lock = ReentrantLock(true) // fair, because the answering thread takes it again for each token
    private val gate = Any() // around what follows, held for moments only; to change it takes the lock too, but to claim
    private var native: NativeSession? = native
    private var running: Generation? = null // the answer that the native side generates
    private var claimed: Generation? = null // the last one requested; another that still runs is ending
    private val scorings = mutableSetOf<Scoring>() // scores that wait or run
    private var scoring: Scoring? = null // the one that runs
    private var closing = false
    private var requests = 0L // how many times something was requested or stopped from outside

    /** Makes [answer] the next one. The answer in progress ends at its next token. */
    fun claim(answer: Generation): Unit = synchronized(gate) {
        if (closing) throw closed()
        stop()
        claimed = answer
        answer.request = requests
    }

    /** [claim] for an answer that continues an ended one; false if something was requested or stopped since. */
    fun claimAfter(ended: Generation, answer: Generation): Boolean = synchronized(gate) {
        goesOn(ended).also { if (it) claim(answer) }
    }

    /** Whether nothing was requested or stopped since [ended]. */
    fun goesOn(ended: Generation): Boolean = synchronized(gate) { !closing && requests == ended.request }

    /** Whether [answer] may begin: no later one was requested. */
    fun isClaimed(answer: Generation): Boolean = synchronized(gate) { claimed === answer }

    /** Begins [answer] after the previous one has ended; the caller holds the lock. */
    fun begin(answer: Generation) {
        running?.end()
        synchronized(gate) { running = answer }
    }

    /** [answer] has ended, or will not begin. */
    fun release(answer: Generation): Unit = synchronized(gate) {
        if (running === answer) running = null
        if (claimed === answer) claimed = null
    }

    /** Ends the answer in progress at its next token, and a score; with [only], just this answer. */
    fun stop(only: Generation? = null): Unit = synchronized(gate) {
        if (only == null) {
            requests++
            scorings.forEach(::stop)
        }
        interrupt(only)
    }

    /** Like [stop], but does not end the rounds of tool calls: a running tool's result is still sent to the model. */
    fun interrupt(only: Generation? = null): Unit = synchronized(gate) {
        val answers = listOfNotNull(running, claimed).filter { only == null || it === only }
        answers.forEach { it.stopped = true } // an answer that has not begun checks it when it begins
        if (running in answers) native?.stop()
    }

    /** Ends a score, which then throws [ErrorCode.CANCELLED]. */
    fun stop(score: Scoring): Unit = synchronized(gate) {
        score.stopped = true
        if (scoring === score) native?.stop()
    }

    /** Runs [body] for a score after ending the answer in progress. [stop] and later requests end the score. */
    fun <T> scoring(score: Scoring, body: (NativeSession) -> T): T {
        synchronized(gate) { scorings += score }
        try {
            return alone(keepsRounds = true) { native ->
                synchronized(gate) { scoring = score }
                if (score.stopped) throw cancelled()
                body(native).also { if (score.stopped) throw cancelled() }
            }
        } finally {
            synchronized(gate) {
                scorings -= score
                if (scoring === score) scoring = null
            }
        }
    }

    /** Runs [body] with exclusive use of the session; the answer in progress is not ended. */
    fun <T> use(body: (NativeSession) -> T): T = lock.withLock { body(native ?: throw closed()) }

    /**
     * Ends the answer in progress, even in prefill, then calls [use]. Unless [keepsRounds], also ends scores and the
     * rounds of tool calls: the result of a running tool is dropped.
     */
    fun <T> alone(keepsRounds: Boolean = false, body: (NativeSession) -> T): T {
        if (!keepsRounds) synchronized(gate) { scorings.forEach(::stop) }
        interrupt()
        return use {
            endAll(keepsRounds)
            body(it)
        }
    }

    /** Gives the memory of the cache back, unless an answer is requested or the session is closed. */
    fun trimIfIdle() {
        if (!lock.tryLock()) return
        try {
            if (synchronized(gate) { running == null && claimed == null }) native?.trim()
        } finally {
            lock.unlock()
        }
    }

    /** Runs [body] with the lock held, closed or not. */
    fun <T> locked(body: () -> T): T = lock.withLock(body)

    /**
     * Frees the memory after the token that is being computed, even if ending the answer fails. False if it was freed
     * already.
     */
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

    private fun endAll(keepsRounds: Boolean = false) {
        val (ran, asked) = synchronized(gate) {
            val answers = listOfNotNull(running, claimed)
            if (!keepsRounds || answers.isNotEmpty()) requests++
            answers.forEach { it.stopped = true } // so none of its calls is made
            running to claimed
        }
        try {
            ran?.end()
        } finally {
            asked?.end()
        }
    }

    private fun cancelled() = StreamFuseException(ErrorCode.CANCELLED, "the score was ended before it was complete")

    private fun closed() = StreamFuseException(ErrorCode.CLOSED, "this session is closed; ask the model for another one")
}
