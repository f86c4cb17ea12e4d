package dev.streamfuse.app

import android.app.AlertDialog
import android.content.Intent
import android.os.PowerManager
import android.view.KeyEvent
import android.view.View
import android.view.ViewGroup
import android.widget.EditText
import android.widget.RadioButton
import android.widget.SeekBar
import android.widget.TextView
import dev.streamfuse.app.model.Field
import dev.streamfuse.app.model.Phase
import dev.streamfuse.app.model.Settings
import java.io.File
import java.math.BigDecimal
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Test
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import org.robolectric.shadows.ShadowAlertDialog

/** Settings and benchmark, by what a person sees. */
@Config(qualifiers = Device.PHONE)
class OtherScreensTest : Device() {
    private fun SettingsActivity.row(field: Field): View {
        val name = getString(field.label)
        val boxes = listOf(R.id.fields, R.id.more_fields).map { findViewById<ViewGroup>(it)!! }
        return boxes.flatMap { box -> (0 until box.childCount).map(box::getChildAt) }
            .first { it.findViewById<TextView>(R.id.label)!!.text == name }
    }

    private fun SettingsActivity.value(field: Field) = row(field).findViewById<TextView>(R.id.value)!!

    private fun SettingsActivity.wrong(field: Field) = row(field).findViewById<TextView>(R.id.wrong)!!

    /** Types a number in the dialog that the value opens. */
    private fun SettingsActivity.enter(field: Field, text: String) {
        value(field).performClick()
        ShadowAlertDialog.getLatestAlertDialog()!!.findViewById<EditText>(R.id.field)!!.setText(text)
        pressInDialog(AlertDialog.BUTTON_POSITIVE)
        idle()
        idle()
    }

    private fun SettingsActivity.choice(word: Int) = all().first { it is RadioButton && it.text == getString(word) } as RadioButton

    @Test fun `settings are kept, and invalid input shows an error next to its field`() {
        val screen = open(SettingsActivity::class.java).get()
        screen.press(R.id.more_settings)
        screen.choice(R.string.creative).performClick()
        idle()
        assertEquals("1", screen.value(Field.TEMPERATURE).text.toString())
        screen.enter(Field.TEMPERATURE, "0,8")
        screen.enter(Field.TOP_P, "1.5")
        assertEquals("It must be above 0 and at most 1, not 1.5.", screen.wrong(Field.TOP_P).text.toString())
        assertFalse(screen.wrong(Field.TEMPERATURE).isShown)
        assertFalse("no preset any more", screen.choice(R.string.creative).isChecked)
        screen.enter(Field.TOP_P, "0.5")
        assertFalse(screen.wrong(Field.TOP_P).isShown)
        screen.type(R.id.system_prompt, "Be brief.")
        screen.choice(R.string.speculation_off).performClick()
        screen.press(R.id.drop_oldest)
        screen.press(R.id.remember_answers)
        val help = screen.row(Field.SEED).findViewById<View>(R.id.help)!!
        assertFalse(help.isShown)
        screen.row(Field.SEED).findViewById<View>(R.id.explain)!!.performClick()
        assertTrue(help.isShown)

        val again = open(SettingsActivity::class.java).get()
        assertEquals("0.8", again.value(Field.TEMPERATURE).text.toString())
        assertEquals("0.5", again.value(Field.TOP_P).text.toString())
        assertEquals(16, again.row(Field.TEMPERATURE).findViewById<SeekBar>(R.id.slider)!!.progress)
        assertEquals("Be brief.", again.text(R.id.system_prompt).text.toString())
        assertTrue(again.choice(R.string.speculation_off).isChecked)
        assertTrue(parts.settings.settings.value.run { dropsOldest && remembersAnswers })
        again.press(R.id.restore_defaults)
        idle()
        idle()
        assertEquals("Bundle's default", again.value(Field.TEMPERATURE).text.toString())
        assertEquals(Settings(), parts.settings.settings.value)
    }

