package dev.streamfuse

import java.lang.ref.PhantomReference
import java.lang.ref.ReferenceQueue
import java.util.concurrent.ConcurrentHashMap
import java.util.logging.Level
import java.util.logging.Logger

/**
 * The log of the library: models that are loaded, figures of a failed self-test, leaks, and at the level FINE the end
 * of each answer. On Android it is logcat, with the tag `dev.streamfuse`.
 */
internal val log: Logger = Logger.getLogger("dev.streamfuse")

/**
 * Finds unreachable models and sessions that were not closed, logs the place where they were opened
 * (`java.util.logging`, on Android logcat), and frees their memory.
 *
 * It checks when the next model or session is opened, when the memory is needed, so it needs no thread.
 * `java.lang.ref.Cleaner` is not available before Android 13.
 */
internal object Leaks {
    private val queue = ReferenceQueue<Any>()
    private val watched = ConcurrentHashMap.newKeySet<Watch>()

    /**
     * Watches [owner] until [Watch.end]. [free] frees its memory and must not refer to it; it returns false if that was
     * done already, as for the chats of a closed model.
     */
    fun watch(owner: Any, name: String, free: () -> Boolean): Watch = Watch(owner, name, free).also { watched += it }

    /** Reports and frees what the garbage collector has found. */
    fun sweep() {
        while (true) (queue.poll() as Watch? ?: return).report()
    }

    class Watch(owner: Any, private val name: String, private val free: () -> Boolean) :
        PhantomReference<Any>(owner, queue) {
        private val opened = Throwable("it was opened here")

        /** The owner was closed; stop watching. */
        fun end() {
            watched -= this
            clear()
        }

        internal fun report() {
            if (!watched.remove(this)) return
            val leaked = runCatching(free).onFailure { log.log(Level.WARNING, "$name cannot be closed", it) }
            if (leaked.getOrDefault(true)) {
                log.log(Level.WARNING, "$name was never closed; its memory is given back only now. Call close().", opened)
            }
        }
    }
}
