package dev.streamfuse.app.model

import dev.streamfuse.Role
import dev.streamfuse.Source
import java.io.File
import kotlin.coroutines.CoroutineContext
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.Job
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.test.UnconfinedTestDispatcher
import kotlinx.coroutines.test.advanceTimeBy
import kotlinx.coroutines.test.runTest
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Test

/** The chat over the fake library, without Android. */
@OptIn(ExperimentalCoroutinesApi::class)
class ChatModelTest : ChatTest() {
    @Test fun `without a bundle there is nothing to ask`() = runTest {
        val chat = chat()
        chat.send("Hello")
        assertEquals(Phase.NO_BUNDLE, chat.state.value.phase)
    }

    @Test fun `an answer streams with the sources of its words and ends with the library's figures`() = runTest {
        use("demo")
        val state = chat().ask("Hello")
        assertEquals(listOf(Role.USER, Role.ASSISTANT), state.turns.map { it.role })
        assertEquals(20, state.turns[1].text.split(" ").size)
        assertEquals(Source.entries.toSet() - Source.GRAMMAR - Source.MEMORY, state.turns[1].runs.map { it.source }.toSet())
        assertEquals("length", state.turns[1].end)
        assertEquals(40.0, state.live!!.tokensPerSecond!!, 0.0)
        assertEquals("a plain pass costs 50 ms", 2.0, state.turns[1].figures!!.speedup!!, 1e-9)
        assertEquals("they stay with their answer", state.turns, chat().ready().turns)
    }

    @Test fun `figures are counted while an answer is written`() = runTest {
        use("demo")
        engine.gate = Channel(Channel.UNLIMITED)
        val chat = chat()
        chat.ready()
        chat.send("Hello")
        assertEquals(Phase.WRITING, chat.state.value.phase)
        repeat(8) { engine.gate!!.trySend(Unit) }
        advanceTimeBy(100)
        val live = chat.state.value.live!!
        assertEquals(8, live.tokens)
        assertEquals(6, live.accepted)
        assertEquals(4.0, live.tokensPerPass!!, 0.0)
        assertNull("only the library knows", live.proposed)
    }

    @Test fun `a thousand tokens that come at once are a few states, and none is lost`() = runTest {
        use("demo")
        preferences = FakePreferences("bundle" to "demo", Field.MAX_NEW_TOKENS.name to "1000")
        engine.gate = Channel(Channel.UNLIMITED)
        val chat = chat()
        chat.ready()
        var states = 0
        val watching = backgroundScope.launch(UnconfinedTestDispatcher(testScheduler)) { chat.state.collect { states++ } }
        chat.send("Hello")
        repeat(1000) {
            engine.gate!!.trySend(Unit)
            if (it % 100 == 0) advanceTimeBy(50)
        }
        assertEquals(1000, chat.ready().turns[1].text.split(" ").size)
        assertTrue("$states states", states < 30)
        watching.cancel()
    }

    @Test fun `another bundle has a chat of its own, and the first is there again`() = runTest {
        use("demo")
        bundle("other")
        File(bundle("bad"), "damaged").writeText("")
        val chat = chat()
        val kept = chat.ask("Hello").turns
        chat.open("other").join()
        assertEquals(emptyList<Turn>(), chat.ready().turns)
        chat.ask("Something else")
        chat.open("bad").join()
        assertEquals(Phase.FAILED, chat.state.value.phase)
        chat.open("demo").join()
        assertEquals(kept, chat.ready().turns)
        assertEquals("the cache was used", 0, engine.histories)
        chat.forget("other").join()
        chat.open("other").join()
        assertEquals(emptyList<Turn>(), chat.ready().turns)
    }

