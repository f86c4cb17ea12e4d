package dev.streamfuse

import java.io.File
import java.util.concurrent.CountDownLatch
import kotlin.concurrent.thread
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** Loading with progress, its end before it is done, the estimate, the self-test, and memory that is given back. */
class LoadTest {
    private val demo = Repository.bundle("demo")

    @Test
    fun `loading reports a fraction that ends at one`() = runBlocking {
        val seen = mutableListOf<Double>()
        StreamFuse.load(demo) { seen += it }.use { assertTrue(it.canChat) }
        assertEquals(seen.sorted(), seen)
        assertEquals(1.0, seen.last())
        assertTrue(seen.size >= 3 && seen.any { it > 0 && it < 1 }, "$seen")
    }

    @Test
    fun `a cancelled load ends early and leaves nothing open`() = runBlocking {
        val begun = CountDownLatch(1)
        val loading = launch(Dispatchers.Default) {
            StreamFuse.load(demo) { if (it > 0) begun.countDown() }.close()
        }
        begun.await()
        loading.cancelAndJoin()
        assertTrue(loading.isCancelled)
    }

    @Test
    fun `what the progress function throws ends the load`() = runBlocking {
        val error = failureOf<IllegalStateException> { StreamFuse.load(demo) { error("enough") } }
        assertEquals("enough", error.message)
    }

    @Test
    fun `a load that fails fails with its own error`() = runBlocking {
        val error = failureOf<StreamFuseException> { StreamFuse.load(File("nowhere")) {} }
        assertEquals(ErrorCode.BAD_FILE, error.code)
    }

    @Test
    fun `the estimate is what the bundle's files and cache take`() {
        val found = StreamFuse.estimate(demo)
        assertEquals(File(demo, "model.pte").length(), found.weightsBytes)
        assertEquals(File(demo, "draft.safetensors").length(), found.tablesBytes)
        assertEquals(2L * 30 * 1024 * 3 * 70, found.cacheBytes) // layers, positions, heads, bytes of a key or value
        assertEquals(found.weightsBytes + found.tablesBytes + 2 * found.cacheBytes, found.totalBytes(chats = 2))
        val error = failureOf<StreamFuseException> { StreamFuse.estimate(File("nowhere")) }
        assertEquals(ErrorCode.BAD_FILE, error.code)
        assertTrue("nowhere" in error.message!!)
    }

    @Test
    fun `the self-test of the real bundle gives the recorded bits`() = runBlocking {
        val found = Models.demo.selfTestInBackground()
        assertTrue(found.passed && found.equal && found.tokensEqual, "${found.differences}")
        assertEquals(setOf("decode", "streams", "verify_4", "verify_8", "verify_16"), found.methods.keys)
        assertEquals(8, found.methods.getValue("verify_8").nodes)
    }

    @Test
    fun `the self-test of a damaged bundle names the figures`() {
        val damaged = Repository.scratch("damaged-weights")
        for (file in demo.listFiles()!!) {
            val copy = File(damaged, file.name)
            if (file.name != "model.pte") file.copyTo(copy, overwrite = true) else copy.writeBytes(damage(file.readBytes()))
        }
        StreamFuse.loadBlocking(damaged, Options(checkHashes = false)).use { model ->
            val found = model.selfTest()
            assertFalse(found.passed)
            assertTrue(found.differences.any { "snr_db is" in it }, "${found.differences}")
            File(damaged, "selftest.npz").run { writeBytes(readBytes().copyOf(length().toInt()).also { it[5000]++ }) }
            assertEquals(ErrorCode.BAD_FILE, failureOf<StreamFuseException> { model.selfTest() }.code)
        }
        damaged.deleteRecursively()
    }

    private fun damage(program: ByteArray) = program.also {
        for (place in it.size / 2 until it.size / 2 + 4096) it[place] = (it[place].toInt() xor 0x11).toByte()
    }

