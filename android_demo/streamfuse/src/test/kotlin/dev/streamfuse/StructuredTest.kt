package dev.streamfuse

import java.io.File
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import kotlinx.serialization.KSerializer
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.put
import kotlinx.serialization.serializer
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Objects and tool calls of the real model: what it writes fits, decodes, and is Python's, with drafts and without. */
class StructuredTest {
    @Serializable
    enum class Continent { AFRICA, AMERICA, ASIA, EUROPE, OCEANIA }

    @Serializable
    data class City(
        @Keywords("""{"maxLength": 20}""") val name: String,
        val continent: Continent,
        @Keywords("""{"minimum": 0, "maximum": 5000}""") val age: Int?,
        val isCapital: Boolean,
    )

    @Serializable
    data class Query(@Description("The name of the city.") @Keywords("""{"maxLength": 20}""") val city: String)

    @Serializable
    data class Forecast(val degrees: Int)

    private val asked = mutableListOf<Query>()
    private val forecast = tool("forecast", "The weather of a city today.") { query: Query ->
        asked += query
        Forecast(21)
    }
    private val question = "What is the weather in Rome?"
    private val longer = fixed.copy(maxNewTokens = 80)

    @Test
    fun `an object is parsed, and its text is the same without drafts and in Python`() = runBlocking {
        val prompt = "Describe the city of Rome."
        Models.demo.chat().use { chat ->
            val city = chat.generateObject<City>(prompt, longer)
            val drafted = chat.statistics!!
            assertEquals("stop", drafted.finishReason)
            assertTrue(drafted.forcedTokens > 0 && drafted.maskMs > 0, drafted.json)
            chat.reset()
            val config = longer.copy(schema = schemaOf<City>())
            val plain = chat.generate(prompt, config.copy(enableSpeculativeDecoding = false))
            assertEquals(city, plain.parsed<City>())
            assertTrue(plain.statistics.targetForwardPasses > drafted.targetForwardPasses, "${plain.statistics}")
            val python = Python.ask("demo", listOf(prompt), config).single()
            assertEquals(python.text to python.tokens, plain.text to plain.tokens)
            chat.reset()
            val pieces = chat.send(prompt, config).toList()
            assertTrue(pieces.any { it.source == Source.GRAMMAR && it.drafted }, "$pieces")
        }
    }

    @Test
    fun `regular expressions and grammars restrict too, in a completion as well`() = runBlocking {
        val regex = GenerationConfig(regex = "(Yes|No), because [a-z ]{5,30}\\.", temperature = 0.9, seed = 2)
        val word = GenerationConfig(grammar = "start: \"The \" (\"cat\" | \"dog\") \".\"", temperature = 0.9, seed = 2)
        for (session in listOf(Models.demo.chat(), Models.demo.completion())) {
            session.use {
                val answer = it.generate("Is Rome the capital of Italy?", regex).text
                assertTrue(Regex(regex.regex!!).matches(answer), answer)
                assertTrue(it.generate("Which animal barks?", word).text in listOf("The cat.", "The dog."))
            }
        }
    }

    @Test
    fun `the native side takes every schema that is derived, and complete answers decode`() = runBlocking {
        val classes = mapOf<String, KSerializer<*>>(
            schemaOf<SchemaTest.Kinds>() to serializer<SchemaTest.Kinds>(),
            schemaOf<SchemaTest.Shape>() to serializer<SchemaTest.Shape>(),
            schemaOf<SchemaTest.Term>() to serializer<SchemaTest.Term>(),
            schemaOf<SchemaTest.Forest>() to serializer<SchemaTest.Forest>(),
            schemaOf<Map<String, List<Continent?>>>() to serializer<Map<String, List<Continent?>>>(),
        )
        var complete = 0
        Models.demo.completion().use { completion ->
            for ((schema, serializer) in classes) for (seed in 1L..4L) {
                val config = GenerationConfig(schema = schema, temperature = 1.0, seed = seed, maxNewTokens = 60)
                val answer = completion.generate("As JSON:", config)
                if (answer.statistics.finishReason == "incomplete") continue
                answer.parsed(serializer)
                complete++
            }
        }
        assertTrue(complete >= 4, "$complete")
    }

