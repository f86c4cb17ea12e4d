package dev.streamfuse

import kotlin.math.exp
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.descriptors.elementNames
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Test
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.Arguments
import org.junit.jupiter.params.provider.Arguments.arguments
import org.junit.jupiter.params.provider.MethodSource

/**
 * On real bundles Kotlin gives what Python gives: tokens, who drafted them, their log-probabilities, text, and statistics
 * but for times.
 */
class SameAsPythonTest {
    @ParameterizedTest(name = "{0}: {1}, {2}")
    @MethodSource("cases")
    fun `Kotlin's tokens are Python's`(bundle: String, sampling: Sampling, speculation: Speculation) {
        val config = speculation.of(sampling.config.copy(maxNewTokens = 24))
        val turns = prompts.getValue(bundle)
        Models.of(bundle).chat().use { compare(it, turns, Python.ask(bundle, turns, config), config) }
    }

    @Test
    fun `raw prompts, stop strings, stop tokens, a system message and ignored ends too`() {
        val raw = GenerationConfig(maxNewTokens = 40, width = 4, ignoreEos = true, stop = listOf("\n\n", "zzz"))
        val stories = listOf("Once upon a time", "Once upon a hill there was")
        Models.demo.completion().use { compare(it, stories, Python.ask("demo", stories, raw, raw = true), raw) }

        val stopped = fixed.copy(maxNewTokens = 60, stop = listOf(" the", "absent"), stopTokenIds = listOf(30))
        val turns = listOf("Name a colour of the sky.", "Why? Tell me 🙂 naïvely.", "日本語で")
        val system = "You answer briefly."
        Models.demo.chat(system).use { compare(it, turns, Python.ask("demo", turns, stopped, system), stopped) }
    }

    @Test
    fun `each task adapter gives what Python gives for it, in chats and in completions`() {
        val model = Models.of("tasks")
        assertEquals(listOf("tuned", "lora"), model.adapters)
        val turns = listOf("the keeper climbed", "and the lamp?")
        for (config in listOf(fixed.copy(width = 4), GenerationConfig(maxNewTokens = 16, width = 4, temperature = 1.5, seed = 3))) {
            for (raw in listOf(false, true)) {
                val replies = (listOf(null) + model.adapters).map { adapter ->
                    val expected = Python.ask("tasks", turns, config, raw = raw, adapter = adapter)
                    val session = if (raw) model.completion(adapter = adapter) else model.chat(adapter = adapter)
                    session.use { compare(it, turns, expected, config) }
                    expected.map { it.tokens }
                }
                assertEquals(3, replies.distinct().size, "the adapters change the answers")
            }
        }
    }

    @Test
    fun `scores of given answers are Python's, and leave the conversation as it was`() = runBlocking<Unit> {
        val (question, answers) = "Name a colour of the sky." to listOf("Blue.", "A very long grey one", "日本 🙂")
        val folder = Repository.bundle("demo").path
        val pairs = answers.map { listOf(question, it) }
        val chats = Python.ask(Python.Request(folder, listOf(question), fixed, "Be brief.", scores = pairs))
        Models.demo.chat("Be brief.").use { chat ->
            assertEquals(chats.scores, answers.map { chat.score(question, it).logProbs })
            assertEquals(1, chat.messages.size)
            assertEquals(chats.turns.single().text, chat.answer(question, fixed).text)
            assertEquals(ErrorCode.BAD_ARGUMENT, failureOf<StreamFuseException> { chat.score(question, "") }.code)
        }
        val raw = Python.ask(Python.Request(folder, emptyList(), fixed, raw = true, scores = listOf(listOf("Once", " upon a"))))
        val score = Models.demo.completion().use { it.score("Once", " upon a") }
        assertEquals(raw.scores?.single(), score.logProbs)
        assertEquals(score.logProbs.sum(), score.logProb)
        assertEquals(exp(-score.logProb / score.logProbs.size), score.perplexity)
    }

    @Test
    fun `statistics have Python's keys in Python's order`() {
        val python = Python.ask("demo", listOf("Hello"), fixed).single().statistics
        val own = Models.demo.chat().use { it.answer("Hello", fixed).statistics }
        val keys = Json.parseToJsonElement(own.json).jsonObject.keys.toList()
        assertEquals(python.keys.toList(), keys)
        val properties = Statistics.serializer().descriptor.elementNames.toList()
        assertEquals(keys, properties)
    }

    private fun compare(session: Session, prompts: List<String>, python: List<Python.Turn>, config: GenerationConfig) {
        for ((prompt, expected) in prompts.zip(python)) {
            val own = session.answer(prompt, config)
            assertEquals(expected.tokens, own.tokens, prompt)
            assertEquals(expected.text, own.text, prompt)
            assertEquals(expected.logProbs, own.logProbs, prompt)
            assertEquals(if (config.logProbs == true) own.tokens.size else 0, own.logProbs.size, prompt)
            assertEquals(expected.topLogProbs, own.topLogProbs, prompt)
            val asked = config.topLogProbs ?: 0
            assertEquals(if (asked > 0) own.tokens.map { asked } else emptyList(), own.topLogProbs.map { it.size }, prompt)
            val theirs = Statistics.of(expected.statistics.toString())
            assertEquals(theirs.finishReason, own.statistics.finishReason)
            if (config.width == null && config.enableSpeculativeDecoding != false) continue // measured costs decide
            assertEquals(expected.sources, own.sources, prompt)
            assertEquals(theirs.untimed(), own.statistics.untimed())
        }
    }

    /** How tokens are chosen. */
    enum class Sampling(val config: GenerationConfig) {
        GREEDY(GenerationConfig(temperature = 0.0, logProbs = true, topLogProbs = 3)),
        WARM(GenerationConfig(temperature = 0.7, seed = 7)),
        CUT(
            GenerationConfig(
                temperature = 0.9, topK = 40, topP = 0.9, minP = 0.05, repetitionPenalty = 1.1, seed = -1, logProbs = true,
            ),
        ),
    }

    /** How they are guessed before. */
    enum class Speculation(val of: (GenerationConfig) -> GenerationConfig) {
        FIXED({ it.copy(width = 8) }),
        OFF({ it.copy(enableSpeculativeDecoding = false) }),
        AUTO({ it }),
    }

    companion object {
        val prompts = mapOf(
            "demo" to listOf("Explain why the sky is blue.", "And at night?"),
            "e2e" to listOf("name[The Eagle], eatType[coffee shop], food[French], area[riverside]"),
            "sql" to listOf("CREATE TABLE singer (name VARCHAR, age INT)\nHow many singers are older than 20?"),
        )

        /** All of them in chats of the demo; each sampling and each speculation once on the other bundles. */
        @JvmStatic
        fun cases(): List<Arguments> = Repository.bundles.flatMap { bundle ->
            Sampling.entries.flatMap { sampling ->
                Speculation.entries.filter { bundle == "demo" || it.ordinal == sampling.ordinal }
                    .map { arguments(bundle, sampling, it) }
            }
        }
    }
}
