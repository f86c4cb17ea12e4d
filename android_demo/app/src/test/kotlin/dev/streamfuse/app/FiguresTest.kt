package dev.streamfuse.app

import dev.streamfuse.app.model.Live
import org.junit.Assert.assertEquals
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment

/** The figures of an answer in words. */
@RunWith(RobolectricTestRunner::class)
class FiguresTest {
    private fun figures(live: Live) = Figures(RuntimeEnvironment.getApplication(), live)

    private val drafted = Live(
        tokens = 24, firstTokenMs = 312.0, tokensPerSecond = 70.6, tokensPerPass = 2.4, accepted = 14, proposed = 35,
        speedup = 1.66, bySource = mapOf("streams" to 11, "lookup" to 3, "table" to 0), promptTokens = 37,
        prefillTokensPerSecond = 240.4,
    )

    @Test fun `the speed-up is shown if drafts were accepted`() {
        assertEquals("71 tok/s · 1.7×", figures(drafted).short)
        assertEquals(
            listOf(
                "First token 0.31 s", "70.6 tokens/s", "1.66 times as fast as plain decoding, by the latency measured on this device",
                "2.40 tokens per pass", "14 of 35 drafted tokens accepted",
                "${word(R.string.streams)}: 11 tokens", "${word(R.string.lookup)}: 3 tokens", "Prompt: 37 tokens, read at 240 tokens/s",
            ),
            figures(drafted).lines,
        )
    }

    @Test fun `without accepted drafts, the reason for plain passes is shown instead of a speed-up`() {
        val plain = drafted.copy(speedup = null, accepted = 0, bySource = emptyMap(), fallbackReason = "off by request")
        assertEquals("71 tok/s", figures(plain).short)
        assertEquals("Plain passes: off by request", figures(plain).lines.last())
        assertEquals(null, figures(Live()).short)
    }

    private fun word(id: Int) = RuntimeEnvironment.getApplication().getString(id)
}
