package dev.streamfuse.app.model

import dev.streamfuse.Statistics
import dev.streamfuse.app.R
import java.io.File
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.Job
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.test.StandardTestDispatcher
import kotlinx.coroutines.test.UnconfinedTestDispatcher
import kotlinx.coroutines.test.runTest
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotNull
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

/** The benchmark over the fake library, and its report. */
@OptIn(ExperimentalCoroutinesApi::class)
class BenchmarkTest {
    @get:Rule val folder = TemporaryFolder()

    private val names = mapOf(
        R.string.report_title to "Title", R.string.report_rate to "tokens/s", R.string.report_speedup to "Speed-up",
        R.string.report_equal to "Equal.", R.string.report_different to "Different!", R.string.report_fallback to "Plain passes",
    )

    private fun word(id: Int) = names[id] ?: "x"

    private fun measured(text: String, rate: Double) = Measured(text, Statistics(decodeTokensPerSecond = rate, generatedTokens = 9))

    @Test fun `both modes answer three times on the chat's own model, which the chat has again afterwards`() = runTest {
        File(folder.newFolder("demo"), "manifest.json").writeText("{}")
        val scope = CoroutineScope(UnconfinedTestDispatcher(testScheduler) + Job())
        val settings = SettingsStore(FakePreferences("bundle" to "demo"), scope)
        val engine = FakeEngine()
        val chat = ChatModel(engine, { File(folder.root, it) }, File(folder.root, "memory"), settings, SavedChats(folder.newFolder("saved")), scope).also { it.wake() }
        val benchmark = BenchmarkModel(chat, settings, scope)
        benchmark.run("Hello", 8)
        val result = benchmark.state.first { !it.running }.result!!
        assertEquals(3, result.plain.size)
        assertEquals(3, result.speculative.size)
        assertTrue(result.equal)
        assertTrue(result.plain.all { it.statistics.fallbackReason == "off by request" })
        assertEquals(1, engine.open)
        assertEquals(Phase.READY, chat.state.value.phase)
    }

    @Test fun `a benchmark ends when the app is left, and shows the reason`() = runTest {
        File(folder.newFolder("demo"), "manifest.json").writeText("{}")
        val scope = CoroutineScope(UnconfinedTestDispatcher(testScheduler) + Job())
        val settings = SettingsStore(FakePreferences("bundle" to "demo"), scope)
        val engine = FakeEngine().apply { gate = Channel(Channel.UNLIMITED) }
        val chat = ChatModel(engine, { File(folder.root, it) }, File(folder.root, "memory"), settings, SavedChats(folder.newFolder("saved")), scope).also { it.wake() }
        val benchmark = BenchmarkModel(chat, settings, scope)
        benchmark.run("Hello", 8)
        benchmark.leave()
        assertEquals(words(R.string.benchmark_left), benchmark.state.first { !it.running }.message)
        engine.gate = null
        benchmark.run("Hello", 8)
        assertEquals(3, benchmark.state.first { !it.running }.result!!.plain.size)
    }

    @Test fun `a benchmark that is cancelled before it starts shows the reason`() = runTest {
        val scope = CoroutineScope(StandardTestDispatcher(testScheduler) + Job())
        val settings = SettingsStore(FakePreferences(), scope)
        val chat = ChatModel(FakeEngine(), { folder.root }, folder.root, settings, SavedChats(folder.root), scope)
        val benchmark = BenchmarkModel(chat, settings, scope)
        benchmark.run("Hello", 8)
        benchmark.leave()
        assertEquals(words(R.string.benchmark_left), benchmark.state.first { !it.running }.message)
    }

    @Test fun `the benchmark is refused while answers are remembered`() = runTest {
        File(folder.newFolder("demo"), "manifest.json").writeText("{}")
        val scope = CoroutineScope(UnconfinedTestDispatcher(testScheduler) + Job())
        val settings = SettingsStore(FakePreferences("bundle" to "demo", "remember" to "true"), scope)
        val chat = ChatModel(FakeEngine(), { File(folder.root, it) }, File(folder.root, "memory"), settings, SavedChats(folder.newFolder("saved")), scope).also { it.wake() }
        val benchmark = BenchmarkModel(chat, settings, scope)
        benchmark.run("Hello", 8)
        assertEquals(BenchmarkState(message = words(R.string.benchmark_remembers)), benchmark.state.value)
        settings.setRemembersAnswers(false)
        benchmark.run("Hello", 8)
        assertNotNull(benchmark.state.first { !it.running }.result)
    }

    @Test fun `without a bundle it asks for one`() = runTest {
        val scope = CoroutineScope(UnconfinedTestDispatcher(testScheduler) + Job())
        val settings = SettingsStore(FakePreferences(), scope)
        val chat = ChatModel(FakeEngine(), { folder.root }, folder.root, settings, SavedChats(folder.root), scope).also { it.wake() }
        val benchmark = BenchmarkModel(chat, settings, scope)
        benchmark.run("Hello", 8)
        assertNotNull(benchmark.state.first { !it.running }.message)
    }

    @Test fun `the report has the medians, the device and whether the answers are equal`() {
        val runs = Measurement(
            "demo", 4,
            plain = listOf(measured("a", 20.0), measured("a", 10.0), measured("a", 11.0)),
            speculative = listOf(measured("a", 30.0), measured("a", 22.0), measured("a", 21.0)),
        )
        val text = report(runs, listOf("Device: X"), ::word)
        assertTrue(text, text.startsWith("Title\nDevice: X\n"))
        assertTrue(text, text.contains(Regex("tokens/s +11.0 +22.0")))
        assertTrue(text, text.contains("Speed-up: 2.00\nEqual."))
        assertFalse(text, text.contains("Plain passes"))
        assertTrue(report(runs.copy(speculative = listOf(measured("b", 1.0))), emptyList(), ::word).contains("Different!"))
    }
}
