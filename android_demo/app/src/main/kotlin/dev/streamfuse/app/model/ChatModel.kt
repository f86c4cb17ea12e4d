package dev.streamfuse.app.model

import dev.streamfuse.Role
import dev.streamfuse.Source
import dev.streamfuse.app.R
import java.io.File
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
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
 * one after another.
 *
 * @property folderOf where the bundle of a name lies.
 * @property clock nanoseconds.
 */
class ChatModel(
    private val engine: Engine,
    private val folderOf: (String) -> File,
    private val settings: SettingsStore,
    private val saved: SavedChat,
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

    init {
        later { load(settings.bundle) }
    }

    /** Uses another bundle, in a new chat; null: none. */
    fun open(bundle: String?): Job = later(End.STOPPED) {
        if (bundle == settings.bundle && model != null) return@later
        saved.clear()
        settings.bundle = bundle
        load(bundle)
    }

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
        saved.clear()
        session?.close()
        begin(open, settings.settings.value.systemPrompt, emptyList())
        current.update { it.copy(turns = emptyList(), live = null, error = null) }
    }

    /** The user has left the app: the answer ends here, and the chat is saved before the process may be killed. */
    fun leave(): Job = later(End.LEFT) { save() }

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
            val record = saved.read()?.takeIf { it.bundle == bundle }
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
        val cache = saved.cacheOf(record)
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
        val meter = Meter(clock())
        try {
            open.send(asked, settings.settings.value.config()).collect { piece ->
                val live = meter.count(piece, clock())
                current.update { it.copy(turns = it.turns.dropLast(1) + (it.turns.last() + piece), live = live) }
                if (stopping != null) open.stop() // also where it was asked before the first token
            }
            val statistics = open.statistics
            val end = statistics?.finishReason.orEmpty()
            finish(if (end == End.STOPPED) stopping ?: end else end, statistics?.let { Live.of(it) })
        } catch (error: CancellationException) {
            throw error
        } catch (error: Throwable) {
            finish(End.FAILED, current.value.live, sentenceOf(error), asked)
        }
        unsaved = true
        keepTurns()
    }

    /** The answer counts as far as it was delivered; a question without any answer was never asked. */
    private fun finish(end: String, live: Live?, error: Sentence? = null, asked: String? = null) = current.update {
        val answered = it.turns.last().runs.isNotEmpty() || end != End.FAILED && end != End.STOPPED && end != End.LEFT
        it.copy(
            phase = Phase.READY,
            turns = if (answered) it.turns.dropLast(1) + it.turns.last().copy(end = end) else it.turns.dropLast(2),
            live = live,
            error = error,
            unsent = if (answered) it.unsent else asked ?: it.turns[it.turns.size - 2].text,
        )
    }

    private fun keepTurns() = keep { saved.write(it) }

    private fun save() {
        val open = session ?: return
        if (!unsaved) return
        keep { saved.write(it, open::save) }
        unsaved = false
    }

    private fun keep(write: (ChatRecord) -> Unit) {
        val bundle = settings.bundle ?: return
        try {
            write(ChatRecord(bundle, system, current.value.turns, current.value.unsent))
        } catch (error: Exception) {
            current.update { it.copy(error = words(R.string.error_not_saved, error.message.orEmpty())) }
        }
    }
}
