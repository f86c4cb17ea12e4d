package dev.streamfuse

import kotlinx.serialization.builtins.ListSerializer
import kotlinx.serialization.json.Json

/** A conversation: [Model.chat]. */
public class Chat internal constructor(
    model: Model,
    sequence: Sequence,
    defaults: GenerationConfig,
    private val first: ByteArray,
) : Session(model, sequence, defaults) {
    /** The turns so far; an answer that is being written comes when it ends. */
    @Volatile
    public var messages: List<Message> = emptyList()
        private set

    internal override fun firstMessages() = first

    internal override fun readMessages(native: NativeSession) {
        messages = Json.decodeFromString(turns, native.messages())
    }

    internal companion object {
        private val turns = ListSerializer(Message.serializer())

        /** The turns that a conversation begins with, as JSON. */
        fun jsonOf(system: String?, history: List<Message>): ByteArray {
            val first = if (system == null) emptyList() else listOf(Message(Role.SYSTEM, system))
            return Json.encodeToString(turns, first + history).encodeToByteArray()
        }
    }
}

/** Plain text that is continued: [Model.completion]. */
public class Completion internal constructor(model: Model, sequence: Sequence, defaults: GenerationConfig) :
    Session(model, sequence, defaults) {
    internal override fun firstMessages() = Chat.jsonOf(null, emptyList())

    internal override fun readMessages(native: NativeSession): Unit = Unit
}
