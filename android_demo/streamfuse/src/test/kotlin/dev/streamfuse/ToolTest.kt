package dev.streamfuse

import java.io.File
import java.util.concurrent.CountDownLatch
import java.util.concurrent.Executors
import java.util.concurrent.TimeUnit.SECONDS
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withContext
import kotlinx.coroutines.withTimeout
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.put
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Tools, parts of an answer and objects, over a native half in Kotlin. */
class ToolTest {
    @Serializable
    data class Query(val city: String, val days: Int = 1)

    @Serializable
    data class Light(val on: Boolean = false)

    @Serializable
    data class Forecast(val degrees: Int)

    private val native = FakeNative()
    private val model = native.model()
    private val asked = mutableListOf<Query>()
    private val forecast = tool("forecast", "The weather of a city.") { query: Query ->
        asked += query
        if (query.city == "Atlantis") error("there is no city $query")
        Forecast(20 + asked.size)
    }
    private val thought = Piece("hm", 1, channel = Channel.THINKING)

    @AfterEach
    fun close() = model.close()

    private fun call(id: String, city: String, name: String = "forecast") =
        ToolCall(id, name, buildJsonObject { put("city", city) })

    private fun calling(vararg calls: ToolCall) =
        Scripted(listOf(thought, Piece("{...}", 2, Source.GRAMMAR, Channel.TOOL_CALL)), calls.toList())

    private fun chat(vararg scripts: Scripted): Pair<Chat, FakeNativeSession> =
        scripted(model.chat(tools = listOf(forecast)), *scripts)

    private fun scripted(chat: Chat, vararg scripts: Scripted): Pair<Chat, FakeNativeSession> {
        val session = native.sessions.last()
        session.scripts += scripts
        return chat to session
    }

    private fun results(prompt: Prompt): List<ToolResult> {
        assertTrue(prompt.isResults)
        return Json.decodeFromString(prompt.text)
    }

    @Test
    fun `a tool is declared with its class's schema, and template variables go along`() {
        model.chat(tools = listOf(forecast), templateVariables = buildJsonObject { put("enable_thinking", false) })
        val declared = """[{"type":"function","function":{"name":"forecast","description":"The weather of a city.",""" +
            """"parameters":${schemaOf<Query>()}}}]"""
        assertEquals(declared to """{"enable_thinking":false}""", native.declared)
        model.chat()
        assertEquals(null to null, native.declared)
        val wrong = failureOf<StreamFuseException> { Tool("t", "", "[]") { "" } }
        assertTrue("tool t" in wrong.message!!, wrong.message)
        assertEquals(ErrorCode.BAD_GRAMMAR, failureOf<StreamFuseException> { tool("t", "") { n: Int -> n } }.code)
    }

    @Test
    fun `calls are made in turn and answered with their results, until an answer has none`() = runBlocking {
        val twice = calling(call("a", "Rome"), call("b", "Oslo"))
        val (chat, session) = chat(twice, calling(call("c", "Rome")), Scripted("Warm."))
        val answer = chat.generate("And the weather?", GenerationConfig(toolChoice = "required", seed = 5))
        assertEquals("Warm.", answer.text)
        assertEquals("", answer.thinking, "only the last answer counts")
        assertEquals(emptyList<ToolCall>(), answer.toolCalls)
        assertEquals(listOf("Rome", "Oslo", "Rome"), asked.map { it.city })
        val (first, second, third) = session.asked
        assertEquals("And the weather?", first.first.text)
        val expected = listOf(ToolResult("a", """{"degrees":21}"""), ToolResult("b", """{"degrees":22}"""))
        assertEquals(expected, results(second.first))
        assertEquals(listOf(ToolResult("c", """{"degrees":23}""")), results(third.first))
        assertEquals(listOf("required", "auto", "auto"), session.asked.map { it.second.toolChoice })
        assertEquals(listOf(5L, 5L, 5L), session.asked.map { it.second.seed })
        val roles = listOf(Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT)
        assertEquals(roles, chat.messages.map { it.role })
        assertEquals(listOf("a", "b"), chat.messages[1].toolCalls.map { it.id })
        assertEquals("b", chat.messages[3].toolCallId)
    }

    @Test
    fun `a flow has the pieces of every round, each with its channel`() = runBlocking {
        val (chat, _) = chat(calling(call("a", "Rome")), Scripted("Warm."))
        val channels = listOf(Channel.THINKING, Channel.TOOL_CALL, Channel.ANSWER)
        assertEquals(channels, chat.send("And the weather?").toList().map { it.channel })
        assertEquals("Warm.", chat.messages.last().content)
    }

    private class Texts : GenerationCallback {
        val texts = mutableListOf<String>()
        private val done = CompletableDeferred<Statistics>()

