package dev.streamfuse.app

import android.content.Intent
import android.os.PowerManager
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.RadioButton
import android.widget.TextView
import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.Phase
import dev.streamfuse.app.model.Speculation
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Test
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config

/** Settings and benchmark, by what a person sees. */
@Config(qualifiers = Device.PHONE)
class OtherScreensTest : Device() {
    private fun SettingsActivity.row(field: Field) =
        (findViewById(R.id.fields) as LinearLayout).getChildAt(field.ordinal) as LinearLayout

    private fun SettingsActivity.input(field: Field) = row(field).getChildAt(1) as EditText

    private fun SettingsActivity.wrong(field: Field) = row(field).findViewById<TextView>(R.id.wrong)!!

    @Test fun `what is typed into settings is kept, what is wrong is said beside it`() {
        val screen = open(SettingsActivity::class.java).get()
        screen.input(Field.TEMPERATURE).setText("0.8")
        screen.input(Field.TOP_P).setText("1.5")
        screen.type(R.id.system_prompt, "Be brief.")
        (screen.findViewById(R.id.speculation_off) as RadioButton).performClick()
        idle()
        assertFalse(screen.wrong(Field.TEMPERATURE).isShown)
        assertTrue(screen.wrong(Field.TOP_P).isShown)
        assertEquals("It must be above 0 and at most 1, not 1.5.", screen.wrong(Field.TOP_P).text.toString())
        picture(screen, "settings-light")
        screen.input(Field.TOP_P).setText("0.5")
        assertFalse(screen.wrong(Field.TOP_P).isShown)

        val again = open(SettingsActivity::class.java).get()
        assertEquals("0.8", again.input(Field.TEMPERATURE).text.toString())
        assertEquals("0.5", again.input(Field.TOP_P).text.toString())
        assertEquals("Be brief.", again.text(R.id.system_prompt).text.toString())
        assertTrue((again.findViewById(R.id.speculation_off) as RadioButton).isChecked)
        again.press(R.id.restore_defaults)
        assertEquals("", again.input(Field.TEMPERATURE).text.toString())
        assertEquals(Speculation.AUTO, parts.settings.settings.value.speculation)
        assertNull(parts.settings.settings.value.config().temperature)
    }

    @Test @Config(qualifiers = Device.PHONE_NIGHT) fun `settings at night`() {
        picture(open(SettingsActivity::class.java).get(), "settings-dark")
    }

    private fun benchmark(picture: String) {
        install("demo")
        val screen = open(BenchmarkActivity::class.java).get()
        until { parts.chat.state.value.phase == Phase.READY }
        screen.type(R.id.tokens, "12")
        val power = shadowOf(screen.getSystemService(PowerManager::class.java))
        power.setIsPowerSaveMode(true)
        screen.press(R.id.run)
        until { screen.text(R.id.run).text == "Cancel" && screen.text(R.id.message).text.startsWith("Answer ") }
        power.setCurrentThermalStatus(PowerManager.THERMAL_STATUS_LIGHT)
        until { screen.shown(R.id.report) }
        val report = screen.text(R.id.report).text.toString()
        assertTrue(report, report.contains(Regex("Device: .+\n.*Android 15")))
        assertTrue(report, report.contains("Bundle: demo, threads: "))
        assertTrue(report, report.contains("Heat: normal before, warm after\nBattery saver is on"))
        assertTrue(report, report.contains(Regex("tokens/s, median +[0-9.]+ +[0-9.]+")))
        assertTrue(report, report.contains("All answers are equal."))
        picture(screen, picture)
        screen.press(R.id.share)
        val chooser = shadowOf(screen).nextStartedActivity
        @Suppress("DEPRECATION")
        val shared = chooser.getParcelableExtra<Intent>(Intent.EXTRA_INTENT)!!
        assertEquals(Intent.ACTION_SEND, shared.action)
        assertEquals(report, shared.getStringExtra(Intent.EXTRA_TEXT))
    }

    @Test fun `a benchmark measures both ways in turn and can be shared`() = benchmark("benchmark-light")

    @Test @Config(qualifiers = Device.PHONE_NIGHT) fun `at night`() = benchmark("benchmark-dark")

    @Test fun `a benchmark can be cancelled, and says what is wrong with its number`() {
        install("demo")
        val screen = open(BenchmarkActivity::class.java).get()
        screen.type(R.id.tokens, "0")
        screen.press(R.id.run)
        assertTrue(screen.text(R.id.message).text.startsWith("It must be from 1 to "))
        until { parts.chat.state.value.phase == Phase.READY }
        screen.type(R.id.tokens, "400")
        screen.press(R.id.run)
        until { parts.chat.state.value.phase == Phase.LENT }
        screen.press(R.id.run)
        until { screen.text(R.id.message).text == "The benchmark was cancelled." }
        until { parts.chat.state.value.phase == Phase.READY }
    }
}
