package dev.streamfuse.app.model

import dev.streamfuse.BundleProgress
import dev.streamfuse.BundleSource
import dev.streamfuse.BundleStore
import dev.streamfuse.CatalogEntry
import dev.streamfuse.InstalledBundle
import dev.streamfuse.StreamFuseException
import dev.streamfuse.app.R
import java.util.concurrent.ConcurrentHashMap
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.DelicateCoroutinesApi
import kotlinx.coroutines.Job
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext

/** Where a published bundle is on its way to this device. */
sealed interface OfferState {
    data object Available : OfferState

    /** This device cannot run it. */
    data class Unsupported(val reason: String) : OfferState

    data class Downloading(val doneBytes: Long) : OfferState

    data object Checking : OfferState

    /** Interrupted; it goes on from here. */
    data class Paused(val doneBytes: Long) : OfferState

    data object Installed : OfferState
}

/** A published bundle. [catalog] is the address that it is from, and [error] why its last download ended. */
data class Offer(val entry: CatalogEntry, val state: OfferState, val catalog: String, val error: Sentence? = null)

/**
 * The bundles screen. [installed] is null until the disk is read, [importing] where nothing comes in; [message] is what
 * happened last. [catalog] is the address that was asked last, and [asking] whether the server is being asked. [offers]
 * are those of that catalogue, and what is being downloaded from another one.
 */
data class BundlesState(
    val installed: List<InstalledBundle>? = null,
    val chosen: String? = null,
    val importing: BundleProgress? = null,
    val message: Sentence? = null,
    val catalog: String = "",
    val asking: Boolean = false,
    val offers: List<Offer> = emptyList(),
)

/**
 * Chooses, downloads, brings in and deletes bundles. What comes in goes on while other screens are shown.
 *
 * @param onDownload called when the user begins a download of an entry of the catalogue at this address, to keep the
 *   process running until it ends.
 * @param onPause called when the user ends or discards one.
 */
