package dev.streamfuse

import java.io.File
import java.util.concurrent.CountDownLatch
import kotlin.concurrent.thread
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitAll
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.flow.toList
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
        val alone = questions.map { question -> Models.demo.chat().use { it.answer(question, fixed).tokens } }
        val together = arrayOfNulls<List<Int>>(8)
        val begin = CountDownLatch(1)
        val threads = questions.mapIndexed { i, question ->
            thread {
                Models.demo.chat().use { chat ->
                    begin.await()
                    together[i] = chat.answer(question, fixed).tokens
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
        for (n in 0..8) {
            val chat = Models.demo.chat()
            val heard = mutableListOf<Piece>()
            val writing = launch(Dispatchers.Default) { chat.send("Tell me a story.", fixed).collect { heard += it } }
            while (heard.size < n) kotlinx.coroutines.delay(1)
            val closing = List(2) { launch(Dispatchers.IO) { chat.close() } }
            (closing + writing).joinAll()
            assertEquals(whole.take(heard.size), heard)
        }
    }

    @Test
    fun `stops, sends, resets and a close of the model from many threads end in sentences at worst`() = runBlocking {
        repeat(3) {
            val model = StreamFuse.load(Repository.bundle("demo"), Options(checkHashes = false))
            val chats = List(3) { model.chat() }
            val workers = List(6) { worker ->
                async(Dispatchers.IO) {
                    val chat = chats[worker % 3]
                    runCatching {
                        while (true) {
                            when (worker) {
                                3 -> chat.stop()
                                4 -> chat.reset()
                                else -> runCatching { chat.send("Hello there", fixed).toList() }
                                    .onFailure { if ("closed" in it.message!!) throw it }
                            }
                        }
                    }.exceptionOrNull()
                }
            }
            val closed = launch(Dispatchers.IO) {
                kotlinx.coroutines.delay(300)
                model.close()
                chats.forEach { it.close() }
            }
            closed.join()
            workers.take(3).plus(workers[4]).awaitAll().forEach { error ->
                assertTrue(error is IllegalStateException, "$error")
            }
            workers[3].cancel()
        }
    }

    @Test
    fun `two hundred loads and closes take no memory`() {
        val options = Options(checkHashes = false)
        fun once(chats: Int) = StreamFuse.load(Repository.bundle("demo"), options).use { model ->
            repeat(chats) { model.chat().answer("Hello", fixed.copy(maxNewTokens = 2)) }
        }
        repeat(20) { once(it % 2) } // allocators and the JVM take their share
        val before = residentMegabytes()
        repeat(180) { once(it % 2) }
        val grown = residentMegabytes() - before
        println("200 loads and closes: resident memory $before MB after 20, $grown MB more after 200")
        assertTrue(grown < 40, "$grown MB were not given back")
    }

    /** What the system counts of this process, after the collector has run. */
    private fun residentMegabytes(): Long {
        System.gc()
        return File("/proc/self/statm").readText().split(' ')[1].toLong() * 4096 / 1_000_000
    }
}
