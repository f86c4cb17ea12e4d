package dev.streamfuse

import kotlinx.serialization.builtins.ListSerializer
import kotlinx.serialization.json.Json

/** A conversation: [Model.chat]. */
public class Chat internal constructor(
    model: Model,
    sequence: Sequence,
    defaults: GenerationConfig,
) : Session(model, sequence, defaults) {
    /** The turns so far; an answer in progress is added when it ends. */
    @Volatile
    public var messages: List<Message> = emptyList()
        private set

    internal override fun readMessages(native: NativeSession) {
        messages = Json.decodeFromString(turns, native.messages())
    }

    private companion object {
        val turns = ListSerializer(Message.serializer())
    }
}

/** A continuation of plain text: [Model.completion]. */
public class Completion internal constructor(model: Model, sequence: Sequence, defaults: GenerationConfig) :
    Session(model, sequence, defaults) {
    internal override fun readMessages(native: NativeSession): Unit = Unit
}
