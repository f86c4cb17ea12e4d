package dev.streamfuse.app.model

import dev.streamfuse.ContextPolicy
import dev.streamfuse.ErrorCode
import dev.streamfuse.StreamFuseException
import dev.streamfuse.app.R
import java.io.File
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.Job
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.joinAll
import kotlinx.coroutines.test.TestScope
import kotlinx.coroutines.test.advanceTimeBy
import kotlinx.coroutines.test.runTest
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotEquals
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Test

/** Several chats: listed, found, opened, renamed, deleted; and questions that are asked again or anew. */
@OptIn(ExperimentalCoroutinesApi::class)
class ChatListTest : ChatTest() {
    private val saved by lazy { saved() }

    private fun TestScope.model(store: SettingsStore = store()) =
        ChatModel(engine, { File(folder.root, it) }, File(folder.root, "memory"), store, saved, scope()).also { it.wake() }

    private fun TestScope.list(chat: ChatModel) = ChatListModel(saved, chat, scope())

    private fun ChatListModel.titles() = state.value.chats.map { it.title }

    @Test fun `chats have the title of their first question, the latest first, and are there in the next process`() = runTest {
        use("demo")
        val chat = model()
        val list = list(chat)
        chat.ask("What is\n a cat?")
        assertEquals(listOf("What is a cat?"), list.titles())
        chat.newChat().join()
        assertEquals("an empty one is not listed", 1, list.titles().size)
        chat.ask("Tell me everything that is known about the dogs of the northern islands, please")
        assertEquals(listOf("Tell me everything that is known about the dogs of the …", "What is a cat?"), list.titles())
        val (_, cat) = list.state.value.chats
        list.open(cat.id).join()
        assertEquals("What is a cat?", chat.ready().turns[0].text.replace("\n ", " "))
        assertEquals(cat.id, list.state.value.open)
        assertEquals("the cache was used", 0, engine.histories)
        chat.ask("And a kitten?")
        assertEquals("What is a cat?", list.titles().first())
        assertEquals(list.state.value.chats, SavedChats(File(folder.root, "saved")).entries.value)
    }

    @Test fun `the next process opens the chat that was open, also an empty one`() = runTest {
        use("demo")
        val chat = model()
        val first = chat.ask("Hello")
        chat.newChat().join()
        chat.ask("Something else")
        chat.openChat(first.chat!!).join()
        advanceTimeBy(1000) // settings are written a moment later
        val again = model(store())
        assertEquals(first.chat, again.ready().chat)
        assertEquals(first.turns, again.ready().turns)
        again.newChat().join()
        advanceTimeBy(1000)
        assertEquals(emptyList<Turn>(), model(store()).ready().turns)
    }

    @Test fun `after a bundle that could not be opened, the next process opens the chat used last with it`() = runTest {
        use("demo")
        bundle("other")
        val chat = model()
        val turns = chat.ask("Hello").turns
        chat.open("other").join()
        val damage = File(bundle("demo"), "damaged").apply { writeText("") }
        chat.open("demo").join()
        assertEquals(Phase.FAILED, chat.state.value.phase)
        damage.delete()
        advanceTimeBy(1000)
        assertEquals(turns, model(store()).ready().turns)
    }

    @Test fun `only the latest chats keep the model's memory`() = runTest {
        use("demo")
        val chat = model()
        val list = list(chat)
        for (number in 0..SavedChats.MOST_CACHES) {
            chat.ask("Question $number")
            chat.newChat().join()
        }
        val caches = File(folder.root, "saved").walk().filter { it.extension == "cache" }
        assertEquals(SavedChats.MOST_CACHES, caches.count())
        assertEquals("the order stays", List(6) { "Question ${5 - it}" }, list.titles())
        assertEquals(list.state.value.chats, saved().entries.value)
        list.open(list.state.value.chats[4].id).join()
        assertEquals("the cache was used", 0, engine.histories)
        list.open(list.state.value.chats.last().id).join()
        assertEquals("its turns are read again", 1, engine.histories)
        assertEquals("Question 0", chat.ready().turns[0].text)
    }

    @Test fun `a chat of another bundle loads it`() = runTest {
        use("demo")
        bundle("other")
        val store = store()
        val chat = model(store)
        val turns = chat.ask("Hello").turns
        val id = chat.state.value.chat!!
        chat.open("other").join()
        chat.ask("Hello there")
        chat.openChat(id).join()
        assertEquals(turns, chat.ready().turns)
        assertEquals("demo", store.bundle)
        assertEquals(1, engine.open)
    }

    @Test fun `search finds words of titles and texts`() = runTest {
        use("demo")
        val chat = model()
        val list = list(chat)
        chat.ask("Cats and dogs")
        val word = chat.state.value.turns[1].text.substringBefore(' ')
        chat.newChat().join()
        chat.ask("Birds")
        list.search("  dogs CATS ")
        assertEquals(listOf("Cats and dogs"), list.titles())
        list.search(word)
        assertTrue("Cats and dogs" in list.titles())
        list.search("fish")
        assertEquals(emptyList<String>(), list.titles())
        list.search("")
        assertEquals(2, list.titles().size)
    }