class BundlesModel(
    private val store: BundleStore,
    private val engine: Engine,
    private val settings: SettingsStore,
    private val chat: ChatModel,
    private val scope: CoroutineScope,
    private val onDownload: (entry: CatalogEntry, catalog: String) -> Unit = { _, _ -> },
    private val onPause: (CatalogEntry) -> Unit = {},
) {
    private val current = MutableStateFlow(BundlesState(chosen = settings.bundle, catalog = settings.catalog))
    val state: StateFlow<BundlesState> = current.asStateFlow()
    private var importing: Job? = null
    private val downloads = ConcurrentHashMap<String, Job>()

    /** How far the downloads are that run, by the ids of their entries. */
    private val running = ConcurrentHashMap<String, OfferState>()

    /** The entries whose last download failed temporarily, by their ids. */
    private val interrupted = ConcurrentHashMap.newKeySet<String>()

    private val refreshing = Mutex() // so that the last one to look at the disk is the last one to be shown

    init {
        scope.launch {
            refresh()
            store.sweep()
        }
    }

    fun choose(name: String): Job = scope.launch {
        chat.open(name).join()
        refresh()
    }

    /** Asks a publisher what there is. */
    fun ask(address: String): Job? {
        if (current.value.asking) return null
        val catalog = address.trim()
        settings.catalog = catalog
        current.update { it.copy(catalog = catalog, asking = true, message = null) }
        return scope.launch {
            val message = try {
                val entries = store.catalog(catalog).entries
                current.update { it.copy(offers = offersOf(entries, catalog, it.offers)) }
                refresh()
                if (entries.isEmpty()) words(R.string.catalog_empty) else null
            } catch (error: Exception) {
                sentenceOf(error)
            }
            current.update { it.copy(asking = false, message = message) }
        }
    }

    /** What a catalogue has, and after it those of [before] that are being downloaded from another one. */
    private fun offersOf(entries: List<CatalogEntry>, catalog: String, before: List<Offer>): List<Offer> {
        val others = before.filter { offer ->
            running.containsKey(offer.entry.id) && entries.none { it.id == offer.entry.id }
        }
        return entries.map { Offer(it, OfferState.Available, catalog) } + others
    }

    /** Downloads a published bundle, or goes on with it. Where no bundle is in use, it is used. */
    fun download(entry: CatalogEntry) {
        val catalog = current.value.offers.find { it.entry.id == entry.id }?.catalog ?: settings.catalog
        if (begin(entry)) onDownload(entry, catalog)
    }

    /**
     * Waits for the end of the download of the entry with this id. If the system has stopped it or ended the process, it
     * is started again from the catalogue at this address. Returns false after a temporary failure, which is worth a
     * retry; true if the bundle is installed, or the download was paused by the user or refused.
     */
    suspend fun finish(id: String, catalog: String): Boolean {
        downloads[id]?.let { if (!it.isActive) it.join() } // a cancelled download may still be writing
        if (running[id] == null) {
            if (store.list().any { it.id == id }) return true
            val entries = try {
                store.catalog(catalog).entries
            } catch (error: CancellationException) {
                throw error
            } catch (error: Exception) {
                current.update { it.copy(message = sentenceOf(error)) }
                return !mayPass(error)
            }
            val entry = entries.find { it.id == id } ?: return true
            current.update { now ->
                val isShown = now.offers.any { it.entry.id == id }
                if (isShown) now else now.copy(offers = now.offers + Offer(entry, OfferState.Available, catalog))
            }
            begin(entry)
        }
        downloads[id]?.join()
        return id !in interrupted
    }

    private fun mayPass(error: Throwable) = error is StreamFuseException && error.isTemporary

    /** Starts a download. False if it already runs. */
    @OptIn(DelicateCoroutinesApi::class)
    private fun begin(entry: CatalogEntry): Boolean {
        if (running.putIfAbsent(entry.id, OfferState.Downloading(0)) != null) return false
        interrupted -= entry.id
        show(entry, OfferState.Downloading(0))
        // Atomic: the end below also runs if the download is cancelled before its first instruction.
        downloads[entry.id] = scope.launch(start = CoroutineStart.ATOMIC) {
            val error = try {
                store.download(entry).collect { progress ->
                    when (progress) {
                        is BundleProgress.Receiving -> step(entry, OfferState.Downloading(progress.doneBytes))
                        is BundleProgress.Checking -> step(entry, OfferState.Checking)
                        is BundleProgress.Installed ->
                            if (settings.bundle == null) chat.open(progress.bundle.name).join()
                    }
                }
                null
            } catch (_: CancellationException) {
                null
            } catch (error: Throwable) {
                if (mayPass(error)) interrupted += entry.id
                sentenceOf(error)
            }
            withContext(NonCancellable) {
                running -= entry.id
                show(entry, OfferState.Available, error)
                refresh()
            }
        }
        return true
    }

    /** Ends a download; what has arrived is kept. */
    fun pause(entry: CatalogEntry) {
        pause(entry.id)
        onPause(entry)
    }

    /** The same for the entry with this id, when the system ends the download. */
    fun pause(id: String) {
        downloads[id]?.cancel()
    }

    /** Deletes what has arrived of a download; its job, which may begin again later, ends too. */
    fun discard(entry: CatalogEntry): Job = scope.launch {
        onPause(entry)
        downloads[entry.id]?.cancelAndJoin()
        val error = runCatching { store.discard(entry) }.exceptionOrNull()
        show(entry, OfferState.Available, error?.let(::sentenceOf))
        refresh()
    }

    /** Copies a bundle and, where it is sound, uses it. One at a time: null while one runs. [open] may ask a slow provider. */
    @OptIn(DelicateCoroutinesApi::class)
    fun import(open: () -> BundleSource): Job? {
        if (current.value.importing != null) return null
        current.update { it.copy(importing = BundleProgress.Receiving(0, null), message = null) }
        return scope.launch(start = CoroutineStart.ATOMIC) { // runs also if it is cancelled before it starts
            val message = try {
                var name = ""
                store.import(open).collect { progress ->
                    if (progress is BundleProgress.Installed) name = progress.bundle.name
                    else current.update { it.copy(importing = progress) }
                }
                chat.open(name).join()
                words(R.string.imported, name)
            } catch (_: CancellationException) {
                words(R.string.import_cancelled)
            } catch (error: Throwable) {
                sentenceOf(error)
            }
            withContext(NonCancellable) { refresh() }
            current.update { it.copy(importing = null, message = message) }
        }.also { importing = it }
    }

    fun cancel() {
        importing?.cancel()
    }

    fun delete(name: String): Job = scope.launch {
        if (name == settings.bundle) chat.open(null).join() // its files are in use
        val message = try {
            store.delete(name)
            chat.forget(name)
            words(R.string.deleted, name)
        } catch (error: Exception) {
            words(R.string.error_delete, name)
        }
        current.update { it.copy(message = message) }
        refresh()
    }

    private suspend fun stateOf(entry: CatalogEntry, installed: List<InstalledBundle>): OfferState {
        running[entry.id]?.let { return it }
        if (installed.any { it.id == entry.id }) return OfferState.Installed
        entry.unsupportedReason(engine.backends)?.let { return OfferState.Unsupported(it) }
        val here = store.receivedBytes(entry)
        return if (here > 0) OfferState.Paused(here) else OfferState.Available
    }

    private fun step(entry: CatalogEntry, state: OfferState) {
        running[entry.id] = state
        show(entry, state)
    }

    private fun show(entry: CatalogEntry, state: OfferState, error: Sentence? = null) = current.update { now ->
        now.copy(offers = now.offers.map { if (it.entry.id == entry.id) it.copy(state = state, error = error) else it })
    }

    /** Lists the installed bundles, and updates the states of the offers. */
    private suspend fun refresh() = refreshing.withLock {
        val installed = store.list()
        val states = current.value.offers.associate { it.entry to stateOf(it.entry, installed) }
        current.update { now ->
            // A download that has begun meanwhile is newer than the disk.
            val offers = now.offers.map { it.copy(state = running[it.entry.id] ?: states[it.entry] ?: it.state) }
            now.copy(installed = installed, chosen = settings.bundle, offers = offers)
        }
    }
}
