package dev.streamfuse.app

import android.content.Context
import android.util.AttributeSet
import android.view.LayoutInflater
import android.view.View
import android.view.ViewGroup
import android.widget.BaseAdapter
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.ListView
import android.widget.PopupMenu
import android.widget.TextView
import dev.streamfuse.app.model.ChatEntry
import dev.streamfuse.app.model.ChatListModel
import dev.streamfuse.app.model.ChatListState

/** The saved chats: a screen of its own on a phone, beside the conversation on a tablet. */
class ChatListView(context: Context, attributes: AttributeSet?) : LinearLayout(context, attributes) {
    private var state = ChatListState()
    private var model: ChatListModel? = null
    private var rename: (String, String) -> Unit = { _, _ -> }
    private var onOpen: () -> Unit = {}
    private val rows = Rows()

    init {
        orientation = VERTICAL
        LayoutInflater.from(context).inflate(R.layout.chat_list, this)
        child<ListView>(R.id.chat_list).adapter = rows
    }

    /**
     * @param rename asks for another title of the chat with this id and title.
     * @param onOpen called after a chat was chosen.
     */
    fun use(model: ChatListModel, rename: (String, String) -> Unit, onOpen: () -> Unit) {
        this.model = model
        this.rename = rename
        this.onOpen = onOpen
        val search = child<EditText>(R.id.search)
        search.setText(model.state.value.query)
        search.onTyped(model::search)
        child<View>(R.id.undo).setOnClickListener { model.undo() }
    }

    fun show(state: ChatListState) {
        val before = this.state
        this.state = state
        if (state.chats != before.chats || state.open != before.open) rows.notifyDataSetChanged()
        child<TextView>(R.id.no_chats).run {
            visibility = if (state.chats.isEmpty()) VISIBLE else GONE
            setText(if (state.query.isBlank()) R.string.no_chats else R.string.nothing_found)
        }
        child<View>(R.id.undo_bar).visibility = if (state.deleted == null) GONE else VISIBLE
        state.deleted?.let { child<TextView>(R.id.deleted).text = context.textOf(R.string.deleted, it.title) }
    }

    private fun menuOf(chat: ChatEntry, button: View) = PopupMenu(context, button).run {
        inflate(R.menu.saved_chat)
        setOnMenuItemClickListener {
            if (it.itemId == R.id.rename) rename(chat.id, chat.title) else model?.delete(chat.id)
            true
        }
        show()
    }

    private fun <V : View> child(id: Int): V = findViewById<V>(id)!!

    private inner class Rows : BaseAdapter() {
        override fun getCount() = state.chats.size

        override fun getItem(position: Int) = state.chats[position]

        override fun getItemId(position: Int) = position.toLong()

        override fun getView(position: Int, old: View?, parent: ViewGroup): View {
            val row = old ?: LayoutInflater.from(context).inflate(R.layout.chat_row, parent, false)!!
            val chat = getItem(position)
            row.isActivated = chat.id == state.open
            row.findViewById<TextView>(R.id.chat_title)!!.text = chat.title
            val facts = context.textOf(R.string.chat_row, context.since(chat.changedMs), chat.bundle)
            row.findViewById<TextView>(R.id.chat_facts)!!.text = facts
            row.contentDescription = context.textOf(R.string.chat_row, chat.title, facts)
            row.setOnClickListener {
                model?.open(chat.id)
                onOpen()
            }
            row.findViewById<View>(R.id.chat_more)!!.run {
                contentDescription = context.textOf(R.string.more_named, chat.title)
                setOnClickListener { menuOf(chat, this) }
            }
            return row
        }
    }
}
