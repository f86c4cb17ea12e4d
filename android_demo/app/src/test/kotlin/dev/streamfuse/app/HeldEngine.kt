package dev.streamfuse.app

import dev.streamfuse.ContextPolicy
import dev.streamfuse.GenerationConfig
import dev.streamfuse.Message
import dev.streamfuse.app.model.Engine
import dev.streamfuse.app.model.OpenModel
import dev.streamfuse.app.model.OpenSession
import java.io.File
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.flow.onEach

/** Holds each answer back after [pieces] pieces until [release], so that a test acts in the middle of one on any processor. */
class HeldEngine(private val engine: Engine, private val pieces: Int = 8) : Engine {
    override val backends get() = engine.backends
    private val released = CompletableDeferred<Unit>()

    fun release() {
        released.complete(Unit)
    }

    override suspend fun open(
        folder: File,
        threads: Int?,
        checkHashes: Boolean,
        memory: File?,
        policy: ContextPolicy,
    ): OpenModel = HeldModel(engine.open(folder, threads, checkHashes, memory, policy))

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
