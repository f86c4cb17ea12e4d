package dev.streamfuse.app.model

import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.SharingStarted
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.combine
import kotlinx.coroutines.flow.distinctUntilChanged
import kotlinx.coroutines.flow.map
import kotlinx.coroutines.flow.stateIn
import kotlinx.coroutines.launch

/**
 * The list of chats.
 *
 * @property chats those that [query] is found in, the latest first.
 * @property open the id of the open chat.
 * @property deleted the chat that was deleted just now and can be restored.
 */
data class ChatListState(
    val chats: List<ChatEntry> = emptyList(),
    val query: String = "",
    val open: String? = null,
    val deleted: ChatEntry? = null,
)

/** Finds, opens, renames and deletes chats. */
class ChatListModel(private val saved: SavedChats, private val chat: ChatModel, private val scope: CoroutineScope) {
    private val query = MutableStateFlow("")
    private val deleted = MutableStateFlow<ChatEntry?>(null)
    private val open = chat.state.map { it.chat }.distinctUntilChanged()
    private var wasOpen = false
    @Volatile private var forgetting: Job? = null

    val state: StateFlow<ChatListState> = combine(saved.entries, query, open, deleted, ::listed)
        .stateIn(scope, SharingStarted.Eagerly, listed(saved.entries.value, "", null, null))

    init {
        scope.launch { saved.sweep() }
    }

    /** Lists the chats only that have these words in their title or their text. */
    fun search(words: String) {
        query.value = words
    }

    fun open(id: String): Job = chat.openChat(id)

    fun rename(id: String, title: String): Job = chat.rename(id, title)

    fun delete(id: String): Job = scope.launch {
        val entry = saved.entries.value.firstOrNull { it.id == id } ?: return@launch
        forgetting?.cancelAndJoin() // so that its sweep does not include this chat
        wasOpen = chat.state.value.chat == id
        chat.delete(id).join()
        offerUndo(entry)
    }

    @Synchronized
    private fun offerUndo(entry: ChatEntry) {
        forgetting?.cancel() // a concurrent deletion may have started one
        deleted.value = entry
        forgetting = scope.launch {
            delay(UNDO_MS)
            deleted.value = null
            saved.sweep()
        }
    }

    /** Brings the deleted chat back, and opens it where it was open. */
    fun undo(): Job = scope.launch {
        val entry = deleted.value ?: return@launch
        forgetting?.cancel()
        deleted.value = null
        saved.restore(entry.id)
        if (wasOpen) chat.openChat(entry.id)
    }

    private fun listed(all: List<ChatEntry>, query: String, open: String?, deleted: ChatEntry?): ChatListState {
        val words = query.trim().split(Regex("\\s+"))
        val found = all.filter { chat ->
            chat.text.isNotEmpty() && words.all { word ->
                chat.title.contains(word, ignoreCase = true) || chat.text.contains(word, ignoreCase = true)
            }
        }
        return ChatListState(found, query, open, deleted)
    }

    companion object {
        const val UNDO_MS = 10_000L
    }
}
