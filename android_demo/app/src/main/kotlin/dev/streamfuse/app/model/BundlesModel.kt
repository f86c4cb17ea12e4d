package dev.streamfuse.app.model

import dev.streamfuse.app.R
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch

/** The bundles screen. [importing] is null where nothing comes in; [message] is what happened last. */
data class BundlesState(
    val installed: List<Installed> = emptyList(),
    val chosen: String? = null,
    val importing: ImportProgress? = null,
    val message: Sentence? = null,
)

/** Chooses, brings in and deletes bundles. An import goes on while other screens are shown. Making it reads the disk. */
class BundlesModel(
    private val bundles: BundleFolder,
    private val settings: SettingsStore,
    private val chat: ChatModel,
    private val scope: CoroutineScope,
) {
    private val current = MutableStateFlow(BundlesState(bundles.list(), settings.bundle))
    val state: StateFlow<BundlesState> = current.asStateFlow()
    private var importing: Job? = null

    init {
        scope.launch { bundles.sweep() }
    }

    fun choose(name: String): Job = scope.launch {
        chat.open(name).join()
        refresh()
    }

    /** Copies a bundle and, where it is sound, uses it. One at a time. [open] may ask a slow file provider. */
    fun import(open: () -> ImportSource) {
        if (current.value.importing != null) return
        current.update { it.copy(importing = ImportProgress(ImportStep.COPYING, 0, null), message = null) }
        importing = scope.launch {
            val message = try {
                val name = bundles.import(open()) { progress -> current.update { it.copy(importing = progress) } }
                chat.open(name).join()
                words(R.string.imported, name)
            } catch (_: CancellationException) {
                words(R.string.import_cancelled)
            } catch (error: Throwable) {
                sentenceOf(error)
            }
            current.update { it.copy(importing = null, message = message) }
            refresh()
        }
    }

    fun cancel() {
        importing?.cancel()
    }

    fun delete(name: String): Job = scope.launch {
        if (name == settings.bundle) chat.open(null).join() // its files are in use
        val message = try {
            bundles.delete(name)
            chat.forget(name)
            words(R.string.deleted, name)
        } catch (error: AppException) {
            error.sentence
        }
        current.update { it.copy(message = message) }
        refresh()
    }

    private fun refresh() = current.update { it.copy(installed = bundles.list(), chosen = settings.bundle) }
}
