package dev.streamfuse.app.model

import dev.streamfuse.SelfTest
import dev.streamfuse.app.R
import java.io.File
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.test.TestScope
import kotlinx.coroutines.test.UnconfinedTestDispatcher
import kotlinx.coroutines.test.runTest
import org.junit.Assert.assertEquals
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

/** The device check with the fake library: the text for each result. */
@OptIn(ExperimentalCoroutinesApi::class)
class DeviceCheckTest {
    @get:Rule val folder = TemporaryFolder()
    private val engine = FakeEngine()
    private lateinit var chat: ChatModel

    private fun TestScope.check(vararg kept: Pair<String, String>): DeviceCheck {
        File(folder.newFolder("demo"), "manifest.json").writeText("{}")
        val scope = CoroutineScope(UnconfinedTestDispatcher(testScheduler) + Job())
        val settings = SettingsStore(FakePreferences(*kept), scope)
        val saved = SavedChats(folder.newFolder("saved"))
        chat = ChatModel(engine, { File(folder.root, it) }, File(folder.root, "memory"), settings, saved, scope).also { it.wake() }
        return DeviceCheck(chat, scope)
    }

    private suspend fun DeviceCheck.lines(): List<Sentence> {
        run()
        return state.first { !it.isRunning && it.lines.isNotEmpty() }.lines
    }

    private fun parity(isEqual: Boolean) = SelfTest.Parity(true, isEqual, 80.0, 80.0, 0.1, 8, 1.0, 1.0, 1.0)

    private fun found(passed: Boolean, equal: Boolean, vararg differences: String) = SelfTest(
        passed, equal, true, 12.0, mapOf("decode" to parity(equal), "verify_4" to parity(equal)), differences.toList(),
    )

    @Test fun `equal passes are named, and the chat has its model again`() = runTest {
        val check = check("bundle" to "demo")
        engine.selfTest = found(passed = true, equal = true)
        assertEquals(listOf(words(R.string.check_equal, "decode, verify_4")), check.lines())
        assertEquals(1, engine.open)
        assertEquals(Phase.READY, chat.state.value.phase)
    }

    @Test fun `what differs is shown, whether it is a fault or not`() = runTest {
        val check = check("bundle" to "demo")
        engine.selfTest = found(passed = true, equal = false, "verify_4: 79.0 dB, not 80.0 dB")
        val difference = Sentence.Literal("verify_4: 79.0 dB, not 80.0 dB")
        assertEquals(listOf(words(R.string.check_passed), difference), check.lines())
        engine.selfTest = found(passed = false, equal = false, "decode: 12.0 dB, not 80.0 dB")
        assertEquals(listOf(words(R.string.check_failed), Sentence.Literal("decode: 12.0 dB, not 80.0 dB")), check.lines())
    }

    @Test fun `a bundle without a self-test is an error, and without a bundle it asks for one`() = runTest {
        assertEquals(listOf(Sentence.Literal("There is no selftest.npz.")), check("bundle" to "demo").lines())
        folder.delete()
        folder.create()
        assertEquals(listOf(words(R.string.benchmark_no_bundle)), check().lines())
    }
}
