package dev.streamfuse

import kotlinx.serialization.EncodeDefault
import kotlinx.serialization.ExperimentalSerializationApi
import kotlinx.serialization.KSerializer
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException
import kotlinx.serialization.builtins.ListSerializer
import kotlinx.serialization.descriptors.SerialDescriptor
import kotlinx.serialization.encoding.Decoder
import kotlinx.serialization.encoding.Encoder
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonObject

/** The role of a turn in a conversation. */
@Serializable
public enum class Role {
    /** Instructions to the model. */
    @SerialName("system")
    SYSTEM,

    /** Instructions to the model from the app, for templates that distinguish them from the system message. */
    @SerialName("developer")
    DEVELOPER,

    /** The user. */
    @SerialName("user")
    USER,

    /** The model. */
    @SerialName("assistant")
    ASSISTANT,

    /** The result of a tool call. */
    @SerialName("tool")
    TOOL,
}

/**
 * A turn of a conversation.
 *
 * @property role the role of the speaker.
 * @property content the text of the turn, without tool calls.
 * @property toolCalls the calls of a model's turn.
 * @property toolCallId the call that a [Role.TOOL] turn is the result of.
 * @property name the function of that call.
 */
@OptIn(ExperimentalSerializationApi::class)
@Serializable
public data class Message(
    val role: Role,
    @EncodeDefault val content: String = "",
    @SerialName("tool_calls") val toolCalls: List<@Serializable(with = FunctionCall::class) ToolCall> = emptyList(),
    @SerialName("tool_call_id") val toolCallId: String? = null,
    val name: String? = null,
) {
    internal companion object {
        private val turns = ListSerializer(serializer())

        fun read(list: String): List<Message> = json.decodeFromString(turns, list)

        fun write(list: List<Message>): String = json.encodeToString(turns, list)
    }
}

private val json = Json {
    ignoreUnknownKeys = true // what another language's history has, for example reasoning_content
    coerceInputValues = true // the content may be null beside tool calls, and a call's id
}

/** A [ToolCall] as it stands in a message: {"id", "type": "function", "function": {"name", "arguments"}}. */
internal object FunctionCall : KSerializer<ToolCall> {
    @OptIn(ExperimentalSerializationApi::class)
    @Serializable
    @SerialName("dev.streamfuse.FunctionCall")
    private class Form(val id: String = "", @EncodeDefault val type: String = "function", val function: Function) {
        @Serializable
        class Function(val name: String, val arguments: JsonElement)
    }

    /** A call as `sf_session_tool_calls` lists it. */
    @Serializable
    private class Listed(val id: String = "", val name: String, val arguments: JsonElement)

    /** The calls of a list of [NativeSession.toolCalls]. */
    fun read(list: String): List<ToolCall> =
        json.decodeFromString<List<Listed>>(list).map { ToolCall(it.id, it.name, objectOf(it.arguments)) }

    override val descriptor: SerialDescriptor = Form.serializer().descriptor

    override fun serialize(encoder: Encoder, value: ToolCall) = encoder.encodeSerializableValue(
        Form.serializer(), Form(value.id, function = Form.Function(value.name, value.arguments)),
    )

    override fun deserialize(decoder: Decoder): ToolCall {
        val form = decoder.decodeSerializableValue(Form.serializer())
        return ToolCall(form.id, form.function.name, objectOf(form.function.arguments))
    }

    /** Some histories have the arguments as JSON text. */
    private fun objectOf(arguments: JsonElement): JsonObject = try {
        when (arguments) {
            is JsonPrimitive -> Json.parseToJsonElement(arguments.content).jsonObject
            else -> arguments.jsonObject
        }
    } catch (error: IllegalArgumentException) {
        throw SerializationException("the arguments of a tool call must be a JSON object", error)
    }
}
