package dev.streamfuse

import java.util.concurrent.CountDownLatch
import java.util.concurrent.Executors
import java.util.concurrent.TimeUnit.SECONDS
import java.util.concurrent.atomic.AtomicInteger
import kotlin.coroutines.CoroutineContext
import kotlin.coroutines.cancellation.CancellationException
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.Runnable
import kotlinx.coroutines.async
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.flow.flowOn
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.supervisorScope
import kotlinx.coroutines.withTimeout
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** Stops and second requests at moments that only a native half in Kotlin can hold: before and during the first pass. */
class StopTest {
    private val native = FakeNative()
    private val model = native.model()
    private val chat = model.chat("Be brief.")
    private val session = native.sessions.single()
    private val untouched = chat.messages

    @AfterEach
    fun close() = model.close()

    /** Holds the pass before token [index] until the returned latch is opened; the other one tells that it is there. */
    private fun holdAt(index: Int): Pair<CountDownLatch, CountDownLatch> {
        val (there, goOn) = CountDownLatch(1) to CountDownLatch(1)
        session.beforeToken = {
            if (it == index) {
                there.countDown()
                check(goOn.await(10, SECONDS))
            }
        }
        return there to goOn
    }

    @Test
    fun `a stop from another thread in the prompt forgets the question`() = runBlocking<Unit> {
        val (there, goOn) = holdAt(0)
        val answer = async(Dispatchers.Default) { chat.send("Why?").toList() }
        assertTrue(there.await(10, SECONDS))
        chat.stop()
        goOn.countDown()
        assertEquals(emptyList<Piece>(), answer.await())
        assertEquals(untouched, chat.messages)
    }

    @Test
    fun `a stop, another request and a cancelled coroutine end a score`() = runBlocking<Unit> {
        val request: suspend CoroutineScope.(Job) -> Unit = {
            launch(start = CoroutineStart.UNDISPATCHED) { chat.generate("Who?") }
        }
        for (end in listOf<suspend CoroutineScope.(Job) -> Unit>({ chat.stop() }, request, { it.cancel() })) {
            val (there, goOn) = CountDownLatch(1) to CountDownLatch(1)
            session.beforeScore = {
                there.countDown()
                check(goOn.await(10, SECONDS))
            }
            supervisorScope {
                val score = async(Dispatchers.Default) { chat.score("Why?", "So.") }
                assertTrue(there.await(10, SECONDS))
                end(score)
                goOn.countDown()
                val error = failureOf<Exception> { score.await() }
                assertTrue(error is CancellationException || (error as StreamFuseException).code == ErrorCode.CANCELLED)
            }
        }
        session.beforeScore = {}
        assertEquals(listOf(-4.0, -3.0), chat.score("Why?", "So.").logProbs)
    }

    @Test
    fun `a score ends the answer in progress`() = runBlocking<Unit> {
        val (there, goOn) = holdAt(1)
        val answer = async(Dispatchers.Default) { chat.send("Why?").toList() }
        assertTrue(there.await(10, SECONDS))
        val score = async(Dispatchers.Default, CoroutineStart.UNDISPATCHED) { chat.score("Why?", "So.") }
        goOn.countDown()
        assertEquals(-7.0, score.await().logProb)
        assertTrue(answer.await().size <= 2)
        assertEquals("stopped", chat.statistics?.finishReason)
    }

    @Test
    fun `a stop before the answer has begun forgets the question`() = runBlocking<Unit> {
        val thread = Executors.newSingleThreadExecutor()
        val busy = CountDownLatch(1)
        val dispatcher = thread.asCoroutineDispatcher()
        val slow = FakeNative().model(Options(dispatcher = dispatcher))
        slow.chat("Be brief.").use { waiting ->
            thread.execute { busy.await() }
            val answer = async(start = CoroutineStart.UNDISPATCHED) { waiting.send("Why?").toList() }
            waiting.stop()
            busy.countDown()
            assertEquals(emptyList<Piece>(), answer.await())
            assertEquals(untouched, waiting.messages)
            assertEquals(5, waiting.answer("Why?").pieces.size)
        }
        slow.close()
        thread.shutdown()
    }

    @Test
    fun `a second request ends the first, whose flow completes with what it had`() = runBlocking<Unit> {
        val (there, goOn) = holdAt(2)
        val first = async(Dispatchers.Default) { chat.send("One?").toList() }
        assertTrue(there.await(10, SECONDS))
        val second = async(Dispatchers.Default, CoroutineStart.UNDISPATCHED) { chat.generate("Two?") }
        goOn.countDown()
        assertEquals(2, first.await().size)
        assertEquals(5, second.await().text.trim().split(" ").size)
        val turns = chat.messages.map { it.role to it.content.split(" ").size }
        assertEquals(listOf(Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT), turns.map { it.first })
        assertEquals(first.await().joinToString("") { it.text }, chat.messages[2].content)
        assertEquals(second.await().text, chat.messages[4].content)
    }

