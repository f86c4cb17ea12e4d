package dev.streamfuse.app.model

import dev.streamfuse.SelfTest
import dev.streamfuse.app.R
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.launch

/** The device check. [lines] is the result, or why the check could not run; empty before the first check. */
data class DeviceCheckState(val isRunning: Boolean = false, val lines: List<Sentence> = emptyList())

/** Runs the self-test of the chosen bundle, which shows whether this device computes what the exporter recorded. */
class DeviceCheck(private val chat: ChatModel, private val scope: CoroutineScope) {
    private val current = MutableStateFlow(DeviceCheckState())
    val state: StateFlow<DeviceCheckState> = current.asStateFlow()

    fun run() {
        if (current.value.isRunning) return
        current.value = DeviceCheckState(isRunning = true)
        scope.launch {
            val lines = try {
                chat.lend { it.selfTest() }?.let(::linesOf) ?: listOf(words(R.string.benchmark_no_bundle))
            } catch (error: CancellationException) {
                throw error
            } catch (error: Throwable) {
                listOf(sentenceOf(error))
            }
            current.value = DeviceCheckState(lines = lines)
        }
    }

    private fun linesOf(found: SelfTest): List<Sentence> {
        val result = when {
            !found.passed -> words(R.string.check_failed)
            found.equal -> words(R.string.check_equal, found.methods.keys.joinToString())
            else -> words(R.string.check_passed)
        }
        return listOf(result) + found.differences.map(Sentence::Literal)
    }
}
