package dev.streamfuse.app

import dev.streamfuse.GenerationConfig
import dev.streamfuse.StreamFuse
import dev.streamfuse.app.model.LibraryEngine
import dev.streamfuse.app.model.Phase
import kotlinx.coroutines.runBlocking
import org.robolectric.android.controller.ActivityController

/** The chat screen over a real bundle, as a person uses it. */
abstract class ChatScreen : Device() {
    protected val phase get() = parts.chat.state.value.phase
    protected val tokens get() = parts.chat.state.value.live?.tokens ?: 0

    protected fun held() = HeldEngine(LibraryEngine(app.cacheDir)).also { app.replace(Parts(app, it)) }

    protected fun openChat(): ActivityController<ChatActivity> = open(ChatActivity::class.java).also { ready() }

    protected fun ready() = until {
        check(phase != Phase.FAILED) { parts.chat.state.value.error.toString() }
        phase == Phase.READY
    }

    protected fun ChatActivity.ask(words: String) {
        type(R.id.input, words)
        pressSoon(R.id.send)
    }

    protected fun ChatActivity.answerTo(words: String): String {
        ask(words)
        ready()
        idle()
        return conversation().last()
    }

    /** What the library itself answers, turn after turn: each with its most tokens. */
    protected fun library(config: GenerationConfig, vararg turns: Pair<String, Int>): List<String> =
        StreamFuse.loadBlocking(built("demo")).use { model ->
            model.chat().use { chat ->
                turns.map { (words, most) ->
                    runBlocking { chat.generate(words, config.copy(maxNewTokens = most)).text }
                }
            }
        }
}