    @Test fun `the words of an unfinished answer are kept while it goes on`() = runTest {
        use("demo")
        engine.gate = Channel(Channel.UNLIMITED)
        val chat = chat()
        chat.ready()
        chat.send("Hello")
        chat.keep().join()
        assertEquals("a process that ends now gives the question back", "Hello", chat().ready().unsent)
        repeat(3) { engine.gate!!.trySend(Unit) }
        advanceTimeBy(100)
        chat.keep().join()
        val again = chat().ready().turns
        assertEquals(3, again[1].text.split(" ").size)
        assertEquals(End.LEFT, again[1].end)
        repeat(17) { engine.gate!!.trySend(Unit) }
        assertEquals("the answer went on", "length", chat.ready().turns[1].end)
        chat.leave().join()
        chat.keep().join()
        assertTrue("a late one leaves the cache", folder.root.walk().any { it.name == "a.cache" })
    }

    @Test fun `a model that rests takes no memory, and the chat goes on when it wakes`() = runTest {
        use("demo")
        val chat = chat()
        val turns = chat.ask("Hello").turns
        chat.wake().join()
        assertEquals("it does not rest", turns, chat.ready().turns)
        chat.rest().join()
        assertEquals(0, engine.open)
        chat.wake().join()
        assertEquals(turns, chat.ready().turns)
        assertEquals(1, engine.open)
        assertEquals(4, chat.ask("And now?").turns.size)
        assertEquals("the cache was used", 0, engine.histories)
    }

    @Test fun `a model that is woken while it goes to rest is there again`() = runTest {
        use("demo")
        engine.gate = Channel(Channel.UNLIMITED)
        val chat = chat()
        chat.ready()
        chat.send("Hello")
        chat.rest()
        val awake = chat.wake()
        engine.gate!!.trySend(Unit)
        awake.join()
        assertEquals(Phase.READY, chat.state.value.phase)
        assertEquals("Hello", chat.state.value.unsent)
    }

    /** Runs what waits when [run] is called, the last of it first. */
    private class LastFirst : CoroutineDispatcher() {
        private val tasks = ArrayDeque<Runnable>()

        override fun dispatch(context: CoroutineContext, block: Runnable) = tasks.addLast(block)

        fun run() {
            while (tasks.isNotEmpty()) tasks.removeLast().run()
        }
    }

    @Test fun `a question is not asked while the chat that it would be asked in is to be closed`() = runTest {
        use("demo")
        bundle("other")
        val first = chat()
        first.ask("One")
        val one = first.state.value.chat!!
        first.newChat().join()
        first.ask("Two")
        first.close()
        val store = store()
        val thread = LastFirst()
        val scope = CoroutineScope(thread + Job())
        val chat = chat(store, scope).also { thread.run() }
        val changes = mapOf<String, () -> Unit>(
            "new chat" to { chat.newChat() },
            "another chat" to { chat.openChat(one) },
            "settings" to { store.set(Field.THREADS, "3").also { chat.applySettings()!! } },
            "lent" to { scope.launch(start = CoroutineStart.UNDISPATCHED) { chat.lend { } } },
            "deleted" to { chat.delete(one) },
            "another bundle" to { chat.open("other") },
        )
        for ((name, change) in changes) {
            change()
            val isAsked = chat.send("Hello")
            thread.run()
            val state = chat.state.value
            val isThere = state.turns.any { it.text == "Hello" } || state.unsent == "Hello"
            assertEquals("$name: it is in the chat or in the field", isAsked, isThere)
            assertTrue("$name: no answer is half", state.turns.none { it.role == Role.ASSISTANT && it.end == null })
            assertEquals(name, Phase.READY, state.phase)
        }
        chat.rest()
        assertFalse(chat.send("Hello"))
        thread.run()
        chat.wake()
        thread.run()
        assertTrue("afterwards it is", chat.send("Hello"))
    }

    @Test fun `the chat or the bundle that is in use can be chosen again, and its answer goes on`() = runTest {
        use("demo")
        engine.gate = Channel(Channel.UNLIMITED)
        val chat = chat()
        chat.ready()
        chat.send("Hello")
        chat.openChat(chat.state.value.chat!!)
        chat.open("demo")
        repeat(20) { engine.gate!!.trySend(Unit) }
        assertEquals("length", chat.ready().turns[1].end)
    }

