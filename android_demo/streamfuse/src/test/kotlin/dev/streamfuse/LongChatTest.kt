package dev.streamfuse

import java.io.File
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Chats that are longer than the context, and the counts of tokens. */
class LongChatTest {
    private val system = "You answer in one sentence."
    private val questions = List(5) { number ->
        "What is number ${100 * number + 7} of this list: " + List(40) { "word ${100 * number + it}" }.joinToString() + "?"
    }

    private fun longChat() = Models.demo.chat(system, contextPolicy = ContextPolicy.DROP_OLDEST)

    @Test
    fun `a chat longer than the context is Python's, and a restored one goes on alike`(@TempDir folder: File) {
        val file = File(folder, "chat.session")
        val config = fixed.copy(temperature = 0.8, seed = 5)
        val request =
            Python.Request(Repository.bundle("demo").path, questions, config, system, contextPolicy = "drop_oldest")
        val expected = Python.ask(request)
        var restored = 0
        longChat().use { chat ->
            for ((question, turn) in questions.zip(expected.turns)) {
                chat.save(file)
                val found = chat.answer(question, config)
                assertEquals(turn.tokens, found.tokens)
                assertEquals(Statistics.of(turn.statistics.toString()).untimed(), found.statistics.untimed())
                if (found.statistics.droppedTurns == 0) continue
                longChat().use { other ->
                    other.restore(file)
                    val plain = config.copy(width = null, enableSpeculativeDecoding = false)
                    val again = other.answer(question, plain)
                    assertEquals(found.tokens, again.tokens, "restored, and without speculation")
                    assertEquals(found.statistics.droppedTurns, again.statistics.droppedTurns)
                    assertEquals(chat.messages, other.messages)
                    restored++
                }
            }
            assertTrue(restored > 0)
            assertEquals(expected.messages, chat.messages)
            assertEquals(Message(Role.SYSTEM, system), chat.messages.first())
        }
    }

    @Test
    fun `a new chat with the kept turns gives the same answer`() {
        longChat().use { chat ->
            for (question in questions) {
                val found = chat.answer(question, fixed)
                if (found.statistics.droppedTurns == 0) continue
                val history = chat.messages.dropLast(2)
                Models.demo.chat(history = history).use { assertEquals(found.tokens, it.answer(question, fixed).tokens) }
            }
        }
    }

    @Test
    fun `a question that does not fit is refused by default, and one that never fits always`() {
        Models.demo.chat(system).use { chat ->
            val full = failureOf<StreamFuseException> { questions.forEach { chat.answer(it, fixed) } }
            assertEquals(ErrorCode.CONTEXT_FULL, full.code)
            assertTrue("drop_oldest" in full.message!!, full.message)
        }
        longChat().use { chat ->
            val before = chat.messages
            val never = failureOf<StreamFuseException> { chat.answer("many words ".repeat(1000), fixed) }
            assertEquals(ErrorCode.CONTEXT_FULL, never.code)
            assertEquals(before, chat.messages)
        }
    }

    @Test
    fun `tokens are counted, of a text and of a chat`() {
        val model = Models.demo
        assertEquals(0, model.countTokens(""))
        model.chat().use { chat ->
            assertEquals(0, chat.usedTokens)
            assertEquals(model.contextLength, chat.remainingTokens)
            val lengths = listOf("", questions[0], "ä <|im_end|>").map { text ->
                val prompt = chat.answer(text, fixed).statistics.promptTokens
                assertEquals(prompt + chat.statistics!!.generatedTokens, chat.usedTokens)
                assertEquals(model.contextLength - chat.usedTokens, chat.remainingTokens)
                chat.reset()
                prompt - model.countTokens(text)
            }
            assertEquals(1, lengths.distinct().size, "what the template adds")
            assertEquals(0, chat.usedTokens)
        }
    }

    @Test
    fun `countTokens reports the library's error message`() {
        assertEquals(7, tokenCount(7) { error("there is no error") })
        val refused = failureOf<StreamFuseException> { tokenCount(-1) { "the text is not UTF-8" } }
        assertEquals(ErrorCode.BAD_ARGUMENT to "the text is not UTF-8", refused.code to refused.message)
        val full = failureOf<StreamFuseException> { tokenCount(-7) { error("no handle has a message") } }
        assertEquals(ErrorCode.OUT_OF_MEMORY to "memory is out", full.code to full.message)
    }
}