        fun wait() = runBlocking { withTimeout(10_000) { done.await() } }

        override fun onPiece(piece: Piece) {
            texts += piece.text
        }

        override fun onDone(statistics: Statistics) {
            done.complete(statistics)
        }

        override fun onError(error: Throwable) {
            done.completeExceptionally(error)
        }
    }

    @Test
    fun `a callback gets every round too`() {
        val (chat, _) = chat(calling(call("a", "Rome")), Scripted("Warm.", reason = "length"))
        val callback = Texts().also { chat.send("And the weather?", it) }
        assertEquals("length", callback.wait().finishReason)
        assertEquals(listOf("hm", "{...}", "Warm."), callback.texts)
    }

    @Test
    fun `a tool of a callback's answer may use the only thread of the dispatcher`() {
        val thread = Executors.newSingleThreadExecutor().asCoroutineDispatcher()
        native.model(Options(dispatcher = thread)).use { model ->
            val slow = Tool("forecast", "", "{}") { withContext(thread) { "cold" } }
            val (chat, _) = scripted(model.chat(tools = listOf(slow)), calling(call("a", "Rome")), Scripted("Cold."))
            Texts().also { chat.send("And the weather?", it) }.wait()
            assertEquals("Cold.", chat.messages.last().content)
        }
        thread.close()
    }

    @Test
    fun `what a tool throws, arguments that do not fit and unknown names are results`() = runBlocking {
        val slow = Tool("slow", "", "{}") { withTimeout(1) { awaitCancellation() } }
        val chat = model.chat(tools = listOf(forecast, slow))
        val session = native.sessions.last()
        val wrong = ToolCall("b", "forecast", buildJsonObject { put("town", "Rome") })
        val (missing, late) = call("c", "Rome", "missing") to call("d", "Rome", "slow")
        session.scripts += calling(call("a", "Atlantis"), wrong, missing, late)
        session.scripts += Scripted("Sorry.")
        assertEquals("Sorry.", chat.generate("And the weather?").text)
        val texts = results(session.asked.last().first).map { it.content }
        val parts = listOf("no city Query(city=Atlantis", "'city' is required", "no tool missing; the tools are forecast, slow", "Timed out")
        assertEquals(emptyList<String>(), parts.zip(texts).filter { (part, text) -> part !in text }.map { it.second })
        assertTrue(texts.all { it.startsWith("error: ") }, "$texts")
    }

    @Test
    fun `there are at most four rounds by default, and zero leaves the calls to the app`() = runBlocking {
        val endless = List(6) { calling(call("$it", "Rome")) }.toTypedArray()
        val (default, _) = chat(*endless)
        assertEquals(listOf("4"), default.generate("And the weather?").toolCalls.map { it.id })
        assertEquals(4, asked.size)

        asked.clear()
        val (bounded, _) = scripted(model.chat(tools = listOf(forecast), maxToolRounds = 1), *endless)
        assertEquals(listOf("1"), bounded.generate("And the weather?").toolCalls.map { it.id })
        assertEquals(listOf("Rome"), asked.map { it.city })

        val none = model.chat(tools = listOf(forecast), maxToolRounds = 0)
        val (manual, session) = scripted(none, calling(call("a", "Rome")), Scripted("Warm."))
        val answer = manual.generate("And the weather?")
        assertEquals("" to "hm", answer.text to answer.thinking)
        assertEquals(manual.toolCalls, answer.toolCalls)
        val call = manual.toolCalls.single()
        assertEquals(Query("Rome"), call.parsed<Query>())
        assertEquals("Warm.", manual.generate(listOf(ToolResult(call.id, "hot"))).text)
        assertEquals(listOf(ToolResult("a", "hot")), results(session.asked.last().first))
        assertEquals(1, asked.size, "the app calls, not the chat")
        assertEquals(emptyList<ToolCall>(), manual.toolCalls)
    }

    /** A tool whose call waits for [goOn]. */
    private class Held {
        val called = CompletableDeferred<Unit>()
        val goOn = CompletableDeferred<Unit>()
        val tool = Tool("forecast", "", "{}") {
            called.complete(Unit)
            goOn.await()
            "cold"
        }
    }