    @Test fun `what the field has taken does not come back when the chat is opened again`() = runTest {
        use("demo")
        val chat = chat()
        chat.ask("Hello")
        chat.ask("please refuse")
        chat.leave().join()
        val id = chat.state.value.chat!!
        chat.takeUnsent().join()
        chat.newChat().join()
        chat.openChat(id).join()
        assertNull(chat.ready().unsent)
        assertEquals(2, chat.state.value.turns.size)
        assertNull("nor in the next process", chat().ready().unsent)
        assertEquals("the cache was used", 0, engine.histories)
    }

    @Test fun `a stopped answer that is only thinking is in the chat, as it is in the model`() = runTest {
        use("demo")
        engine.gate = Channel(Channel.UNLIMITED)
        engine.thinks = true
        val chat = chat()
        chat.ready()
        chat.send("Hello")
        repeat(3) { engine.gate!!.trySend(Unit) }
        advanceTimeBy(100)
        chat.stop()
        engine.gate!!.trySend(Unit)
        assertEquals(listOf("Hello", ""), chat.ready().turns.map { it.text })
        assertEquals(End.STOPPED, chat.state.value.turns[1].end)
        assertNull(chat.state.value.unsent)
    }

    @Test fun `what is called one after another runs in this order, whatever threads take it`() = runTest {
        use("demo")
        val thread = LastFirst()
        fun run() = thread.run()
        val chat = chat(scope = CoroutineScope(thread + Job()))
        assertEquals("not on the caller's thread", 0, engine.open)
        run()
        chat.rest()
        chat.wake()
        assertEquals("not on the caller's thread", Phase.READY, chat.state.value.phase)
        run()
        assertEquals(Phase.READY, chat.state.value.phase)
    }

    @Test fun `a stop before the answer has begun gives the question back at once`() = runTest {
        use("demo")
        val thread = LastFirst()
        val chat = chat(scope = CoroutineScope(thread + Job()))
        thread.run()
        assertTrue(chat.send("Hello"))
        chat.stop()
        thread.run()
        assertEquals(Phase.READY, chat.state.value.phase)
        assertEquals(emptyList<Turn>(), chat.state.value.turns)
        assertEquals("Hello", chat.state.value.unsent)
        assertTrue(chat.send("Hello"))
        thread.run()
        val turns = chat.state.value.turns
        assertEquals("length", turns[1].end)
        assertTrue(chat.edit(0, "Another"))
        chat.leave()
        thread.run()
        assertEquals("what it would replace stays", turns, chat.state.value.turns)
        assertEquals("Another", chat.state.value.unsent)
    }

    @Test fun `stop keeps what is written, and the chat goes on from there`() = runTest {
        use("demo")
        engine.gate = Channel(Channel.UNLIMITED)
        val chat = chat()
        chat.ready()
        chat.send("Hello")
        repeat(3) { engine.gate!!.trySend(Unit) }
        chat.stop()
        engine.gate!!.trySend(Unit)
        assertEquals(End.STOPPED, chat.ready().turns[1].end)
        assertEquals(3, chat.state.value.turns[1].text.split(" ").size)
        engine.gate = null
        assertEquals(4, chat.ask("And now?").turns.size)
    }

    @Test fun `a process that ends in the middle of an answer changes no later word`() = runTest {
        use("demo")
        fun half(): ChatModel = runBlocking {
            engine.gate = Channel(Channel.UNLIMITED)
            val chat = chat()
            chat.ready()
            chat.send("Hello")
            repeat(5) { engine.gate!!.trySend(Unit) }
            val left = chat.leave()
            engine.gate!!.trySend(Unit)
            left.join()
            engine.gate = null
            chat
        }
        val kept = half().ask("And now?").turns
        folder.root.resolve("saved").deleteRecursively()
        half()
        val again = chat()
        assertEquals(kept.take(2), again.ready().turns)
        assertEquals(End.LEFT, again.state.value.turns[1].end)
        assertEquals(kept, again.ask("And now?").turns)
        assertEquals("the cache was used", 0, engine.histories)
    }

