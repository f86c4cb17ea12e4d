package dev.streamfuse

import java.io.File
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Executors
import java.util.concurrent.RejectedExecutionException
import java.util.concurrent.TimeUnit.SECONDS
import java.util.logging.Handler
import java.util.logging.Level
import java.util.logging.LogRecord
import java.util.logging.Logger
import kotlin.concurrent.thread
import kotlin.coroutines.CoroutineContext
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Runnable
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertSame
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Memory comes back and callbacks hear of it, also where the native half fails or an app forgets to close. */
class ClosingTest {
    private val native = FakeNative()
    private val failure = StreamFuseException(ErrorCode.BROKEN, "the text cannot be ended")

    private class RecordingCallback(private val onPiece: (Piece) -> Unit = {}, private val onDone: () -> Unit = {}) :
        GenerationCallback {
        private val ended = CountDownLatch(1)
        var error: Throwable? = null

        fun wait() = apply { assertTrue(ended.await(10, SECONDS), "neither onDone nor onError was called") }

        override fun onPiece(piece: Piece) = onPiece.invoke(piece)

        override fun onDone(statistics: Statistics) {
            onDone.invoke()
            ended.countDown()
        }

        override fun onError(error: Throwable) {
            this.error = error
            ended.countDown()
        }
    }

    @Test
    fun `tokens are counted while a chat is made`() {
        native.model().use { model ->
            val (begun, goOn) = CountDownLatch(1) to CountDownLatch(1)
            native.beforeChat = {
                begun.countDown()
                goOn.await()
            }
            val made = thread { model.chat() }
            assertTrue(begun.await(10, SECONDS))
            assertEquals(5, model.countTokens("Hello"))
            goOn.countDown()
            made.join()
        }
    }

    @Test
    fun `an answer that ends before it begins leaves no statistics of an earlier one`(@TempDir folder: File) {
        val single = Executors.newSingleThreadExecutor()
        native.model(Options(dispatcher = single.asCoroutineDispatcher())).use { model ->
            val chat = model.chat()
            RecordingCallback().also { chat.send("Hello", it) }.wait()
            assertEquals("length", chat.statistics!!.finishReason)
            val goOn = CountDownLatch(1)
            single.execute { goOn.await() }
            val callback = RecordingCallback().also { chat.send("Hello", it) }
            chat.save(File(folder, "saved"))
            goOn.countDown()
            callback.wait()
            assertEquals("stopped", chat.statistics!!.finishReason)
        }
        single.shutdown()
    }

    @Test
    fun `an answer whose end fails comes to onError, and the thread lives on`() {
        val thread = Executors.newSingleThreadExecutor()
        var uncaught: Throwable? = null
        thread.submit { Thread.currentThread().setUncaughtExceptionHandler { _, error -> uncaught = error } }.get()
        native.model(Options(dispatcher = thread.asCoroutineDispatcher())).use { model ->
            val chat = model.chat()
            native.sessions.single().endFails = failure
            assertSame(failure, RecordingCallback().also { chat.send("Hello", it) }.wait().error)

            native.sessions.single().endFails = null
        }
        thread.shutdown()
        assertTrue(thread.awaitTermination(10, SECONDS))
        assertEquals(null, uncaught)
    }

    @Test
    fun `the callback's own exception is the one that is reported, with what failed after it`() {
        native.model().use { model ->
            val chat = model.chat()
            val mine = IllegalStateException("enough")
            native.sessions.single().endFails = failure
            val callback = RecordingCallback({ throw mine }).also { chat.send("Hello", it) }.wait()
            assertSame(mine, callback.error)
            assertEquals(listOf(failure), mine.suppressed.toList())
            native.sessions.single().endFails = null
        }
    }

    @Test
    fun `an exception of onDone comes to onError`() {
        native.model().use { model ->
            val mine = IllegalStateException("the screen is gone")
            val callback = RecordingCallback(onDone = { throw mine }).also { model.chat().send("Hello", it) }.wait()
            assertSame(mine, callback.error)
        }
    }

    @Test
    fun `a dispatcher that takes no work refuses the request, and the chat is free`() {
        val closed = object : CoroutineDispatcher() {
            override fun dispatch(context: CoroutineContext, block: Runnable) = throw RejectedExecutionException("closed")
        }
        native.model(Options(dispatcher = closed)).use { model ->
            val error = failureOf<Exception> { model.chat().send("Hello", RecordingCallback()) }
            assertTrue(error is RejectedExecutionException || error.cause is RejectedExecutionException, "$error")
        }
        assertTrue(native.closed)
    }

    @Test
    fun `where the end of an answer fails, the session and the model give their memory back all the same`() = runBlocking {
        val model = native.model()
        val failing = model.chat()
        val other = model.chat()
        native.sessions[0].endFails = failure
        val error = failureOf<StreamFuseException> {
            failing.send("Hello").collect { model.close() }
        }
        assertSame(failure, error)
        assertTrue(native.sessions.all { it.freed })
        assertTrue(native.closed)
        other.close()
        failing.close()
    }

    @Test
    fun `what the app forgets to close is freed when the next session is opened, and the log has the place where it was opened`() {
        val warnings = mutableListOf<LogRecord>()
        val listener = object : Handler() {
            override fun publish(record: LogRecord) {
                val warns = record.level == Level.WARNING
                if (warns && "forgotten" in record.message) warnings += record // and not what other tests left
            }

            override fun flush() = Unit

            override fun close() = Unit
        }
        val log = Logger.getLogger("dev.streamfuse")
        log.addHandler(listener)
        log.useParentHandlers = false
        try {
            val model = native.model(name = "forgotten")
            forgetAChat(model)
            assertFalse(native.sessions[0].freed)
            until { model.chat().close(); native.sessions[0].freed }
            assertTrue("a chat of forgotten was never closed" in warnings.single().message, warnings.single().message)
            assertTrue(warnings.single().thrown.stackTrace.any { it.methodName == "forgetAChat" })

            val forgotten = FakeNative()
            forgetAModel(forgotten)
            until { model.chat().close(); forgotten.closed }
            assertTrue(forgotten.sessions.single().freed)
            model.close()
            until { System.gc(); Leaks.sweep(); true }
            val names = warnings.map { it.message.substringBefore(" was never closed") }
            assertEquals(setOf("a chat of forgotten", "the model forgotten"), names.toSet())
            assertTrue(names.size <= 3, "what was closed is reported too: $names")
        } finally {
            log.removeHandler(listener)
            log.useParentHandlers = true
        }
    }

    private fun forgetAChat(model: Model) {
        model.chat().answer("Hello")
    }

    private fun forgetAModel(native: FakeNative) {
        native.model(name = "forgotten").chat()
    }

    /** Asks the collector until something is so. */
    private fun until(so: () -> Boolean) {
        val end = System.nanoTime() + 10_000_000_000
        while (!so()) {
            check(System.nanoTime() < end) { "nothing came of it" }
            System.gc()
            Thread.sleep(10)
        }
    }
}