    @Test
    fun `a collector may ask within its own answer, which ends there`() = runBlocking<Unit> {
        var inner = ""
        val pieces = mutableListOf<Piece>()
        withTimeout(10_000) {
            chat.send("One?").collect {
                pieces += it
                if (pieces.size == 3) inner = chat.generate("Two?").text
            }
        }
        assertEquals(3, pieces.size)
        assertEquals(inner, chat.messages.last().content)
    }

    @Test
    fun `of many requests at once the last is answered, and those that never began leave no trace`() = runBlocking<Unit> {
        val (there, goOn) = holdAt(0)
        val first = async(Dispatchers.Default) { chat.send("One?").toList() }
        assertTrue(there.await(10, SECONDS))
        val waiting = List(4) { async(Dispatchers.Default, CoroutineStart.UNDISPATCHED) { chat.generate("Waiting $it?") } }
        val last = async(Dispatchers.Default, CoroutineStart.UNDISPATCHED) { chat.generate("Last?") }
        goOn.countDown()
        assertEquals(emptyList<Piece>(), first.await())
        assertEquals(List(4) { "" }, waiting.map { it.await().text })
        val turn = listOf(Message(Role.USER, "Last?"), Message(Role.ASSISTANT, last.await().text))
        assertEquals(untouched + turn, chat.messages)
    }

    @Test
    fun `a cancelled first request does not end the second`() = runBlocking<Unit> {
        val (there, goOn) = holdAt(1)
        val first = launch(Dispatchers.Default) { chat.send("One?").collect {} }
        assertTrue(there.await(10, SECONDS))
        val second = async(Dispatchers.Default, CoroutineStart.UNDISPATCHED) { chat.generate("Two?") }
        first.cancel()
        goOn.countDown()
        assertEquals(5, second.await().text.trim().split(" ").size)
    }

    @Test
    fun `with flowOn the model runs ahead and an answer is dispatched once, without it at each token`() {
        val dispatches = AtomicInteger()
        val counting = object : CoroutineDispatcher() {
            override fun dispatch(context: CoroutineContext, block: Runnable) {
                dispatches.incrementAndGet()
                Dispatchers.IO.dispatch(context, block)
            }
        }
        val many = GenerationConfig(maxNewTokens = 40)
        FakeNative().model(Options(dispatcher = counting)).use { model ->
            val counted = model.chat()
            val exact = runBlocking { counted.send("Why?", many).toList() }
            assertTrue(dispatches.getAndSet(0) > 40)
            counted.reset()
            assertEquals(exact, runBlocking { counted.send("Why?", many).flowOn(counting).toList() })
            assertTrue(dispatches.get() < 10, "${dispatches.get()} dispatches")
        }
    }

    @Test
    fun `a model that is closed in the background ends the answer that has the only thread`() = runBlocking<Unit> {
        val native = FakeNative()
        val closing = native.model(Options(dispatcher = Dispatchers.IO.limitedParallelism(1)))
        val chat = closing.chat()
        val (there, goOn) = CountDownLatch(1) to CountDownLatch(1)
        native.sessions.single().beforeToken = {
            if (it == 2) {
                there.countDown()
                check(goOn.await(10, SECONDS))
            }
        }
        val answer = async(Dispatchers.Default) { chat.generate("Why?", GenerationConfig(maxNewTokens = 1000)) }
        assertTrue(there.await(10, SECONDS))
        val closed = launch(start = CoroutineStart.UNDISPATCHED) { closing.closeInBackground() }
        goOn.countDown()
        withTimeout(10_000) { closed.join() }
        assertEquals("stopped", answer.await().statistics.finishReason)
        assertEquals(2, answer.await().tokens.size)
        assertTrue(native.closed)
    }

    @Test
    fun `use after close fails with the code CLOSED`() = runBlocking<Unit> {
        chat.close()
        assertEquals(ErrorCode.CLOSED, failureOf<StreamFuseException> { chat.generate("Why?") }.code)
        assertEquals(ErrorCode.CLOSED, failureOf<StreamFuseException> { chat.reset() }.code)
        model.closeInBackground()
        assertEquals(ErrorCode.CLOSED, failureOf<StreamFuseException> { model.chatInBackground() }.code)
    }

    @Test
    fun `what was cancelled while it was opened is closed again`() = runBlocking<Unit> {
        val thread = Executors.newSingleThreadExecutor()
        val slow = FakeNative()
        val (there, goOn) = CountDownLatch(1) to CountDownLatch(1)
        val job = launch(Dispatchers.Default) {
            openedOn(thread.asCoroutineDispatcher()) {
                slow.model().also {
                    there.countDown()
                    goOn.await()
                }
            }
        }
        assertTrue(there.await(10, SECONDS))
        job.cancel()
        goOn.countDown()
        job.join()
        assertTrue(slow.closed)
        thread.shutdown()
    }
}