    @Test
    fun `a stop, another request and cancellation while a tool runs end the rounds`(@TempDir folder: File) = runBlocking<Unit> {
        val saved = File(folder, "saved").apply { writeText("[]") }
        val ends = listOf<suspend (Chat) -> Unit>(
            { it.stop() }, { it.generate("Something else") }, { it.reset() }, { it.restore(saved) },
        )
        for (end in ends) {
            val held = Held()
            model.chat(tools = listOf(held.tool)).use { chat ->
                val session = native.sessions.last()
                session.scripts += calling(call("a", "Rome"))
                val answer = async(Dispatchers.Default) { chat.generate("And the weather?") }
                held.called.await()
                end(chat)
                held.goOn.complete(Unit)
                assertEquals(listOf("a"), answer.await().toolCalls.map { it.id })
                assertTrue(session.asked.none { it.first.isResults })
            }
        }
        val called = CompletableDeferred<Unit>()
        val endless = Tool("forecast", "", "{}") {
            called.complete(Unit)
            awaitCancellation()
        }
        model.chat(tools = listOf(endless)).use { chat ->
            native.sessions.last().scripts += calling(call("a", "Rome"))
            val job = launch(Dispatchers.Default) { chat.generate("And the weather?") }
            called.await()
            job.cancelAndJoin()
            assertEquals("stop", chat.statistics!!.finishReason)
        }
    }

    @Test
    fun `after a stop, the calls that are left are not made`() = runBlocking<Unit> {
        val ends = listOf<suspend (Chat) -> Unit>({ it.stop() }, { it.reset() }, { it.close() }, { it.send("And?").first() })
        for (end in ends) {
            val called = mutableListOf<String>()
            lateinit var chat: Chat
            val tool = Tool("forecast", "", "{}") { arguments ->
                called += "$arguments"
                end(chat)
                "cold"
            }
            chat = model.chat(tools = listOf(tool))
            val session = native.sessions.last()
            session.scripts += calling(call("a", "Rome"), call("b", "Oslo"))
            chat.generate("And the weather?")
            assertEquals(1, called.size)
            assertTrue(session.asked.none { it.first.isResults })
            chat.close()
        }
        val job = Job()
        val called = mutableListOf<String>()
        val unsuspending = Tool("forecast", "", "{}") { arguments ->
            called += "$arguments"
            job.cancel()
            "cold"
        }
        model.chat(tools = listOf(unsuspending)).use { chat ->
            native.sessions.last().scripts += calling(call("a", "Rome"), call("b", "Oslo"))
            CoroutineScope(job).launch { chat.generate("And the weather?") }.join()
            assertEquals(1, called.size, "cancelled while a function runs that does not suspend")
        }
    }

    @Test
    fun `a result is sent with the properties that have their default values`() = runBlocking {
        val light = tool("light", "Whether the light is on.") { _: Query -> Light() }
        val (chat, session) = scripted(model.chat(tools = listOf(light)), calling(call("a", "Rome", "light")), Scripted("Off."))
        chat.generate("Is it on?")
        assertEquals(listOf(ToolResult("a", """{"on":false}""")), results(session.asked.last().first))
    }

    @Test
    fun `the callback form takes results too`() {
        val none = model.chat(tools = listOf(forecast), maxToolRounds = 0)
        val (chat, session) = runBlocking { scripted(none, calling(call("a", "Rome")), Scripted("Warm.")) }
        runBlocking { chat.generate("And the weather?") }
        val done = CountDownLatch(1)
        val pieces = mutableListOf<Piece>()
        chat.send(
            listOf(ToolResult("a", "hot")),
            object : GenerationCallback {
                override fun onPiece(piece: Piece) {
                    pieces += piece
                }

                override fun onDone(statistics: Statistics) = done.countDown()

                override fun onError(error: Throwable) = throw error
            },
        )
        assertTrue(done.await(10, SECONDS))
        assertEquals("Warm.", pieces.joinToString("") { it.text })
        assertEquals(listOf(ToolResult("a", "hot")), results(session.asked.last().first))
    }

    @Test
    fun `save, trim and prepare during a tool call keep the tool loop running`(@TempDir folder: File) = runBlocking<Unit> {
        val works = listOf<(Chat) -> Unit>(
            { it.save(File(folder, "saved")) }, { it.trim() }, { model.trim() }, { it.prepare() },
        )
        for (work in works) {
            val held = Held()
            model.chat(tools = listOf(held.tool)).use { chat ->
                val session = native.sessions.last()
                session.scripts += calling(call("a", "Rome"))
                session.scripts += Scripted("Cold.")
                val answer = async(Dispatchers.Default) { chat.generate("And the weather?") }
                held.called.await()
                work(chat)
                held.goOn.complete(Unit)
                assertEquals("Cold.", answer.await().text)
                assertEquals(listOf(ToolResult("a", "cold")), results(session.asked.last().first))
            }
        }
    }

    @Test
    fun `an answer interrupted after its last token calls no tools`(@TempDir folder: File) = runBlocking<Unit> {
        val file = File(folder, "saved")
        val ends = listOf<(Chat) -> Unit>({ it.stop() }, { it.save(file) }, { it.restore(file) }, { it.trim() }, { it.reset() })
        for (end in ends) {
            val (chat, session) = chat(calling(call("a", "Rome")))
            var pieces = 0
            chat.send("And the weather?").collect { if (++pieces == 2) end(chat) }
            assertEquals(2, pieces)
            assertEquals(emptyList<Query>(), asked)
            assertEquals(1, session.asked.size)
        }
    }

