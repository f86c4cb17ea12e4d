package dev.streamfuse

import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.file.Files
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** A conversation: its turns, what is kept in the cache, how it is saved, and the facts of a bundle. */
class ChatTest {
    @Test
    fun `a second turn reads its own words only, and reset forgets all but the system message`() {
        val system = Message(Role.SYSTEM, "You answer briefly.")
        Models.demo.chat(system.content).use { chat ->
            assertEquals(listOf(system), chat.messages)
            val first = chat.answer("Name three primes.", fixed)
            val second = chat.answer("And three more?", fixed)
            assertTrue(second.statistics.prefilledTokens < second.statistics.promptTokens / 2)
            val turns = listOf(
                system, Message(Role.USER, "Name three primes."), Message(Role.ASSISTANT, first.text),
                Message(Role.USER, "And three more?"), Message(Role.ASSISTANT, second.text),
            )
            assertEquals(turns, chat.messages)
            chat.reset()
            assertEquals(listOf(system), chat.messages)
            assertEquals(first.tokens, chat.answer("Name three primes.", fixed).tokens)
        }
    }

    @Test
    fun `a chat begun with earlier turns answers as the chat that had them`() {
        val chat = Models.demo.chat()
        chat.answer("Name three primes.", fixed)
        val history = chat.messages
        val other = Models.demo.chat(history = history)
        val next = chat.answer("And then?", fixed).tokens
        assertEquals(next, other.answer("And then?", fixed).tokens)
        other.reset()
        assertEquals(history, other.messages, "what it was made with stays")
        assertEquals(next, other.answer("And then?", fixed).tokens)
        chat.close()
        other.close()
    }

    @Test
    fun `a saved chat goes on where it was, and nothing is read again`(@TempDir folder: File) {
        val file = File(folder, "chat ä.session")
        Models.demo.chat().use { chat ->
            chat.answer("Name three primes.", fixed)
            chat.save(file)
            val next = chat.answer("And then?", fixed)
            Models.demo.chat().use { other ->
                other.answer("Something else", fixed)
                other.restore(file)
                assertEquals(2, other.messages.size)
                val restored = other.answer("And then?", fixed)
                assertEquals(next.tokens, restored.tokens)
                assertEquals(next.statistics.prefilledTokens, restored.statistics.prefilledTokens)
                assertEquals(chat.messages, other.messages)
            }
        }
    }

    @Test
    fun `a chat that Python saved goes on here, and one saved here goes on in Python`(@TempDir folder: File) {
        val bundle = Repository.bundle("demo").path
        val first = listOf("Name three primes.")
        val next = listOf("And then?")
        val saved = File(folder, "python.session")
        Python.ask(Python.Request(bundle, first, fixed, save = saved.path))
        val expected = Python.ask(Python.Request(bundle, next, fixed, restore = saved.path))
        Models.demo.chat().use { chat ->
            chat.restore(saved)
            val own = chat.answer(next.single(), fixed)
            assertEquals(expected.turns.single().tokens, own.tokens)
            val theirs = Statistics.of(expected.turns.single().statistics.toString())
            assertEquals(theirs.untimed(), own.statistics.untimed())
            assertEquals(expected.messages, chat.messages)
            chat.save(saved)
        }
        val third = listOf("Are you sure?")
        val last = Python.ask(Python.Request(bundle, third, fixed, restore = saved.path)).turns.single()
        Models.demo.chat().use { chat ->
            chat.restore(saved)
            assertEquals(last.tokens, chat.answer(third.single(), fixed).tokens)
        }
    }

    @Test
    fun `a system prompt whose cache the bundle stores is loaded, and the answers are the same`() {
        val system = "You answer briefly, in plain words."
        val folder = File(Repository.scratch("prefix"), "demo")
        val demo = Repository.bundle("demo").path
        Python.run("bundle", "prefix", demo, "--system", system, "-o", folder.path, "--overwrite")
        val turns = listOf("Name three primes.", "And then?")
        StreamFuse.loadBlocking(folder, Options(cacheDir = Repository.scratch("costs"))).use { model ->
            for (config in listOf(fixed, fixed.copy(width = null, enableSpeculativeDecoding = false))) {
                val plain = Models.demo.chat(system).use { chat -> turns.map { chat.answer(it, config) } }
                val loaded = model.chat(system).use { chat -> turns.map { chat.answer(it, config) } }
                assertEquals(plain.map { it.tokens }, loaded.map { it.tokens })
                val (first, second) = loaded.map { it.statistics }
                assertTrue(first.prefixTokens > 15, "${first.prefixTokens}")
                assertEquals(plain[0].statistics.prefilledTokens, first.prefixTokens + first.prefilledTokens)
                assertEquals(0, second.prefixTokens)
                assertNull(first.prefixRefused)
            }
            val other = model.chat("You answer at length.").use { it.answer(turns[0], fixed).statistics }
            assertEquals(0, other.prefixTokens)
        }
    }