    @Test fun `a title that the user gives stays, and an empty one is the question again`() = runTest {
        use("demo")
        val chat = model()
        val list = list(chat)
        chat.ask("Hello")
        val id = chat.state.value.chat!!
        list.rename(id, " Greetings ").join()
        chat.ask("And now?")
        assertEquals(listOf("Greetings"), list.titles())
        chat.leave().join()
        list.rename(id, "").join()
        assertEquals(listOf("Hello"), list.titles())
        chat.newChat().join()
        chat.openChat(id).join()
        assertEquals(4, chat.ready().turns.size)
        assertEquals("a new title keeps the cache", 0, engine.histories)
    }

    @Test fun `a title that cannot be saved is an error, and the old one stays`() = runTest {
        use("demo")
        val chat = model()
        val list = list(chat)
        chat.ask("Hello")
        val id = chat.state.value.chat!!
        chat.leave().join()
        File(folder.root, "saved/$id/chat.json.new").mkdirs()
        list.rename(id, "Greetings").join()
        assertEquals(R.string.error_not_saved, (chat.state.value.error as Sentence.Words).id)
        assertEquals(listOf("Hello"), list.titles())
    }

    @Test fun `a deleted chat can be restored for a while, where it was open it is open again`() = runTest {
        use("demo")
        val chat = model()
        val list = list(chat)
        val turns = chat.ask("Hello").turns
        val id = chat.state.value.chat!!
        list.delete(id).join()
        assertEquals(emptyList<Turn>(), chat.ready().turns)
        assertEquals(emptyList<String>(), list.titles())
        assertEquals("Hello", list.state.value.deleted?.title)
        list.undo().join()
        assertEquals(turns, chat.state.first { it.chat == id }.turns)
        assertEquals(listOf("Hello"), list.titles())
        assertNull(list.state.value.deleted)
        assertEquals("the cache was used", 0, engine.histories)
        chat.newChat().join()
        chat.ask("Another")
        list.delete(id).join()
        assertEquals("one that is not open leaves the other", 2, chat.ready().turns.size)
        fun deleted() = File(folder.root, "saved").list().orEmpty().filter { it.startsWith(".deleted") }
        assertEquals("it can come back", 1, deleted().size)
        advanceTimeBy(ChatListModel.UNDO_MS + 1)
        assertNull(list.state.value.deleted)
        assertEquals("its words are not kept longer", emptyList<String>(), deleted())
        list.undo().join()
        assertEquals(listOf("Another"), list.titles())
        list.delete(chat.state.value.chat!!).join()
        assertEquals("a process that ends now leaves it", 1, deleted().size)
        list(model()) // the next process
        assertEquals(emptyList<String>(), deleted())
    }

    @Test fun `a deleted chat can be restored for the whole while, also after two that were deleted during an answer`() = runTest {
        use("demo")
        val chat = model()
        val list = list(chat)
        val (one, two, three) = listOf("One", "Two", "Three").map { question ->
            chat.newChat().join()
            chat.ask(question)
            chat.state.value.chat!!
        }
        chat.newChat().join()
        engine.gate = Channel(Channel.UNLIMITED)
        chat.send("Four")
        val deletions = listOf(list.delete(one), list.delete(two), list.delete(two))
        repeat(20) { engine.gate!!.trySend(Unit) }
        deletions.joinAll()
        assertEquals(listOf("Four", "Three"), list.titles())
        list.undo().join()
        assertEquals("deleted twice", listOf("Four", "Three", "Two"), list.titles())
        list.delete(two).join()
        advanceTimeBy(ChatListModel.UNDO_MS - 1_000)
        list.delete(three).join()
        advanceTimeBy(ChatListModel.UNDO_MS - 1_000)
        assertEquals("Three", list.state.value.deleted?.title)
        list.undo().join()
        assertEquals(listOf("Four", "Three"), list.titles())
    }

    @Test fun `the last question asked again has another answer, one that was stopped has its own`() = runTest {
        use("demo")
        val chat = model()
        val first = chat.ask("Hello").turns
        chat.retry()
        val again = chat.ready().turns
        assertEquals(2, again.size)
        assertEquals(first[0], again[0])
        assertNotEquals("greedy decoding would repeat itself", first[1].text, again[1].text)
        engine.gate = Channel(Channel.UNLIMITED)
        chat.newChat().join()
        chat.send("Hello")
        repeat(3) { engine.gate!!.trySend(Unit) }
        chat.stop()
        engine.gate!!.trySend(Unit)
        chat.ready()
        engine.gate = null
        chat.retry()
        assertEquals(first[1].text, chat.ready().turns[1].text)
    }

