package dev.streamfuse.app

import org.junit.Assert.assertEquals
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.annotation.Config

/** Times in the language of the app's own texts, on a German phone. */
@RunWith(RobolectricTestRunner::class)
@Config(qualifiers = "de")
class WordsTest {
    private fun since(minutes: Long) = RuntimeEnvironment.getApplication().since(1_700_000_000_000 - minutes * 60_000, 1_700_000_000_000)

    @Test fun `a time is said in the language of the sentence around it`() {
        assertEquals("0 minutes ago", since(0))
        assertEquals("1 minute ago", since(1))
        assertEquals("3 hours ago", since(3 * 60 + 59))
        assertEquals("2 days ago", since(2 * 24 * 60))
        assertEquals("Nov 6, 2023", since(8 * 24 * 60))
    }
}