    @Test
    fun `an adapter that the bundle does not have is refused by name`() {
        assertEquals(emptyList<String>(), Models.demo.adapters)
        for (make in listOf({ Models.demo.chat(adapter = "sql") }, { Models.demo.completion(adapter = "sql") })) {
            val error = failureOf<StreamFuseException> { make() }
            assertEquals(ErrorCode.BAD_ARGUMENT, error.code)
            assertTrue("has no adapter 'sql'; it has none" in error.message!!, error.message)
        }
    }

    @Test
    fun `a completion is saved too, and takes back the cache of any session`(@TempDir folder: File) {
        val file = File(folder, "completion.session")
        Models.demo.completion().use { completion ->
            val first = completion.answer("Once upon a time", fixed)
            completion.save(file)
            val longer = "Once upon a time" + first.text
            val next = completion.answer(longer, fixed)
            Models.demo.completion().use { other ->
                other.restore(file)
                val restored = other.answer(longer, fixed)
                assertEquals(next.tokens, restored.tokens)
                assertEquals(next.statistics.prefilledTokens, restored.statistics.prefilledTokens)
            }
        }
    }

    @Test
    fun `a damaged, foreign or missing file changes nothing`(@TempDir folder: File) {
        Models.demo.chat().use { chat ->
            chat.answer("Name three primes.", fixed)
            val before = chat.messages
            val good = File(folder, "good").also(chat::save)
            val damaged = File(folder, "damaged").apply {
                writeBytes(good.readBytes().also { it[it.size / 2] = (it[it.size / 2] + 1).toByte() })
            }
            val cut = File(folder, "cut").apply { writeBytes(good.readBytes().copyOf(1000)) }
            val foreign = File(folder, "foreign").also { file -> Models.of("e2e").chat().use { it.save(file) } }
            for (bad in listOf(damaged, cut, foreign, File(folder, "missing"))) {
                val error = failureOf<StreamFuseException> { chat.restore(bad) }
                assertEquals(ErrorCode.BAD_FILE, error.code)
                assertTrue(bad.path in error.message!!, error.message)
                assertEquals(before, chat.messages)
            }
            val error = failureOf<StreamFuseException> { chat.save(File(folder, "no/such/folder")) }
            assertTrue("no/such/folder" in error.message!!, error.message)
            assertEquals(good.readBytes().size, File(folder, "again").also(chat::save).readBytes().size)
        }
    }

    @Test
    fun `a file whose note is no conversation changes neither the turns nor the tokens`(@TempDir folder: File) {
        val file = File(folder, "saved")
        Models.demo.chat().use { other ->
            other.answer("Tell me about the sea.", fixed)
            other.save(file)
        }
        file.writeBytes(withNote(file.readBytes(), "no conversation".encodeToByteArray()))
        Models.demo.chat().use { chat ->
            chat.answer("Name three primes.", fixed)
            val before = chat.messages
            assertEquals(ErrorCode.BAD_FILE, failureOf<StreamFuseException> { chat.restore(file) }.code)
            assertEquals(before, chat.messages)
            val next = chat.answer("And then?", fixed)
            assertTrue(next.statistics.prefilledTokens < next.statistics.promptTokens / 2, "the cache is another one")
        }
    }