    @Test fun `an edited question drops what followed, and the model knows nothing of it`() = runTest {
        use("demo")
        val chat = model()
        val expected = chat.ask("One").turns + chat.ask("Two").turns.drop(2)
        chat.newChat().join()
        chat.ask("One")
        chat.ask("Something else")
        chat.ask("And more")
        chat.edit(2, "Two")
        assertEquals(expected, chat.ready().turns)
        chat.leave().join()
        assertEquals("on disk too", expected, chat().ready().turns)
    }

    @Test fun `memory of answers and the policy of a full context load the bundle again, and the chat goes on`() = runTest {
        use("demo")
        val store = store()
        val chat = model(store)
        val turns = chat.ask("Hello").turns
        assertNull("off by default", engine.memory)
        assertEquals(ContextPolicy.FAIL, engine.policy)
        store.setRemembersAnswers(true)
        store.setDropsOldest(true)
        chat.applySettings()!!.join()
        assertEquals(turns, chat.ready().turns)
        assertEquals(ContextPolicy.DROP_OLDEST, engine.policy)
        val memory = engine.memory!!
        assertEquals("demo", memory.name)
        memory.parentFile!!.mkdirs()
        memory.writeText("tokens")
        File(memory.parentFile, "other").writeText("tokens")
        assertEquals(words(R.string.erased), chat.forgetAnswers().await())
        assertEquals(1, engine.forgotten)
        assertEquals("of all bundles but the open one", listOf("demo"), memory.parentFile!!.list().orEmpty().toList())
        assertEquals("", memory.readText())
        engine.forgetError = StreamFuseException(ErrorCode.BAD_FILE, "demo cannot be written.")
        File(memory.parentFile, "other").writeText("tokens")
        assertEquals(Sentence.Literal("demo cannot be written."), chat.forgetAnswers().await())
        assertEquals(listOf("demo"), memory.parentFile!!.list().orEmpty().toList())
        assertEquals(turns, chat.ready().turns)
    }

    @Test fun `answers are erased without an open bundle too`() = runTest {
        val other = File(folder.root, "memory/other").apply { parentFile!!.mkdirs() }.apply { writeText("tokens") }
        assertEquals(words(R.string.erased), model().forgetAnswers().await())
        assertFalse(other.exists())
    }

    @Test fun `an edit or a retry that ends before its first word leaves the turns that it would replace`() = runTest {
        use("demo")
        val chat = model()
        chat.ask("One")
        val before = chat.ask("Two").turns
        engine.gate = Channel(Channel.UNLIMITED)
        chat.edit(0, "Another")
        chat.keep().join()
        assertEquals("a process that ends now", before, chat().ready().turns)
        chat.stop()
        engine.gate!!.trySend(Unit)
        assertEquals(before, chat.ready().turns)
        assertEquals("Another", chat.state.value.unsent)
        chat.takeUnsent()
        chat.retry()
        val left = chat.leave()
        engine.gate!!.trySend(Unit)
        left.join()
        assertEquals(before, chat.ready().turns)
        assertEquals("the question is in the chat", null, chat.state.value.unsent)
        chat.edit(2, "please refuse")
        assertEquals(before, chat.ready().turns)
        assertEquals(Sentence.Literal("This prompt is too long."), chat.state.value.error)
        assertEquals("please refuse", chat.state.value.unsent)
        assertEquals("on disk too", before, chat().ready().turns)
        engine.gate = null
        val next = chat.ask("Three").turns
        chat.newChat().join()
        chat.ask("One")
        chat.ask("Two")
        assertEquals("the model knows them too", chat.ask("Three").turns, next)
    }

    @Test fun `a chat that cannot be opened shows why, and the bundle can be chosen again`() = runTest {
        use("demo")
        val chat = model()
        val turns = chat.ask("Hello").turns
        val id = chat.state.value.chat!!
        val refusal = StreamFuseException(ErrorCode.BAD_ARGUMENT, "The chat template has no system message.")
        for (work in listOf<() -> Job>({ chat.newChat() }, { chat.openChat(id) }, { chat.delete(chat.state.value.chat!!) })) {
            chat.newChat().join()
            engine.sessionError = refusal
            work().join()
            assertEquals(Phase.FAILED, chat.state.value.phase)
            assertEquals(Sentence.Literal("The chat template has no system message."), chat.state.value.error)
            assertEquals(0, engine.open)
            engine.sessionError = null
            chat.open("demo").join()
            assertEquals(turns, chat.ready().turns)
        }
    }

    @Test fun `turns that cannot come back after an edit are on disk`() = runTest {
        use("demo")
        val chat = model()
        val turns = chat.ask("Hello").turns
        engine.sessionError = StreamFuseException(ErrorCode.BAD_ARGUMENT, "There is too little memory.")
        chat.edit(0, "Another")
        assertEquals(Phase.FAILED, chat.state.value.phase)
        engine.sessionError = null
        chat.open("demo").join()
        assertEquals(turns, chat.ready().turns)
    }
}
