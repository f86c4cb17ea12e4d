package dev.streamfuse.app

import org.junit.Assert.assertEquals
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.annotation.Config

/** Relative times on a phone whose language the app is not translated to. */
@RunWith(RobolectricTestRunner::class)
@Config(qualifiers = "de")
class WordsTest {
    private fun since(minutes: Long) = RuntimeEnvironment.getApplication().since(NOW - minutes * 60_000, NOW)

    @Test fun `relative times are in the language of the app's texts`() {
        assertEquals("0 minutes ago", since(0))
        assertEquals("1 minute ago", since(1))
        assertEquals("3 hours ago", since(3 * 60 + 59))
        assertEquals("2 days ago", since(2 * 24 * 60))
        assertEquals("Nov 7, 2023", since(8 * 24 * 60))
    }

    private companion object {
        const val NOW = 1_700_042_400_000 // 10:00 UTC, the same day in nearly all time zones
    }
}
