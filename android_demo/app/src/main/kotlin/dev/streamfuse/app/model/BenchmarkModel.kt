package dev.streamfuse.app.model

import dev.streamfuse.GenerationConfig
import dev.streamfuse.Statistics
import dev.streamfuse.app.R
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.DelicateCoroutinesApi
import kotlinx.coroutines.Job
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch

/** One answer of the benchmark. */
data class Measured(val text: String, val statistics: Statistics)

/** The device's thermal status: at [HOT] the system throttles the processor. */
enum class Heat(val word: Int) { NORMAL(R.string.heat_normal), WARM(R.string.heat_warm), HOT(R.string.heat_hot) }

/** What makes a device slower for a time. */
data class Power(val heat: Heat, val isSaving: Boolean)

/**
 * All answers of one benchmark, in the order of their turns.
 *
 * @property power before and after them; empty if the system does not report it.
 * @property peakBytes the app's peak memory so far; null if the system does not report it.
 */
data class Measurement(
    val bundle: String,
    val threads: Int,
    val plain: List<Measured>,
    val speculative: List<Measured>,
    val power: List<Power> = emptyList(),
    val peakBytes: Long? = null,
) {
    /** Lossless: drafting changes no word. */
    val equal: Boolean get() = (plain + speculative).all { it.text == plain.first().text }
}

/** The benchmark screen. [done] of [total] answers are written while it runs; [total] is 0 where it does not. */
data class BenchmarkState(
    val done: Int = 0,
    val total: Int = 0,
    val result: Measurement? = null,
    val message: Sentence? = null,
) {
    val running: Boolean get() = total > 0
}

/** Generates the same answer with and without speculation, alternating, so that heat affects both alike. */
class BenchmarkModel(
    private val chat: ChatModel,
    private val settings: SettingsStore,
    private val scope: CoroutineScope,
    private val peakBytes: () -> Long? = { null },
    private val power: () -> Power? = { null },
) {
    private val current = MutableStateFlow(BenchmarkState())
    val state: StateFlow<BenchmarkState> = current.asStateFlow()
    private var job: Job? = null
    @Volatile private var cancelled = R.string.benchmark_cancelled

    @OptIn(DelicateCoroutinesApi::class)
    fun run(prompt: String, maxNewTokens: Int) {
        if (current.value.running) return
        if (settings.settings.value.remembersAnswers) { // each answer would be drafted from the one before, and kept
            current.value = BenchmarkState(message = words(R.string.benchmark_remembers))
            return
        }
        current.value = BenchmarkState(total = 2 * REPETITIONS + 1)
        cancelled = R.string.benchmark_cancelled
        job = scope.launch(start = CoroutineStart.ATOMIC) { // runs also if it is cancelled before it starts
            current.value = try {
                ensureActive()
                val bundle = settings.bundle.orEmpty()
                val result = chat.lend { model -> measure(bundle, model, prompt, maxNewTokens) }
                BenchmarkState(result = result, message = if (result == null) words(R.string.benchmark_no_bundle) else null)
            } catch (_: CancellationException) {
                BenchmarkState(message = words(cancelled))
            } catch (error: Throwable) {
                BenchmarkState(message = sentenceOf(error))
            }
        }
    }

    /** Ends it at the next token. */
    fun cancel() {
        job?.cancel()
    }

    /** The app is not on the screen: the system slows what is not, so figures from then on would be wrong. */
    fun leave() {
        cancelled = R.string.benchmark_left
        cancel()
    }

    private suspend fun measure(bundle: String, model: OpenModel, prompt: String, maxNewTokens: Int): Measurement {
        val config = GenerationConfig(temperature = 0.0, repetitionPenalty = 1.0, maxNewTokens = maxNewTokens)
        val plain = mutableListOf<Measured>()
        val speculative = mutableListOf<Measured>()
        suspend fun answer(drafted: Boolean): Measured = model.session().use { session ->
            val text = StringBuilder()
            session.send(prompt, config.copy(enableSpeculativeDecoding = drafted)).collect { text.append(it.text) }
            current.update { it.copy(done = it.done + 1) }
            Measured(text.toString(), session.statistics ?: error("an answer without statistics"))
        }
        val before = power()
        answer(drafted = true) // the first one measures what passes cost, and reads the weights
        for (repetition in 0 until REPETITIONS) {
            val order = if (repetition % 2 == 0) listOf(false, true) else listOf(true, false)
            for (drafted in order) (if (drafted) speculative else plain) += answer(drafted)
        }
        return Measurement(bundle, model.threads, plain, speculative, listOfNotNull(before, power()), peakBytes())
    }

    companion object {
        const val REPETITIONS = 3
    }
}