    @Test
    fun `an answer that is stopped makes no calls`() = runBlocking {
        val (chat, session) = chat(calling(call("a", "Rome")))
        session.beforeToken = { if (it == 1) chat.stop() }
        assertEquals(1, chat.send("And the weather?").toList().size)
        assertEquals(emptyList<Query>(), asked)
    }

    @Test
    fun `an answer that is stopped before its first token has no calls, or those whose results were dropped with it`() =
        runBlocking {
            val none = model.chat(tools = listOf(forecast), maxToolRounds = 0)
            val (chat, session) = scripted(none, calling(call("a", "Rome")))
            val first = chat.generate("And the weather?")
            session.beforeToken = { chat.stop() }
            assertEquals(emptyList<ToolCall>(), chat.generate("Something else").toolCalls)
            assertEquals(first.toolCalls, chat.messages.last().toolCalls)
            assertEquals(first.toolCalls, chat.toolCalls, "it can still be answered")
            assertEquals(first.toolCalls, chat.generate(listOf(ToolResult("a", "hot"))).toolCalls)
        }

    @Test
    fun `the native side's list of calls is read, whatever form the arguments have in the history`() {
        val list = """[{"id":null,"name":"forecast","arguments":{"city":"Rome"}},""" +
            """{"id":"b","name":"forecast","arguments":"{\"city\": \"Oslo\"}"}]"""
        assertEquals(listOf(call("", "Rome"), call("b", "Oslo")), FunctionCall.read(list))
    }

    @Test
    fun `an object is asked for by its schema and decoded`() = runBlocking {
        val (chat, session) = chat(
            Scripted(listOf(thought, Piece("""{"city":""", 2), Piece(""""Rome"}""", null))),
            Scripted("""{"city":"Rome","days":2}"""),
        )
        assertEquals(Query("Rome"), chat.generateObject<Query>("Which city?"))
        assertEquals(schemaOf<Query>(), session.asked.single().second.schema)
        val config = GenerationConfig(schema = schemaOf<Query>())
        assertEquals(Query("Rome", 2), chat.generate("Which city?", config).parsed<Query>())
    }

    @Test
    fun `the error of an incomplete answer has the reason and what to do`() = runBlocking<Unit> {
        val ends = mapOf(
            Scripted("""{"city":"Ro""", "incomplete") to "maxNewTokens",
            Scripted("""{"city":"Ro""", "stopped") to "ask again",
            Scripted("Rome.", "stop") to "schemaOf",
        )
        for ((script, word) in ends) {
            val (chat, _) = chat(script)
            val error = failureOf<StreamFuseException> { chat.generateObject<Query>("Which city?") }
            assertEquals(ErrorCode.NOT_PARSED, error.code)
            assertTrue(word in error.message!!, error.message)
        }
        for (reason in listOf("incomplete", "stopped")) {
            val (chat, _) = chat(Scripted("12", reason)) // the beginning of a longer number
            val error = failureOf<StreamFuseException> { chat.generate("How many?").parsed<Int>() }
            assertEquals(ErrorCode.NOT_PARSED, error.code)
        }
    }

    @Test
    fun `a constraint of a request replaces the chat's, whatever its kind`() {
        val chats = GenerationConfig(regex = "(Yes|No)", seed = 3)
        val own = GenerationConfig(toolChoice = "none").over(chats)
        assertNull(own.regex)
        assertEquals("none" to 3L, own.toolChoice to own.seed)
        assertEquals("(Yes|No)", GenerationConfig(seed = 4).over(chats).regex)
    }

    @Test
    fun `messages of other languages can be read, and go back as they are`() {
        val list = """[{"role":"assistant","content":null,"tool_calls":[{"id":"x","type":"function","function":""" +
            """{"name":"forecast","arguments":"{\"city\": \"Rome\"}"}}],"reasoning_content":"hm"},""" +
            """{"role":"tool","content":"hot","tool_call_id":"x","name":"forecast"}]"""
        val (call, result) = Message.read(list)
        assertEquals(Query("Rome"), call.toolCalls.single().parsed<Query>())
        assertEquals("x" to "hot", result.toolCallId to result.content)
        val written = """[{"role":"assistant","content":"","tool_calls":[{"id":"x","type":"function","function":""" +
            """{"name":"forecast","arguments":{"city":"Rome"}}}]},""" +
            """{"role":"tool","content":"hot","tool_call_id":"x","name":"forecast"}]"""
        assertEquals(written, Message.write(listOf(call, result)))
    }
}
