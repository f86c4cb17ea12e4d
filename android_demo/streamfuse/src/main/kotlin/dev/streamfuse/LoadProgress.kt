package dev.streamfuse

import java.util.concurrent.CancellationException
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import kotlinx.coroutines.withTimeoutOrNull

private const val PERIOD_MS = 50L

/** The progress of one load, which other threads may read and cancel. Close it after the load has returned. */
internal class LoadProgress : AutoCloseable {
    val handle = Native.newProgress()

    init {
        if (handle == 0L) throw failure(Native.OUT_OF_MEMORY) { "" }
    }

    /** From 0 to 1. */
    val fraction: Double get() = Native.progress(handle)

    @Volatile
    var isCancelled = false
        private set

    /** The load ends soon and fails with [ErrorCode.CANCELLED]. */
    fun cancel() {
        isCancelled = true
        Native.cancelProgress(handle)
    }

    override fun close(): Unit = Native.freeProgress(handle)
}

/** Runs [open] on [dispatcher] and reports how far it is. If it fails or the caller is cancelled, nothing stays open. */
internal suspend fun <T : AutoCloseable> loaded(
    progress: LoadProgress,
    dispatcher: CoroutineDispatcher,
    onProgress: (Double) -> Unit,
    open: () -> T,
): T {
    var opened: T? = null
    try {
        coroutineScope {
            val loading = launch(dispatcher) {
                try {
                    opened = open()
                } catch (error: StreamFuseException) {
                    throw if (progress.isCancelled) CancellationException("loading was cancelled") else error
                }
            }
            try {
                while (loading.isActive) {
                    onProgress(progress.fraction)
                    withTimeoutOrNull(PERIOD_MS) { loading.join() }
                }
            } catch (error: Throwable) { // cancelled, or of the caller's function
                progress.cancel()
                throw error
            }
        }
        onProgress(1.0)
        return checkNotNull(opened)
    } catch (error: Throwable) {
        withContext(NonCancellable + dispatcher) { opened?.close() }
        throw error
    }
}
