package dev.streamfuse

import java.io.File
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit.SECONDS
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** An answer may be ended at any token, in any way; the next one is as if it had been short. */
class EarlyEndTest {
    private val question = "Explain why the sky is blue."
    private val whole = Models.demo.chat().use { it.answer(question, fixed) }

    @Test
    fun `leaving the flow or cancelling its coroutine at every token leaves a usable chat`() = runBlocking {
        Models.demo.chat().use { chat ->
            for (n in 1..16) {
                chat.reset()
                val left = chat.send(question, fixed).take(n).toList()
                assertEquals(whole.pieces.take(n), left)
                assertEquals(left.joinToString("") { it.text }, chat.messages.last().content.take(textOf(left).length))
                assertEquals(n, chat.statistics!!.generatedTokens)

                chat.reset()
                val pieces = mutableListOf<Piece>()
                val job = launch(Dispatchers.Default) {
                    chat.send(question, fixed).collect { piece ->
                        pieces += piece
                        if (pieces.size == n) throw CancellationException("enough")
                    }
                }
                job.join()
                assertTrue(job.isCancelled)
                assertEquals(whole.pieces.take(n), pieces)
                assertEquals(n, chat.statistics!!.generatedTokens, "nothing was computed beyond the delivered pieces")
                assertEquals("stopped", chat.statistics!!.finishReason)
            }
            chat.reset()
            assertEquals(whole.tokens, chat.answer(question, fixed).tokens)
        }
    }

    @Test
    fun `a coroutine that is cancelled from outside ends at the next token, also while a long prompt is read`() =
        runBlocking<Unit> {
            Models.demo.chat().use { chat ->
                val job = launch(Dispatchers.Default) { chat.generate("word ".repeat(900), fixed) }
                withTimeout(5000) { while (chat.messages.isEmpty()) delay(1) }
                job.cancelAndJoin()
                assertEquals(emptyList<Message>(), chat.messages, "a question without an answer is forgotten")
                val read = chat.statistics!!.prefilledTokens
                assertTrue(read < 900, "$read tokens were read")
                assertEquals(whole.tokens, chat.answer(question, fixed).tokens)
            }
        }

    @Test
    fun `a stop while a long prompt is read forgets the question`() = runBlocking {
        Models.demo.chat().use { chat ->
            val job = launch(Dispatchers.Default) { chat.generate("word ".repeat(900), fixed) }
            withTimeout(5000) { while (chat.messages.isEmpty()) delay(1) }
            chat.stop()
            job.join()
            assertEquals(emptyList<Message>(), chat.messages)
            assertEquals(0, chat.statistics!!.generatedTokens)
            assertEquals(whole.tokens, chat.answer(question, fixed).tokens)
        }
    }

    @Test
    fun `every other call ends an answer while a long prompt is read, also on one thread`(@TempDir folder: File) {
        val ends = mapOf<String, suspend (Chat) -> Unit>(
            "save" to { it.saveInBackground(File(folder, "saved")) }, "trim" to { it.trimInBackground() },
            "prepare" to { it.prepareInBackground() }, "reset" to { it.resetInBackground() },
            "close" to { it.closeInBackground() },
        )
        val options = Options(dispatcher = Dispatchers.IO.limitedParallelism(1))
        StreamFuse.loadBlocking(Repository.bundle("demo"), options).use { model ->
            for ((name, end) in ends) runBlocking {
                val chat = model.chatInBackground()
                val job = launch(Dispatchers.Default) { chat.generate("word ".repeat(900), fixed) }
                withTimeout(5000) { while (chat.messages.isEmpty()) delay(1) }
                end(chat)
                job.join()
                assertEquals(emptyList<Message>(), chat.messages, name)
                assertEquals("stopped", chat.statistics!!.finishReason, name)
                assertTrue(chat.statistics!!.prefilledTokens < 900, name)
                chat.close()
            }
        }
    }

    @Test
    fun `stop at every token completes the flow, and the next turn goes on from there`() = runBlocking {
        Models.demo.chat().use { chat ->
            for (n in 1..16 step 3) {
                chat.reset()
                val pieces = mutableListOf<Piece>()
                chat.send(question, fixed).collect {
                    pieces += it
                    if (pieces.size == n) chat.stop()
                }
                assertEquals(whole.tokens.take(n), pieces.mapNotNull { it.token })
                assertEquals(if (n == 16) "length" else "stopped", chat.statistics!!.finishReason)
                assertEquals(textOf(pieces), chat.messages.last().content)
                val read = chat.answer("Go on.", fixed).statistics.prefilledTokens
                assertTrue(read < 20, "$read tokens were read, and not the new turn alone")
            }
        }
    }

