package dev.streamfuse.app

import dev.streamfuse.app.model.ChatListState

/** The list of chats on a phone. */
class ChatsActivity : Screen<ChatListState>(R.layout.chats) {
    override val state get() = parts.chats.state

    override fun onReady() = view<ChatListView>(R.id.chats).use(parts.chats, ::askForTitle, ::finish)

    override fun show(state: ChatListState) = view<ChatListView>(R.id.chats).show(state)
}