    @Test
    fun `what cannot be used is refused, and what is cut off is told`() = runBlocking<Unit> {
        Models.demo.chat().use { chat ->
            val refused = mapOf(
                GenerationConfig(schema = """{"properties":{"a":{"not":{"pattern":"b"}}}}""") to ErrorCode.BAD_GRAMMAR,
                GenerationConfig(regex = "(") to ErrorCode.BAD_GRAMMAR,
                GenerationConfig(schema = "{}", regex = "a") to ErrorCode.BAD_ARGUMENT,
                GenerationConfig(toolChoice = "required") to ErrorCode.BAD_ARGUMENT,
            )
            for ((config, code) in refused) {
                assertEquals(code, failureOf<StreamFuseException> { chat.generate("Hello", config) }.code, "$config")
            }
            assertEquals(emptyList<Message>(), chat.messages)
            val cut = failureOf<StreamFuseException> { chat.generateObject<City>("Rome", fixed.copy(maxNewTokens = 3)) }
            assertEquals(ErrorCode.NOT_PARSED, cut.code)
            assertEquals("incomplete", chat.statistics!!.finishReason)
        }
    }

    @Test
    fun `the model calls a tool and answers to its result`() = runBlocking {
        Models.demo.chat(tools = listOf(forecast), maxToolRounds = 1).use { chat ->
            val answer = chat.generate(question, longer.copy(toolChoice = "required"))
            val roles = listOf(Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT)
            assertEquals(roles, chat.messages.map { it.role })
            assertEquals(asked.single(), chat.messages[1].toolCalls.single().parsed<Query>())
            assertEquals("""{"degrees":21}""", chat.messages[2].content)
            assertEquals(answer.text, chat.messages.last().content)
            assertEquals(chat.toolCalls, answer.toolCalls)
        }
    }

    @Test
    fun `the app makes the calls itself where it wants to, also after a restart`(@TempDir folder: File) = runBlocking {
        val config = longer.copy(toolChoice = "forecast")
        val file = File(folder, "chat")
        val manual = { Models.demo.chat(tools = listOf(forecast), maxToolRounds = 0) }
        manual().use { chat ->
            val pieces = chat.send(question, config).toList()
            val written = pieces.filter { it.channel == Channel.TOOL_CALL }.joinToString("") { it.text }
            assertTrue("\"forecast\"" in written, written)
            assertEquals("", pieces.filter { it.channel == Channel.ANSWER }.joinToString("") { it.text })
            assertEquals(listOf("forecast"), chat.toolCalls.map { it.name })
            chat.save(file)
            val result = listOf(ToolResult(chat.toolCalls.single().id, "sunny"))
            val next = chat.generate(result, longer.copy(toolChoice = "none"))
            assertTrue(next.text.isNotEmpty() && next.toolCalls.isEmpty(), next.text)
            manual().use { later ->
                later.restore(file)
                assertEquals(result.map { it.toolCallId }, later.toolCalls.map { it.id })
                assertEquals(next.text, later.generate(result, longer.copy(toolChoice = "none")).text)
            }
        }
        assertEquals(emptyList<Query>(), asked)
        manual().use { chat ->
            val error = failureOf<StreamFuseException> { chat.generate(listOf(ToolResult("x", "y"))) }
            assertEquals(ErrorCode.BAD_ARGUMENT, error.code)
        }
    }

    @Test
    fun `an answer has its own calls, and none if it is stopped while its prompt is read`() = runBlocking {
        Models.demo.chat(tools = listOf(forecast), maxToolRounds = 0).use { chat ->
            val first = chat.generate(question, longer.copy(toolChoice = "forecast"))
            assertEquals(listOf("forecast"), first.toolCalls.map { it.name })
            assertEquals(chat.toolCalls, first.toolCalls)
            val next = async(Dispatchers.Default) { chat.generate("word ".repeat(500), longer) }
            withTimeout(5000) { while (chat.messages.size == 2) delay(1) }
            chat.stop()
            assertEquals(emptyList<ToolCall>(), next.await().toolCalls)
            assertEquals(first.toolCalls, chat.toolCalls, "it can still be answered")
        }
    }

    @Test
    fun `template variables are taken, and what is none is refused`() {
        Models.demo.chat(templateVariables = buildJsonObject { put("enable_thinking", false) }).close()
        val documents = buildJsonObject { put("documents", "none") }
        val error = failureOf<StreamFuseException> { Models.demo.chat(templateVariables = documents).close() }
        assertEquals(ErrorCode.BAD_ARGUMENT, error.code)
    }
}
