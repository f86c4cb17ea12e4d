package dev.streamfuse.app.model

import dev.streamfuse.Role
import dev.streamfuse.Source
import dev.streamfuse.app.R
import java.io.File
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.cancelChildren
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock

/**
 * The chat, and the one model that the app has open. It lives as long as the process, so an answer goes on while the
 * screen turns. Its functions return at once and may be called from the main thread; what they start runs in [scope],
 * one after another. Each bundle has a chat of its own, which is there again when the bundle is chosen again.
 *
 * @property folderOf where the bundle of a name lies.
 * @property scope not the main thread's: files are read and written in it.
 * @property clock nanoseconds.
 */
class ChatModel(
    private val engine: Engine,
    private val folderOf: (String) -> File,
    private val settings: SettingsStore,
    private val saved: SavedChats,
    private val scope: CoroutineScope,
    private val clock: () -> Long = System::nanoTime,
) {
    private val current = MutableStateFlow(ChatState())
    val state: StateFlow<ChatState> = current.asStateFlow()

    private val order = Mutex()
    private var model: OpenModel? = null
    private var system: String? = null
    private var loadedThreads: Int? = null

    @Volatile private var session: OpenSession? = null

    /** Why the answer that is being written shall end; null: it shall not. */
    @Volatile private var stopping: String? = null

    /** Whether the model's memory of the turns is newer than the file. */
    private var unsaved = false

    /** Whether the model was given back while the app is not on the screen. */
    @Volatile private var resting = false
    private val disk = Any() // around the record of the turns, so that none replaces a later one

    init {
        later { load(settings.bundle) }
    }

    /** Uses another bundle, in its own chat; null: none. */
    fun open(bundle: String?): Job = later(End.STOPPED) {
        if (bundle == settings.bundle && model != null) return@later
        save()
        settings.bundle = bundle
        settings.flush()
        load(bundle)
    }

    /** Deletes the chat of a bundle that is no longer there. */
    fun forget(bundle: String): Job = later { saved.of(bundle).clear() }

    /** Loads the model again where the number of threads was changed; the chat goes on. */
    fun applySettings(): Job? {
        val threads = settings.settings.value.threads
        if (threads == loadedThreads || current.value.phase !in setOf(Phase.READY, Phase.WRITING)) return null
        return later(End.STOPPED) {
            save()
            load(settings.bundle)
        }
    }

    /** Asks, unless the model is busy. */
    fun send(text: String) {
        val asked = text.trim()
        if (asked.isEmpty() || current.value.phase != Phase.READY) return
        stopping = null
        current.update {
            val question = Turn(Role.USER, listOf(Run(asked, Source.MODEL)))
            val answer = Turn(Role.ASSISTANT, emptyList())
            it.copy(phase = Phase.WRITING, turns = it.turns + question + answer, live = Live(), error = null)
        }
        later { write(asked) }
    }

    /** Ends the answer at its next token. */
    fun stop() = stop(End.STOPPED)

    /** Forgets the conversation; the next one has the system prompt of the settings. */
    fun newChat(): Job = later(End.STOPPED) {
        val open = model ?: return@later
        saved.of(current.value.bundle!!).clear()
        session?.close()
        begin(open, settings.settings.value.systemPrompt, emptyList())
        current.update { it.copy(turns = emptyList(), live = null, error = null) }
    }

    /** Writes the words that are there, also in the middle of an answer, which goes on. */
    fun keep(): Job = scope.launch { synchronized(disk) { if (current.value.phase == Phase.WRITING) keepTurns() } }

    /** The user has left the app: the answer ends here, and the chat is saved before the process may be killed. */
    fun leave(): Job = later(End.LEFT) { save() }

    /** [leave], and the memory is given back until [wake]. */
    fun rest(): Job = later(End.LEFT) {
        if (model == null) return@later
        save()
        unload()
        resting = true
        current.update { it.copy(phase = Phase.LOADING) }
    }

    /** A screen is shown again. */
    fun wake(): Job? = if (!resting) null else later {
        if (resting) load(settings.bundle)
    }

    /** Lends the model, whose own answer ends; null where none is open. */
    suspend fun <T> lend(use: suspend (OpenModel) -> T): T? {
        stop()
        return order.withLock {
            val open = model ?: return@withLock null
            current.update { it.copy(phase = Phase.LENT) }
            try {
                use(open)
            } finally {
                current.update { it.copy(phase = Phase.READY) }
            }
        }
    }

    /** The refused text is in the input field again. */
    fun takeUnsent() = current.update { it.copy(unsent = null) }

    /** Gives the memory back. */
    suspend fun close() {
        stop()
        order.withLock { unload() }
    }

    private fun stop(why: String) {
        if (stopping == null) stopping = why
        session?.stop()
    }

    /** Runs [work] after what is under way; [stop]: the answer that is being written shall end for it. */
    private fun later(stop: String? = null, work: suspend () -> Unit): Job {
        if (stop != null) stop(stop)
        return scope.launch { order.withLock { work() } }
    }

    private suspend fun load(bundle: String?) {
        resting = false
        unload()
        if (bundle == null) {
            current.value = ChatState(Phase.NO_BUNDLE)
            return
        }
        current.value = ChatState(Phase.LOADING, bundle)
        try {
            val chosen = settings.settings.value
            loadedThreads = chosen.threads
            val opened = engine.open(folderOf(bundle), chosen.threads)
            model = opened
            val record = saved.of(bundle).read()
            restore(opened, record ?: ChatRecord(bundle, chosen.systemPrompt, emptyList()))
            current.value =
                ChatState(Phase.READY, bundle, opened.canChat, record?.turns.orEmpty(), unsent = record?.unsent)
        } catch (error: CancellationException) {
            throw error
        } catch (error: Throwable) {
            unload()
            current.value = ChatState(Phase.FAILED, bundle, error = sentenceOf(error))
        }
    }

    private fun restore(open: OpenModel, record: ChatRecord) {
        val cache = saved.of(record.bundle).cacheOf(record)
        if (cache != null) {
            begin(open, record.system, emptyList())
            // A cache that cannot be read, of an older version or a full disk, is no loss: the turns are read again.
            if (runCatching { session!!.restore(cache) }.isSuccess) return
            session?.close()
        }
        begin(open, record.system, record.turns)
    }

    private fun begin(open: OpenModel, systemPrompt: String?, turns: List<Turn>) {
        system = systemPrompt?.ifBlank { null }
        session = open.session(system, turns.map { it.message() })
        unsaved = false
    }

    private fun unload() {
        session?.close()
        session = null
        model?.close()
        model = null
    }

    private suspend fun write(asked: String) {
        val open = session ?: return
        if (current.value.phase != Phase.WRITING) return // another bundle was loaded in between
        val answer = GrowingAnswer(Meter(clock()))
        try {
            coroutineScope {
                open.send(asked, settings.settings.value.config()).collect { piece ->
                    // Tokens come faster than a screen can be drawn, and each state costs a list of what was said.
                    if (answer.add(piece, clock())) {
                        launch {
                            delay(SHOW_MS)
                            current.update(answer::shownIn)
                        }
                    }
                    if (stopping != null) open.stop() // also where it was asked before the first token
                }
                coroutineContext.cancelChildren()
            }
            current.update(answer::shownIn)
            val statistics = open.statistics
            val end = statistics?.finishReason.orEmpty()
            finish(if (end == End.STOPPED) stopping ?: end else end, statistics?.let { Live.of(it) })
        } catch (error: CancellationException) {
            throw error
        } catch (error: Throwable) {
            current.update(answer::shownIn)
            finish(End.FAILED, current.value.live, sentenceOf(error), asked)
        }
        unsaved = true
        keepTurns()
    }

    private fun finish(end: String, live: Live?, error: Sentence? = null, asked: String? = null) = current.update {
        ended(it, end, asked).copy(phase = Phase.READY, live = live, error = error)
    }

    /** The answer counts as far as it was delivered; a question without any answer was never asked. */
    private fun ended(state: ChatState, end: String, asked: String? = null): ChatState {
        val turns = state.turns
        val answered = turns.last().runs.isNotEmpty() || end != End.FAILED && end != End.STOPPED && end != End.LEFT
        return state.copy(
            turns = if (answered) turns.dropLast(1) + turns.last().copy(end = end) else turns.dropLast(2),
            unsent = if (answered) state.unsent else asked ?: turns[turns.size - 2].text,
        )
    }

    private fun keepTurns() = keep { chat, record -> chat.write(record) }

    private fun save() {
        val open = session ?: return
        if (!unsaved) return
        keep { chat, record -> chat.write(record, open::save) }
        unsaved = false
    }

    /** In the middle of an answer the record is that of a process that ends now. */
    private fun keep(write: (SavedChat, ChatRecord) -> Unit) = synchronized(disk) {
        val state = current.value.let { if (it.phase == Phase.WRITING) ended(it, End.LEFT) else it }
        val bundle = state.bundle ?: return
        try {
            write(saved.of(bundle), ChatRecord(bundle, system, state.turns, state.unsent))
        } catch (error: Exception) {
            current.update { it.copy(error = words(R.string.error_not_saved, error.message.orEmpty())) }
        }
    }

    private companion object {
        const val SHOW_MS = 33L
    }
}
