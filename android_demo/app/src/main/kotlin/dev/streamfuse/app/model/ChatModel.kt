package dev.streamfuse.app.model

import dev.streamfuse.ContextPolicy
import dev.streamfuse.GenerationConfig
import dev.streamfuse.Options
import dev.streamfuse.app.R
import java.io.File
import java.util.concurrent.atomic.AtomicInteger
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Deferred
import kotlinx.coroutines.Job
import kotlinx.coroutines.async
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.yield

/**
 * The open chat, and the one model that the app has open. It lives as long as the process, so an answer goes on while the
 * screen turns. Its functions return at once and may be called from the main thread; what they start runs in [scope],
 * one after another, in the order of the calls. A chat belongs to its bundle: opening one loads the other. Nothing is
 * loaded before [wake]: a process that only downloads needs no model.
 *
 * @property folderOf where the bundle of a name lies.
 * @property memory the folder with the answers that models keep where the user wants that, a file for each bundle.
 * @property scope not the main thread's: files are read and written in it.
 * @property clock nanoseconds.
 */
class ChatModel(
    private val engine: Engine,
    private val folderOf: (String) -> File,
    private val memory: File,
    private val settings: SettingsStore,
    private val saved: SavedChats,
    private val scope: CoroutineScope,
    private val clock: () -> Long = System::nanoTime,
) {
    private val current = MutableStateFlow(ChatState())
    val state: StateFlow<ChatState> = current.asStateFlow()

    private val order = Mutex()
    private var model: OpenModel? = null
    @Volatile private var loaded: LoadOptions? = null // what the model is opened with; null: none is open

    @Volatile private var chat: OpenChat? = null

    /** The number of unfinished calls that open another chat or take the model. No question is asked until it is 0. */
    private val changes = AtomicInteger()

    /** Held while a call checks the state and is queued, so that no other call intervenes. */
    private val calls = Any()

    /** Why the answer that is being written shall end; null: it shall not. */
    @Volatile private var stopping: String? = null

    /** Whether the next [wake] loads the model: at first, and after [rest]. */
    private var resting = true
    private val disk = Any() // around the record of the turns, so that none replaces a later one

    /** Uses another bundle, in the chat that was last used with it; null: none. */
    fun open(bundle: String?): Job = change(if (bundle == current.value.bundle) null else End.STOPPED) {
        if (bundle == settings.bundle && model != null) return@change
        save()
        choose(bundle, null)
        if (!resting) load(bundle) // else [wake] does
    }

    /** Opens a saved chat, with the bundle that it belongs to. */
    fun openChat(id: String): Job = change(if (id == current.value.chat) null else End.STOPPED) {
        val bundle = saved.read(id)?.bundle ?: return@change
        if (id == chat?.id) return@change
        save()
        val open = model
        if (bundle == settings.bundle && open != null) {
            show(open, bundle, id)
        } else {
            choose(bundle, id)
            load(bundle, id)
        }
    }

    /** Begins a new chat, with the system prompt of the settings; the one that was open is saved. */
    fun newChat(): Job = change(End.STOPPED) {
        save()
        show(model ?: return@change, current.value.bundle!!, null)
    }

    /** Takes a chat out of the list, where it can be restored for a while; a new one takes the place of the open one. */
    fun delete(id: String): Job = change(if (id == chat?.id) End.STOPPED else null) {
        val isOpen = id == chat?.id
        if (!isOpen && saved.entries.value.none { it.id == id }) return@change // deleted while this waited
        if (isOpen) save()
        saved.sweep()
        saved.delete(id)
        if (id == settings.chat) settings.chat = null
        if (isOpen) show(model!!, current.value.bundle!!, null)
    }

    /** Gives a chat a title; an empty one is that of the first question again. */
    fun rename(id: String, title: String): Job = scope.launch { written { saved.rename(id, title) } }

    /** Deletes what the app has of a bundle that is no longer there. */
    fun forget(bundle: String): Job = later {
        saved.clear(bundle)
        File(memory, bundle).delete()
    }

    /** Erases the answers that the models have kept, on disk and in memory; what to tell the user once that is done. */
    fun forgetAnswers(): Deferred<Sentence> = scope.async(start = CoroutineStart.UNDISPATCHED) {
        inOrder {
            val open = model.takeIf { loaded?.remembersAnswers == true }
            val error = runCatching { open?.forget() }.exceptionOrNull()
            // The open model has its file open, and erases what is in it.
            val kept = if (open != null) current.value.bundle else null
            memory.listFiles { file -> file.name != kept }?.forEach { it.delete() }
            if (error == null) words(R.string.erased) else sentenceOf(error)
        }
    }

    /**
     * Loads the model again where that is needed for what was changed; the chat goes on. A model that is being loaded or is
     * lent is loaded again after that.
     */
    fun applySettings(): Job? {
        if (!needsLoading) return null
        return change(End.STOPPED) {
            if (!needsLoading) return@change // it is unloaded, or an earlier call has loaded it again
            save()
            load(settings.bundle, chat?.id)
        }
    }

    /** Whether a model is open with other settings than those of now. */
    private val needsLoading get() = loaded.let { it != null && it != settings.settings.value.loading }

    /** Asks unless the text is empty or the model is busy. Returns whether it asked. */
    fun send(text: String): Boolean = ask(text, current.value.turns, settings.settings.value.config())

    /** Asks the question before the last answer again. An answer that had come to its end is replaced by another one. */
    fun retry() {
        val turns = current.value.turns
        val (question, answer) = turns.takeLast(2).takeIf { it.size == 2 } ?: return
        val chosen = settings.settings.value.config()
        val config = if (answer.isWhole) chosen.another(current.value.defaults, turns.size + clock()) else chosen
        ask(question.text, turns.dropLast(2), config)
    }

    /** Asks [text] as [send] does, in place of the question at [index]; what followed that one is dropped. */
    fun edit(index: Int, text: String): Boolean =
        ask(text, current.value.turns.take(index), settings.settings.value.config())

    private fun ask(text: String, kept: List<Turn>, config: GenerationConfig): Boolean = synchronized(calls) {
        val asked = text.trim()
        if (asked.isEmpty() || current.value.phase != Phase.READY || changes.get() > 0) return false
        stopping = null
        current.update { it.asking(asked, kept) }
        later { write(asked, config) }
        return true
    }

    /** Ends the answer at its next token. */
    fun stop() = stop(End.STOPPED)

    /** Writes the words that are there, also in the middle of an answer, which goes on. */
    fun keep(): Job = scope.launch { synchronized(disk) { if (current.value.phase == Phase.WRITING) keepTurns() } }

    /** The user has left the app: the answer ends here, and the chat is saved before the process may be killed. */
    fun leave(): Job = later(End.LEFT) { save() }

    /** [leave], and the memory is given back until [wake]. */
    fun rest(): Job = change(End.LEFT) {
        if (model == null) return@change
        save()
        unload()
        resting = true
        current.update { it.copy(phase = Phase.LOADING) }
    }

    /** A screen is shown: if the model is not loaded, loads it and opens the chat that was open. */
    fun wake(): Job = later {
        if (!resting) return@later
        val bundle = settings.bundle
        val left = settings.chat
        if (left == null || saved.read(left).let { it != null && it.bundle != bundle }) load(bundle) else load(bundle, left)
    }

    /** Lends the model, whose own answer ends; null where none is open. */
    suspend fun <T> lend(use: suspend (OpenModel) -> T): T? {
        synchronized(calls) { changes.incrementAndGet() }
        stop()
        return try {
            order.withLock {
                val open = model ?: return@withLock null
                current.update { it.copy(phase = Phase.LENT) }
                try {
                    use(open)
                } finally {
                    current.update { it.copy(phase = Phase.READY) }
                }
            }
        } finally {
            changes.decrementAndGet()
        }
    }

    /** The input field has the unsent text again: removes it from the state and the saved chat. */
    fun takeUnsent(): Job {
        val id = current.value.chat
        current.update { it.copy(unsent = null) }
        return scope.launch { synchronized(disk) { if (id != null) written { saved.takeUnsent(id) } } }
    }

    /** Gives the memory back. */
    suspend fun close() {
        stop()
        order.withLock { unload() }
    }

    private fun stop(why: String) {
        if (stopping == null) stopping = why
        chat?.session?.stop()
    }

    /** [later], for work that opens another chat or unloads the model. */
    private fun change(stop: String?, work: suspend () -> Unit): Job = synchronized(calls) {
        changes.incrementAndGet()
        later(stop, work).apply { invokeOnCompletion { changes.decrementAndGet() } }
    }

    /** Runs [work] after what is under way; [stop]: the answer that is being written shall end for it. */
    private fun later(stop: String? = null, work: suspend () -> Unit): Job {
        if (stop != null) stop(stop)
        return scope.launch(start = CoroutineStart.UNDISPATCHED) {
            inOrder {
                try {
                    work()
                } catch (error: CancellationException) {
                    throw error
                } catch (error: Throwable) {
                    fail(error)
                }
            }
        }
    }

    /** Runs [work] after what is under way. Coroutines that start undispatched wait in the order of a thread's calls. */
    private suspend fun <T> inOrder(work: suspend () -> T): T = order.withLock {
        yield() // to a thread of the scope: the caller's may be the main thread
        work()
    }

    /** Shows an error. Where it has left no chat open, the bundle can be chosen again. */
    private fun fail(error: Throwable) {
        if (chat != null) return current.update { it.copy(error = sentenceOf(error)) }
        unload()
        current.update { ChatState(Phase.FAILED, it.bundle, error = sentenceOf(error)) }
    }

    /** [chat]: the one to open, also by the next process if this one ends before; null: the one used last. */
    private fun choose(bundle: String?, chat: String?) {
        settings.bundle = bundle
        settings.chat = chat
        settings.flush()
    }

    private suspend fun load(bundle: String?, id: String? = bundle?.let(saved::latest)) {
        resting = false
        unload()
        if (bundle == null) {
            current.value = ChatState(Phase.NO_BUNDLE)
            return
        }
        current.value = ChatState(Phase.LOADING, bundle, id)
        val chosen = settings.settings.value.loading.also { loaded = it }
        val answers = File(memory, bundle).takeIf { chosen.remembersAnswers }
        val opened = engine.open(
            folderOf(bundle),
            Options(chosen.threads, memoryFile = answers, checkHashes = false),
            if (chosen.dropsOldest) ContextPolicy.DROP_OLDEST else ContextPolicy.FAIL,
        )
        model = opened
        show(opened, bundle, id)
    }

    /** Opens a chat of the loaded bundle; null, or one that is not there: a new one. */
    private fun show(open: OpenModel, bundle: String, id: String?) {
        chat?.close()
        chat = null
        val record = id?.let(saved::read)
        val opened = if (record == null) {
            OpenChat.begin(open, saved, bundle, settings.settings.value.systemPrompt)
        } else {
            OpenChat.open(open, saved, id, record)
        }
        chat = opened
        settings.chat = opened.id
        current.value = ChatState(
            Phase.READY, bundle, opened.id, open.canChat, open.defaults, record?.turns.orEmpty(), unsent = record?.unsent,
        )
    }

    private fun unload() {
        chat?.close()
        chat = null
        model?.close()
        model = null
        loaded = null
    }

    private suspend fun write(asked: String, config: GenerationConfig) {
        val open = chat ?: return
        val asking = current.value
        val kept = asking.turns.dropLast(2) // without the new question and its answer
        val before = kept + asking.replaced
        val isRewound = asking.replaced.isNotEmpty() // by an edit or a retry
        current.answer(clock, asked) { add ->
            if (isRewound) open.rewind(kept)
            open.session.generate(asked, config, { stopping }, add)
        }
        if (isRewound && current.value.turns == before) { // no new answer, so the earlier turns are kept
            chat = null // none is open where this fails
            open.rewind(before)
            chat = open
        }
        open.isUnsaved = true
        keepTurns()
    }

    private fun keepTurns() = keep { chat, state -> chat.keep(state.turns, state.unsent) }

    private fun save() {
        if (chat?.isUnsaved == true) keep { chat, state -> chat.save(state.turns, state.unsent) }
    }

    /** In the middle of an answer the record is that of a process that ends now. */
    private fun keep(write: (OpenChat, ChatState) -> Unit) = synchronized(disk) {
        val state = current.value.let { if (it.phase == Phase.WRITING) it.ended(End.LEFT, null) else it }
        val open = chat ?: return
        written { write(open, state) }
    }

    /** Shows an error if [write] fails, for example on a full disk. */
    private fun written(write: () -> Unit) = try {
        write()
    } catch (error: Exception) {
        current.update { it.copy(error = words(R.string.error_not_saved, error.message.orEmpty())) }
    }
}