    @Test
    fun `restore accepts roles and calls saved by other languages, and an unreadable turn resets the chat`(@TempDir folder: File) {
        val file = File(folder, "saved")
        Models.demo.chat().use { other ->
            other.answer("Tell me about the sea.", fixed)
            other.save(file)
        }
        val saved = file.readBytes()
        val (user, model) = "\"role\":\"user\"" to "\"role\":\"assistant\""
        fun write(from: String, to: String) {
            val note = noteOf(saved).decodeToString()
            assertTrue(from in note, note)
            file.writeBytes(withNote(saved, note.replace(from, to).encodeToByteArray()))
        }
        Models.demo.chat("You answer briefly.").use { chat ->
            write(user, "\"role\":\"developer\"")
            chat.restore(file)
            assertEquals(listOf(Role.DEVELOPER, Role.ASSISTANT), chat.messages.map { it.role })

            write(model, "$model,\"tool_calls\":[{\"function\":{\"name\":\"tide\",\"arguments\":\"{}\"}}]")
            chat.restore(file)
            assertEquals(listOf(ToolCall("", "tide", JsonObject(emptyMap()))), chat.toolCalls)

            write(user, "\"role\":\"operator\"")
            val error = failureOf<StreamFuseException> { chat.restore(file) }
            assertEquals(ErrorCode.BAD_FILE, error.code)
            assertTrue("operator" in error.message!!, error.message)
            assertEquals(listOf(Message(Role.SYSTEM, "You answer briefly.")) to 0, chat.messages to chat.usedTokens)
            val expected = Models.demo.chat("You answer briefly.").use { it.answer("Name three primes.", fixed).tokens }
            assertEquals(expected, chat.answer("Name three primes.", fixed).tokens)
        }
    }

    /** The note of a saved session (core/saved.cpp): the conversation. */
    private fun noteOf(saved: ByteArray): ByteArray {
        val bytes = ByteBuffer.wrap(saved).order(ByteOrder.LITTLE_ENDIAN).getLong(56).toInt()
        return saved.copyOfRange(saved.size - 8 - bytes, saved.size - 8)
    }

    /** The session with another note, and the checksum that it has then. */
    private fun withNote(saved: ByteArray, note: ByteArray): ByteArray {
        val header = ByteBuffer.wrap(saved.copyOf(64)).order(ByteOrder.LITTLE_ENDIAN)
        val sizes = listOf(64L, header.getLong(24), 8 * header.getLong(32), header.getLong(48)).map { it.toInt() }
        header.putLong(56, note.size.toLong())
        var at = 64
        val parts = listOf(header.array()) + sizes.drop(1).map { saved.copyOfRange(at, at + it).also { _ -> at += it } } + note
        var sum = -0x340d631b7bdddcdbL // FNV-1a
        fun mix(word: Long) {
            sum = (sum xor word) * 0x100000001b3L
            sum = sum xor (sum ushr 29)
        }
        for (part in parts) {
            val words = ByteBuffer.wrap(part).order(ByteOrder.LITTLE_ENDIAN)
            while (words.remaining() >= 8) mix(words.getLong())
            while (words.hasRemaining()) mix(words.get().toLong() and 0xff)
        }
        val end = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(sum).array()
        return (parts + end).reduce(ByteArray::plus)
    }

    @Test
    fun `what is asked wrongly is refused in a sentence and changes nothing`() {
        Models.demo.chat().use { chat ->
            val wrong = mapOf(
                "max_new_tokens" to GenerationConfig(maxNewTokens = 0),
                "temperature" to GenerationConfig(temperature = -1.0),
                "top_k" to GenerationConfig(topK = -1),
                "top_p" to GenerationConfig(topP = 0.0),
                "min_p" to GenerationConfig(minP = 2.0),
                "repetition_penalty" to GenerationConfig(repetitionPenalty = 0.0),
                "width" to GenerationConfig(width = 5),
                "stop" to GenerationConfig(stop = listOf("")),
            )
            for ((field, config) in wrong) {
                val error = failureOf<StreamFuseException> { chat.answer("Hello", config) }
                assertEquals(ErrorCode.BAD_ARGUMENT, error.code, field)
                assertTrue(field in error.message!!, error.message)
            }
            val long = failureOf<StreamFuseException> { chat.answer("many words ".repeat(1000), fixed) }
            assertTrue("context holds 1024" in long.message!!, long.message)
            assertEquals(emptyList<Message>(), chat.messages)
            assertNull(chat.statistics)
            assertEquals(16, chat.answer("Hello, tell me a story.", fixed).tokens.size)
        }
    }

    @Test
    fun `a model has the facts of its bundle, whose defaults apply`() {
        val model = Models.demo
        assertEquals("HuggingFaceTB/SmolLM2-135M-Instruct", model.name)
        assertEquals("apache-2.0", model.license)
        assertEquals(1024, model.contextLength)
        assertEquals(listOf(4, 8, 16), model.widths)
        assertTrue(model.hasSpeculativeDecodingSupport && model.canChat && model.threads > 0 && model.loadMs > 0)
        assertEquals(128, model.defaults.maxNewTokens)
        assertEquals(0.0, model.defaults.temperature)
        val chat = model.chat(config = GenerationConfig(maxNewTokens = 3))
        assertEquals(3, chat.answer("Hello").tokens.size)
        assertEquals(2, chat.answer("Hello", GenerationConfig(maxNewTokens = 2)).tokens.size)
        chat.close()
    }