    @Test
    fun `save, reset and close end what is being written, and the flow completes`(@TempDir folder: File) = runBlocking {
        val file = File(folder, "saved")
        val ends = mapOf<String, (Chat) -> Unit>(
            "save" to { it.save(file) }, "reset" to { it.reset() }, "close" to { it.close() },
        )
        for ((name, end) in ends) {
            val chat = Models.demo.chat()
            val pieces = mutableListOf<Piece>()
            chat.send(question, fixed).collect {
                pieces += it
                if (pieces.size == 5) end(chat)
            }
            assertEquals(whole.tokens.take(5), pieces.mapNotNull { it.token }, name)
            assertEquals("stopped", chat.statistics!!.finishReason, name)
            assertEquals(5, chat.statistics!!.generatedTokens, name)
            if (name == "reset") assertEquals(emptyList<Message>(), chat.messages)
            chat.close()
        }
        Models.demo.chat().use { chat ->
            chat.restore(file)
            assertEquals(textOf(whole.pieces.take(5)), chat.messages.last().content)
        }
    }

    @Test
    fun `a buffered flow may run ahead of its collector and gives the same`() = runBlocking {
        Models.demo.chat().use { chat ->
            assertEquals(whole.pieces, chat.send(question, fixed).buffer().toList())
        }
    }

    @Test
    fun `the callback form gives the same, and its exceptions end the answer`() {
        Models.demo.chat().use { chat ->
            val first = RecordingCallback().also { chat.send(question, it, fixed) }.wait()
            assertEquals(whole.pieces, first.pieces)
            assertEquals(whole.statistics.untimed(), first.statistics!!.untimed())
            // The chat is free by now.
            val second = RecordingCallback(failsAt = 3).also { chat.send(question, it, fixed) }.wait()
            assertEquals("enough", second.error!!.message)
            assertEquals(3, chat.statistics!!.generatedTokens)
            val refused = RecordingCallback().also { chat.send(question, it, fixed.copy(width = 5)) }.wait()
            assertEquals(ErrorCode.BAD_ARGUMENT, (refused.error as StreamFuseException).code)
        }
    }

    private class RecordingCallback(val failsAt: Int = 0) : GenerationCallback {
        val pieces = mutableListOf<Piece>()
        var statistics: Statistics? = null
        var error: Throwable? = null
        private val ended = CountDownLatch(1)

        fun wait() = apply { assertTrue(ended.await(60, SECONDS)) }

        override fun onPiece(piece: Piece) {
            pieces += piece
            check(pieces.size != failsAt) { "enough" }
        }

        override fun onDone(statistics: Statistics) {
            this.statistics = statistics
            ended.countDown()
        }

        override fun onError(error: Throwable) {
            this.error = error
            ended.countDown()
        }
    }

    @Test
    fun `a second request ends the first, and every use after close is refused`() = runBlocking<Unit> {
        val chat = Models.demo.chat()
        val pieces = mutableListOf<Piece>()
        val first = CompletableDeferred<Unit>()
        val goOn = CompletableDeferred<Unit>()
        val job = launch(Dispatchers.Default) {
            chat.send(question, fixed).collect {
                pieces += it
                first.complete(Unit)
                goOn.await()
            }
        }
        first.await()
        val second = chat.generate("Me too", fixed)
        goOn.complete(Unit)
        job.join()
        assertEquals(whole.pieces.take(1), pieces)
        val turns = listOf(question, textOf(pieces), "Me too", second.text)
        assertEquals(turns, chat.messages.map { it.content })

        chat.close()
        chat.close()
        chat.stop()
        val uses = listOf<suspend () -> Unit>(
            { chat.generate("Hello") }, { chat.send("Hello").collect() }, { chat.prepare() }, { chat.reset() },
            { chat.save(File("nowhere")) }, { chat.restore(File("nowhere")) },
        )
        for (use in uses) {
            val error = failureOf<StreamFuseException> { use() }
            assertEquals(ErrorCode.CLOSED, error.code)
            assertTrue("closed" in error.message!!, error.message)
        }
        assertEquals(turns, chat.messages.map { it.content })
    }

    @Test
    fun `a model that is closed refuses new chats and has closed its own`() {
        val model = StreamFuse.loadBlocking(Repository.bundle("demo"), Options(checkHashes = false))
        val chat = model.chat()
        model.close()
        model.close()
        assertEquals(ErrorCode.CLOSED, failureOf<StreamFuseException> { model.chat() }.code)
        assertEquals(ErrorCode.CLOSED, failureOf<StreamFuseException> { chat.reset() }.code)
        assertEquals("HuggingFaceTB/SmolLM2-135M-Instruct", model.name)
    }

    private fun textOf(pieces: List<Piece>) = pieces.joinToString("") { it.text }
}
