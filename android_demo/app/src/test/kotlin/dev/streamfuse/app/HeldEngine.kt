package dev.streamfuse.app

import dev.streamfuse.ContextPolicy
import dev.streamfuse.GenerationConfig
import dev.streamfuse.Message
import dev.streamfuse.Options
import dev.streamfuse.app.model.Engine
import dev.streamfuse.app.model.OpenModel
import dev.streamfuse.app.model.OpenSession
import java.io.File
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.flow.onEach

/** Pauses each answer after [pieces] pieces until [release], so a test can act in the middle of one. */
class HeldEngine(private val engine: Engine, private val pieces: Int = 8) : Engine by engine {
    private val released = CompletableDeferred<Unit>()

    fun release() {
        released.complete(Unit)
    }

    override suspend fun open(folder: File, options: Options, policy: ContextPolicy): OpenModel =
        HeldModel(engine.open(folder, options, policy))

    private inner class HeldModel(private val model: OpenModel) : OpenModel by model {
        override fun session(system: String?, history: List<Message>): OpenSession = HeldSession(model.session(system, history))
    }

    private inner class HeldSession(private val session: OpenSession) : OpenSession by session {
        override fun send(text: String, config: GenerationConfig) = run {
            var delivered = 0
            session.send(text, config).onEach { if (delivered++ >= pieces) released.await() }
        }
    }
}