    @Test
    fun `counts in a manifest that no Int holds mean what they mean in Python`() {
        val folder = Repository.scratch("counts").apply { deleteRecursively() }.apply { mkdirs() }
        for (file in Repository.bundle("demo").canonicalFile.listFiles()!!) {
            val copy = File(folder, file.name)
            if (file.name != "manifest.json") Files.createLink(copy.toPath(), file.toPath())
            else copy.writeText(withDefaults(file.readText(), "top_k" to (1L shl 32), "max_new_tokens" to (1L shl 33)))
        }
        val config = GenerationConfig(maxNewTokens = 24, temperature = 0.9, topP = 0.95, seed = 3, width = 8)
        val python = Python.ask(Python.Request(folder.path, listOf("Name three primes."), config)).turns.single()
        StreamFuse.loadBlocking(folder, Options(checkHashes = false)).use { model ->
            assertEquals(Int.MAX_VALUE, model.defaults.topK)
            assertEquals(Int.MAX_VALUE, model.defaults.maxNewTokens)
            model.chat().use { assertEquals(python.tokens, it.answer("Name three primes.", config).tokens) }
        }
    }

    private fun withDefaults(manifest: String, vararg counts: Pair<String, Long>): String {
        val all = Json.parseToJsonElement(manifest).jsonObject
        val defaults = all.getValue("sampling_defaults").jsonObject + counts.associate { (k, v) -> k to JsonPrimitive(v) }
        return JsonObject(all + ("sampling_defaults" to JsonObject(defaults))).toString()
    }

    @Test
    fun `a reason is visible where nothing is drafted`() = runBlocking {
        Models.demo.chat().use { chat ->
            assertNull(chat.fallbackReason)
            chat.generate("Hello", fixed.copy(enableSpeculativeDecoding = false))
            assertEquals("off by request", chat.fallbackReason)
            assertFalse(chat.statistics!!.speculative)
            chat.generate("Hello", fixed)
            assertNull(chat.fallbackReason)
        }
    }

    @Test
    fun `measured costs are kept in the cache folder and found again`(@TempDir folder: File) {
        repeat(2) {
            val options = Options(cacheDir = folder, checkHashes = false)
            StreamFuse.loadBlocking(Repository.bundle("demo"), options).use { model ->
                model.chat().use { chat ->
                    chat.answer("Hello", GenerationConfig(maxNewTokens = 2))
                    val methods = setOf("decode", "verify_4", "verify_8", "verify_16", "streams")
                    assertEquals(methods, chat.statistics!!.costMs.keys)
                }
            }
            val kept = folder.list()!!.single()
            assertTrue(Regex("[0-9a-f]{16}\\.costs").matches(kept), kept)
        }
        assertNotNull(folder.listFiles()!!.single().readText().lines().firstOrNull { "engine" in it })
    }

    @Test
    fun `a later chat drafts from what an earlier one answered, until that is forgotten`(@TempDir folder: File) {
        val file = File(folder, "memory")
        val options = Options(cacheDir = Repository.scratch("costs"), memoryFile = file, checkHashes = false)
        val config = fixed.copy(maxNewTokens = 40, width = null)
        fun answers(model: Model) = model.chat().use { chat ->
            chat.answer("Name three rivers of France.", config).text to chat.statistics!!.targetForwardPasses
        }
        val (text, passes) = StreamFuse.loadBlocking(Repository.bundle("demo"), options).use(::answers)
        assertTrue(file.length() > 16) // the header
        StreamFuse.loadBlocking(Repository.bundle("demo"), options).use { model ->
            val (again, fewer) = answers(model)
            assertEquals(text, again)
            assertTrue(fewer < passes, "$fewer passes, $passes without a memory")
            model.forget()
            assertEquals(0, file.length())
        }
        val closed = StreamFuse.loadBlocking(Repository.bundle("demo"), options).also(Model::close)
        assertEquals(ErrorCode.CLOSED, failureOf<StreamFuseException> { closed.forget() }.code)
    }
}