    @Test fun `a slider sets its number, and remembered answers are erased after a question`() {
        install("demo", remembersAnswers = true)
        open(ChatActivity::class.java)
        until { parts.chat.state.value.phase == Phase.READY }
        val memory = File(app.noBackupFilesDir, "answers")
        val remembered = File(memory, "demo")
        val emptyBytes = remembered.length() // a header
        parts.chat.send("Name three colours.")
        until { parts.chat.state.value.run { phase == Phase.READY && turns.size == 2 } }
        assertTrue("the answer is remembered", remembered.length() > emptyBytes)
        val screen = open(SettingsActivity::class.java).get()
        assertTrue(screen.value(Field.MAX_NEW_TOKENS).text.startsWith("Default: "))
        val slider = screen.row(Field.TEMPERATURE).findViewById<SeekBar>(R.id.slider)!!
        slider.onKeyDown(KeyEvent.KEYCODE_DPAD_RIGHT, KeyEvent(KeyEvent.ACTION_DOWN, KeyEvent.KEYCODE_DPAD_RIGHT))
        assertEquals(BigDecimal("0.1"), parts.settings.settings.value.numbers[Field.TEMPERATURE])
        File(memory, "another").writeText("tokens")
        picture(screen, "settings-light")
        screen.press(R.id.erase_answers)
        pressInDialog(AlertDialog.BUTTON_POSITIVE)
        until { screen.shown(R.id.erased) }
        assertEquals("The remembered answers are erased.", screen.text(R.id.erased).text.toString())
        assertEquals("only the open model's file is left", listOf("demo"), memory.list().orEmpty().toList())
        assertEquals("it is empty", 0L, remembered.length())
    }

    @Test fun `an open question survives rotation, and its answer counts`() {
        install("demo")
        val controller = open(SettingsActivity::class.java)
        controller.get().press(R.id.erase_answers)
        turn(controller)
        pressInDialog(AlertDialog.BUTTON_POSITIVE)
        until { controller.get().text(R.id.erased).text.toString() == "The remembered answers are erased." }
    }

    @Test fun `an open dialog for a number survives rotation`() {
        val controller = open(SettingsActivity::class.java)
        controller.get().value(Field.TEMPERATURE).performClick()
        typeAndTurn(controller, "0.7")
        pressInDialog(AlertDialog.BUTTON_POSITIVE)
        idle()
        idle()
        assertEquals("0.7", controller.get().value(Field.TEMPERATURE).text.toString())
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
        until { screen.shown(R.id.result) }
        assertTrue(screen.text(R.id.headline).text.matches(Regex("[0-9]+\\.[0-9]{2}×")))
        val figures = screen.findViewById<ViewGroup>(R.id.figures)!!.all().filterIsInstance<TextView>().map { it.text.toString() }
        assertTrue("$figures", figures.containsAll(listOf("Writing", "First token", "Peak memory of the app", "normal → warm", "On")))
        picture(screen, picture)
        screen.press(R.id.details)
        val report = screen.text(R.id.report).text.toString()
        assertTrue(report, report.contains(Regex("Device: .+\n.*Android 15")))
        assertTrue(report, report.contains("Bundle: demo, threads: "))
        assertTrue(report, report.contains("Heat: normal before, warm after\nBattery saver is on"))
        assertTrue(report, report.contains(Regex("tokens/s, median +[0-9.]+ +[0-9.]+")))
        assertTrue(report, report.contains("All answers are equal."))
        screen.press(R.id.share)
        val chooser = shadowOf(screen).nextStartedActivity
        @Suppress("DEPRECATION")
        val shared = chooser.getParcelableExtra<Intent>(Intent.EXTRA_INTENT)!!
        assertEquals(Intent.ACTION_SEND, shared.action)
        assertEquals(report, shared.getStringExtra(Intent.EXTRA_TEXT))
        screen.type(R.id.tokens, "0")
        screen.press(R.id.run)
        assertEquals("an error can be seen", screen.getColor(R.color.text_secondary), screen.text(R.id.message).currentTextColor)
    }

    @Test fun `a benchmark measures both ways in turn and can be shared`() = benchmark("benchmark-light")

    @Test @Config(qualifiers = Device.PHONE_NIGHT) fun `at night`() = benchmark("benchmark-dark")

    @Test fun `a check of the device says that the library's passes are the recorded ones`() {
        install("demo")
        val screen = open(BenchmarkActivity::class.java).get()
        until { parts.chat.state.value.phase == Phase.READY }
        assertFalse(screen.shown(R.id.check_result))
        screen.press(R.id.check_device)
        until { screen.shown(R.id.check_result) && screen.findViewById<View>(R.id.check_device)!!.isEnabled }
        val found = screen.text(R.id.check_result).text.toString()
        assertTrue(found, found.startsWith("All passes give the recorded results, bit for bit: decode, "))
        assertTrue(found, found.contains("verify_8"))
        until { parts.chat.state.value.phase == Phase.READY }
    }

    @Test fun `a benchmark can be cancelled, and an invalid number shows an error`() {
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
