package dev.streamfuse

import java.lang.ref.PhantomReference
import java.lang.ref.ReferenceQueue
import java.util.concurrent.ConcurrentHashMap
import java.util.logging.Level
import java.util.logging.Logger

/**
 * Finds models and sessions that the app has forgotten without closing them, says so in the log (`java.util.logging`,
 * on Android logcat) with the place where they were opened, and gives their memory back.
 *
 * It looks when the next model or session is opened, the moment at which the memory is wanted: no thread waits for it.
 * `java.lang.ref.Cleaner` is not on Androids before 13.
 */
internal object Leaks {
    private val log = Logger.getLogger("dev.streamfuse")
    private val queue = ReferenceQueue<Any>()
    private val watched = ConcurrentHashMap.newKeySet<Watch>()

    /**
     * Watches [owner] until [Watch.end]. [free] gives its memory back, and must not refer to it; false: that was done, as
     * for the chats of a model that was closed.
     */
    fun watch(owner: Any, name: String, free: () -> Boolean): Watch = Watch(owner, name, free).also { watched += it }

    /** Reports and frees what the garbage collector has found. */
    fun sweep() {
        while (true) (queue.poll() as Watch? ?: return).report()
    }

    class Watch(owner: Any, private val name: String, private val free: () -> Boolean) :
        PhantomReference<Any>(owner, queue) {
        private val opened = Throwable("it was opened here")

        /** It was closed. */
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
