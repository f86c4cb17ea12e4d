package dev.streamfuse.app.model

import java.io.File
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.ExperimentalCoroutinesApi
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.test.TestScope
import kotlinx.coroutines.test.UnconfinedTestDispatcher
import org.junit.Rule
import org.junit.rules.TemporaryFolder

/** Chats over the fake library, without Android. */
@OptIn(ExperimentalCoroutinesApi::class)
abstract class ChatTest {
    @get:Rule val folder = TemporaryFolder()
    protected val engine = FakeEngine()
    protected var preferences = FakePreferences()

    protected fun bundle(name: String): File = File(folder.root, name).also {
        it.mkdirs()
        File(it, "manifest.json").writeText("{}")
    }

    /** A chat as a new process makes it. */
    protected fun TestScope.chat(store: SettingsStore = store(), scope: CoroutineScope = scope()): ChatModel =
        ChatModel(engine, { File(folder.root, it) }, File(folder.root, "memory"), store, saved(), scope).also { it.wake() }

    protected fun saved() = SavedChats(File(folder.root, "saved"))

    protected fun TestScope.scope() = CoroutineScope(UnconfinedTestDispatcher(testScheduler) + Job())

    protected fun TestScope.store() = SettingsStore(preferences, scope())

    protected suspend fun ChatModel.ready() = state.first { it.phase == Phase.READY }

    protected suspend fun ChatModel.ask(text: String): ChatState {
        ready()
        send(text)
        return ready()
    }

    protected fun use(name: String) {
        bundle(name)
        preferences = FakePreferences("bundle" to name)
    }
}
