package dev.streamfuse

import kotlin.system.measureNanoTime
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** Kotlin's speed beside Python's: the same text by the clock on the wall, in turns, the best of three each. */
class SpeedTest {
    @Test
    fun `Kotlin is as fast as Python`() {
        val prompt = "Explain why the sky is blue."
        val plain = GenerationConfig(maxNewTokens = 64, enableSpeculativeDecoding = false, ignoreEos = true)
        for ((name, config) in mapOf("plain" to plain, "width 8" to plain.copy(enableSpeculativeDecoding = null, width = 8))) {
            var python = 0.0
            var kotlin = 0.0
            Models.demo.chat().use { chat ->
                repeat(3) {
                    val theirs = Python.ask("demo", listOf(prompt), config).single()
                    python = maxOf(python, theirs.tokens.size / theirs.seconds)
                    chat.reset()
                    val took = measureNanoTime { runBlocking { chat.generate(prompt, config) } }
                    kotlin = maxOf(kotlin, chat.statistics!!.generatedTokens / (took / 1e9))
                }
            }
            println("%s: Kotlin %.1f tokens/s, Python %.1f tokens/s, ratio %.3f".format(name, kotlin, python, kotlin / python))
            assertTrue(kotlin > 0.8 * python)
        }
    }
}
