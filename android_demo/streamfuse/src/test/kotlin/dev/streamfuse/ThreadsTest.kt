package dev.streamfuse

import java.io.File
import java.util.concurrent.ConcurrentLinkedQueue
import java.util.concurrent.CountDownLatch
import java.util.concurrent.atomic.AtomicBoolean
import kotlin.concurrent.thread
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.joinAll
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** Many chats and many threads on one model, and memory that comes back. */
class ThreadsTest {
    @Test
    fun `eight chats in eight threads on one model give what each gives alone`() {
        val questions = List(8) { "Tell me about the number $it." }
        val short = fixed.copy(maxNewTokens = 8)
        val alone = questions.map { question -> Models.demo.chat().use { it.answer(question, short).tokens } }
        val together = arrayOfNulls<List<Int>>(8)
        val begin = CountDownLatch(1)
        val threads = questions.mapIndexed { i, question ->
            thread {
                Models.demo.chat().use { chat ->
                    begin.await()
                    together[i] = chat.answer(question, short).tokens
                }
            }
        }
        begin.countDown()
        threads.forEach { it.join() }
        assertEquals(alone, together.toList())
    }

    @Test
    fun `closing from another thread waits for the token in flight and completes the flow`() = runBlocking {
        val whole = Models.demo.chat().use { it.answer("Tell me a story.", fixed).pieces }
        for (n in listOf(0, 1, 2, 5, 8)) {
            val chat = Models.demo.chat()
            val pieces = mutableListOf<Piece>()
            // Asked before anybody closes, so that at 0 the close meets an answer without a token.
            val writing = launch(Dispatchers.Default, CoroutineStart.UNDISPATCHED) {
                chat.send("Tell me a story.", fixed).collect { pieces += it }
            }
            while (pieces.size < n) delay(1)
            val closing = List(2) { launch(Dispatchers.IO) { chat.close() } }
            (closing + writing).joinAll()
            assertEquals(whole.take(pieces.size), pieces)
        }
    }

    @Test
    fun `sends, stops, resets and a close of the model from many threads end in sentences at worst`() = runBlocking {
        val model = StreamFuse.loadBlocking(Repository.bundle("demo"), Options(checkHashes = false))
        val over = AtomicBoolean()
        val errors = ConcurrentLinkedQueue<Throwable>()
        fun worker(use: suspend () -> Unit) = launch(Dispatchers.IO) {
            while (!over.get()) {
                runCatching { use() }.onFailure { errors += it }
                delay(1)
            }
        }
        val workers = List(2) { model.chat() }.flatMap { chat ->
            listOf(
                worker { chat.reset() }, worker { chat.stop() }, worker { chat.generate("Hello there", fixed) },
                worker { chat.send("Hello there", fixed).collect() },
            )
        }
        delay(500)
        model.close()
        delay(20)
        over.set(true)
        workers.joinAll()
        assertTrue(errors.any { "closed" in it.message!! })
        errors.forEach { assertTrue(it is StreamFuseException && it.code == ErrorCode.CLOSED, "$it") }
    }

    @Test
    fun `a hundred loads and closes take no memory`() {
        val options = Options(checkHashes = false)
        fun once(chats: Int) = StreamFuse.loadBlocking(Repository.bundle("demo"), options).use { model ->
            repeat(chats) { model.chat().answer("Hello", fixed.copy(maxNewTokens = 2)) }
        }
        repeat(20) { once(it % 2) } // allocators and the JVM take their share
        val before = residentMegabytes()
        repeat(80) { once(if (it % 4 == 0) 1 else 0) }
        val grown = residentMegabytes() - before
        println("100 loads and closes: resident memory $before MB after 20, $grown MB more after 100")
        assertTrue(grown < 18, "$grown MB were not given back")
    }

    /** What the system counts of this process, after the collector has run. */
    private fun residentMegabytes(): Long {
        System.gc()
        return File("/proc/self/statm").readText().split(' ')[1].toLong() * 4096 / 1_000_000
    }
}