    @Test fun `where the saved cache is unreadable the turns are read again`() = runTest {
        use("demo")
        val first = chat()
        first.ask("Hello")
        first.leave().join()
        val kept = first.ask("And now?").turns
        first.newChat().join()
        first.ask("Hello")
        first.leave().join()
        engine.damagedCaches = true
        assertEquals(kept, chat().ask("And now?").turns)
        assertEquals(1, engine.histories)
    }

    @Test fun `a question that was left before its first word comes back into the field, also after the process ended`() = runTest {
        use("demo")
        engine.gate = Channel(Channel.UNLIMITED)
        val chat = chat()
        chat.ready()
        chat.send("Hello")
        val left = chat.leave()
        engine.gate!!.trySend(Unit)
        left.join()
        assertEquals(emptyList<Turn>(), chat().ready().turns)
        assertEquals("Hello", chat().ready().unsent)
    }

    @Test fun `what the library refuses shows its message and stays in the field`() = runTest {
        use("demo")
        val state = chat().ask("please refuse")
        assertEquals(Sentence.Literal("This prompt is too long."), state.error)
        assertEquals("please refuse", state.unsent)
        assertEquals(emptyList<Turn>(), state.turns)
    }

    @Test fun `a bundle that cannot be loaded shows an error, and another can be chosen`() = runTest {
        use("bad")
        File(bundle("bad"), "damaged").writeText("")
        val chat = chat()
        assertEquals(Phase.FAILED, chat.state.first { it.phase != Phase.LOADING }.phase)
        assertTrue(chat.state.value.error is Sentence.Literal)
        bundle("good")
        chat.open("good").join()
        assertEquals("good", chat.ready().bundle)
        assertEquals(1, engine.open)
    }

    @Test fun `settings take effect with the next answer, the system prompt with the next chat`() = runTest {
        use("demo")
        val store = store()
        val chat = chat(store)
        val greedy = chat.ask("Hello").turns
        store.set(Field.MAX_NEW_TOKENS, "4")
        chat.newChat().join()
        assertEquals(greedy[1].text.split(" ").take(4), chat.ask("Hello").turns[1].text.split(" "))
        store.setSystemPrompt("Be brief.")
        chat.newChat().join()
        val briefed = chat.ask("Hello").turns[1].text
        assertTrue(briefed != greedy[1].text && briefed.split(" ").size == 4)
        store.set(Speculation.OFF)
        chat.newChat().join()
        val plain = chat.ask("Hello")
        assertEquals("the same text", briefed, plain.turns[1].text)
        assertEquals("off by request", plain.live!!.fallbackReason)
    }

    @Test fun `other threads load the bundle again and keep the chat`() = runTest {
        use("demo")
        val store = store()
        val chat = chat(store)
        val turns = chat.ask("Hello").turns
        assertNull(chat.applySettings())
        store.set(Field.THREADS, "3")
        chat.applySettings()!!.join()
        assertEquals(turns, chat.ready().turns)
        assertEquals(3, chat.lend { it.threads })
        assertEquals(1, engine.open)
    }

    @Test fun `settings changed while no model is open apply to the next load`() = runTest {
        use("demo")
        val store = store()
        val chat = chat(store)
        chat.ready()
        chat.rest().join()
        store.set(Field.THREADS, "3")
        assertNull(chat.applySettings())
        chat.wake().join()
        chat.ready()
        assertEquals(3, chat.lend { it.threads })
        assertNull(chat.applySettings())
    }

    @Test fun `settings changed while the model is lent reload the bundle afterwards`() = runTest {
        use("demo")
        val store = store()
        val chat = chat(store)
        val turns = chat.ask("Hello").turns
        val changes = chat.lend {
            store.set(Field.THREADS, "3")
            List(2) { chat.applySettings()!! }
        }!!
        changes.forEach { it.join() }
        assertEquals(turns, chat.ready().turns)
        assertEquals(3, chat.lend { it.threads })
        assertEquals(1, engine.open)
    }
}
