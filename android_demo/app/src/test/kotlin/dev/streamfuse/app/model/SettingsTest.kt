package dev.streamfuse.app.model

import dev.streamfuse.app.R
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.test.TestScope
import kotlinx.coroutines.test.advanceTimeBy
import kotlinx.coroutines.test.runCurrent
import org.junit.Assert.assertEquals
import org.junit.Assert.assertNull
import org.junit.Assert.assertThrows
import org.junit.Test

/** Settings are checked as they are typed, and kept. */
@OptIn(ExperimentalCoroutinesApi::class)
class SettingsTest {
    private val preferences = FakePreferences()
    private val scope = TestScope()
    private val store = SettingsStore(preferences, scope.backgroundScope)

    private fun refused(field: Field, text: String): Int {
        val error = assertThrows(AppException::class.java) { store.set(field, text) }
        return (error.sentence as Sentence.Words).id
    }

    @Test fun `what is right is kept for the next process`() {
        store.set(Field.TEMPERATURE, " 0,7 ")
        store.set(Field.SEED, "9223372036854775807")
        store.set(Speculation.OFF)
        store.setSystemPrompt("Be brief.")
        store.flush()
        val again = SettingsStore(preferences, scope.backgroundScope).settings.value
        assertEquals(store.settings.value, again)
        assertEquals(0.7, again.config().temperature!!, 0.0)
        assertEquals(Long.MAX_VALUE, again.config().seed)
        assertEquals(false, again.config().enableSpeculativeDecoding)
    }

    @Test fun `a change is written even if it was made before the writer began`() {
        store.catalog = "https://models.example"
        scope.advanceTimeBy(1_000)
        scope.runCurrent()
        assertEquals("https://models.example", preferences.kept["catalog"])
        assertEquals(1, preferences.writes)
    }

    @Test fun `an empty field is the bundle's default`() {
        store.set(Field.TOP_K, "40")
        store.set(Field.TOP_K, "")
        assertNull(store.settings.value.config().topK)
        assertNull("automatic", store.settings.value.config().enableSpeculativeDecoding)
    }

    @Test fun `what is wrong is refused with its range, and the last value stays`() {
        store.set(Field.TOP_P, "0.9")
        assertEquals(R.string.range_above_to, refused(Field.TOP_P, "0"))
        assertEquals(R.string.range_above_to, refused(Field.TOP_P, "1.01"))
        assertEquals(R.string.not_a_number, refused(Field.TEMPERATURE, "warm"))
        assertEquals(R.string.range_from, refused(Field.TEMPERATURE, "-1"))
        assertEquals(R.string.range_above, refused(Field.REPETITION_PENALTY, "0"))
        assertEquals(R.string.range_between, refused(Field.MIN_P, "2"))
        assertEquals(R.string.range_between, refused(Field.MAX_NEW_TOKENS, "0"))
        assertEquals(R.string.range_between, refused(Field.SEED, "9223372036854775808"))
        assertEquals(R.string.not_whole, refused(Field.TOP_K, "1.5"))
        assertEquals("a thousand, or one", R.string.not_whole, refused(Field.MAX_NEW_TOKENS, "1,000"))
        assertEquals(0.9, store.settings.value.config().topP!!, 0.0)
    }

    @Test fun `a number is digits, of which there are not too many`() {
        for (text in listOf("1e999999999", "1E9", "1e-999999999", "1".repeat(38), "0." + "1".repeat(13), ".", "+", "1-")) {
            assertEquals(text, R.string.not_a_number, refused(Field.TEMPERATURE, text))
        }
        assertEquals(R.string.not_a_number, refused(Field.TOP_P, "1e-999999999"))
        assertEquals(Settings(), store.settings.value)
        for (text in listOf("+.5", "0,5", "0.500000000000", "00.5")) store.set(Field.TOP_P, text)
        store.set(Field.TEMPERATURE, "1" + "0".repeat(24))
        store.set(Field.THREADS, "2.")
        store.flush()
        val again = SettingsStore(preferences, scope.backgroundScope).settings.value.config()
        assertEquals(store.settings.value.config(), again)
        assertEquals(0.5, again.topP!!, 0.0)
        assertEquals(1e24, again.temperature!!, 0.0)
    }

    @Test fun `what an older version kept out of range is left out`() {
        val old = FakePreferences(Field.TOP_P.name to "7", Field.MIN_P.name to "1e-9", "speculation" to "SOMETIMES")
        assertEquals(Settings(), SettingsStore(old, scope.backgroundScope).settings.value)
    }

    @Test fun `a preset is its numbers and no other one, and any change leaves it`() {
        store.set(Field.TOP_K, "40")
        store.set(Field.SEED, "7")
        store.set(Preset.BALANCED)
        assertEquals(listOf(Preset.BALANCED), Preset.entries.filter { it.isIn(store.settings.value) })
        assertNull(store.settings.value.config().topK)
        assertEquals("what is not about style stays", 7L, store.settings.value.config().seed)
        store.set(Field.TEMPERATURE, "1.00")
        assertEquals(emptyList<Preset>(), Preset.entries.filter { it.isIn(store.settings.value) })
        store.set(Field.TEMPERATURE, "0.70")
        assertEquals("the same number", listOf(Preset.BALANCED), Preset.entries.filter { it.isIn(store.settings.value) })
    }

    @Test fun `every position of a slider is a number that the field takes`() {
        for (field in Field.entries) {
            val slider = field.slider ?: continue
            for (position in 0..slider.last) {
                assertEquals(position, slider.positionOf(field.read(slider.at(position).toPlainString())!!))
            }
        }
    }

    @Test fun `typing writes once, when it has stopped`() {
        scope.runCurrent()
        for (length in 1..20) {
            store.setSystemPrompt("x".repeat(length))
            scope.advanceTimeBy(100)
        }
        assertEquals("while one types", 0, preferences.writes)
        scope.advanceTimeBy(1000)
        assertEquals(1, preferences.writes)
        assertEquals("x".repeat(20), preferences.kept["system"])
        store.setSystemPrompt("then")
        store.flush()
        scope.advanceTimeBy(1000)
        assertEquals("left before the moment was over", 2, preferences.writes)
        store.clear()
        store.bundle = "demo"
        store.flush()
        assertEquals("demo", SettingsStore(preferences, scope.backgroundScope).bundle)
    }
}