    @Test
    fun `closing waits for a self-test`() {
        val native = FakeNative()
        val model = native.model()
        val (begun, mayEnd) = CountDownLatch(1) to CountDownLatch(1)
        native.beforeTest = {
            begun.countDown()
            mayEnd.await()
        }
        val test = thread { model.selfTest() }
        begun.await()
        val close = thread { model.close() }
        Thread.sleep(20)
        assertFalse(native.closed)
        mayEnd.countDown()
        listOf(test, close).forEach(Thread::join)
        assertTrue(native.closed)
        assertEquals(ErrorCode.CLOSED, failureOf<StreamFuseException> { model.selfTest() }.code)
    }

    @Test
    fun `a model trims the sessions that are not answering`() = runBlocking {
        val native = FakeNative()
        native.model().use { model ->
            val (idle, answering) = model.chat() to model.chat()
            idle.generate("?")
            val (begun, mayEnd) = CountDownLatch(1) to CountDownLatch(1)
            native.sessions[1].beforeToken = {
                begun.countDown()
                mayEnd.await()
            }
            val answer = async(Dispatchers.IO) { answering.generate("?") }
            begun.await()
            model.trim()
            mayEnd.countDown()
            assertEquals("length", answer.await().statistics.finishReason)
            assertEquals(listOf(1, 0), native.sessions.map { it.trims })
            answering.trimInBackground()
            assertEquals(listOf(1, 1), native.sessions.map { it.trims })
        }
    }

    @Test
    fun `trimming a closed model does nothing`() = runBlocking {
        val native = FakeNative()
        val model = native.model()
        model.chat()
        model.close()
        model.trim()
        model.trimInBackground()
        assertEquals(0, native.sessions.single().trims)
    }

    @Test
    fun `a model trims every session before it throws the first failure`() {
        val native = FakeNative()
        native.model().use { model ->
            repeat(3) { model.chat() }
            val failures = List(2) { StreamFuseException(ErrorCode.BROKEN, "no memory is given back") }
            native.sessions.zip(failures).forEach { (session, failure) -> session.trimFails = failure }
            val error = failureOf<StreamFuseException> { model.trim() }
            assertEquals(listOf(1, 1, 1), native.sessions.map { it.trims })
            assertEquals(failures.toSet(), setOf(error, *error.suppressed))
        }
    }

    @Test
    fun `a session is prepared before its first answer, and a closed one fails`() = runBlocking {
        val native = FakeNative()
        native.model().use { model ->
            val chat = model.chat()
            chat.prepare()
            model.completion().prepareInBackground()
            assertEquals(listOf(1, 1), native.sessions.map { it.prepared })
            chat.close()
            assertEquals(ErrorCode.CLOSED, failureOf<StreamFuseException> { chat.prepare() }.code)
            assertEquals(ErrorCode.CLOSED, failureOf<StreamFuseException> { chat.prepareInBackground() }.code)
        }
    }

    @Test
    fun `a prepared chat's first answer measures nothing`() {
        val planned = GenerationConfig(maxNewTokens = 2, temperature = 0.0)
        val measured = listOf(true, false).map { isPrepared ->
            StreamFuse.loadBlocking(demo, Options(checkHashes = false)).use { model ->
                val chat = model.chat()
                if (isPrepared) chat.prepare()
                chat.answer("Why is the sky blue?", planned).statistics.measureMs
            }
        }
        assertEquals(listOf(true, false), measured.map { it == 0.0 }, "$measured")
    }

    @Test
    fun `a trimmed chat goes on with the same text`() {
        val (chat, other) = Models.demo.chat() to Models.demo.chat()
        listOf(chat, other).forEach { it.answer("Why is the sky blue?", fixed) }
        chat.trim()
        assertEquals(other.messages, chat.messages)
        assertEquals(other.answer("Why?", fixed).tokens, chat.answer("Why?", fixed).tokens)
        listOf(chat, other).forEach(Session::close)
    }
}
