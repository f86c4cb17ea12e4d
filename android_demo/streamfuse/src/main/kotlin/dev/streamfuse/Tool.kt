package dev.streamfuse

import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.serialization.KSerializer
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException
import kotlinx.serialization.descriptors.StructureKind
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.put
import kotlinx.serialization.serializer

/**
 * A function that the model of a [Chat] may call: [Model.chat]. The function [tool] makes one of a serializable class.
 *
 * @property name its name: letters, digits, `_` and `-`.
 * @property description tells the model what it does and when to call it.
 * @property parameters JSON schema of its arguments, an object.
 * @param run computes the result's text. It runs on [Options.dispatcher]. An exception becomes the result `error: …`.
 * @throws StreamFuseException ([ErrorCode.BAD_GRAMMAR]) if [parameters] is not a JSON object.
 */
public class Tool(
    public val name: String,
    public val description: String,
    public val parameters: String,
    private val run: suspend (arguments: JsonObject) -> String,
) {
    /** As the chat template wants it, in OpenAI's format. */
    internal val declaration: JsonObject = buildJsonObject {
        put("type", "function")
        put(
            "function",
            buildJsonObject {
                put("name", name)
                put("description", description)
                put("parameters", schema())
            },
        )
    }

    /** The result of a call. A failure is a result too, which the model reads; only cancellation is thrown. */
    internal suspend fun call(arguments: JsonObject): String = try {
        run(arguments)
    } catch (failure: Exception) {
        currentCoroutineContext().ensureActive()
        "error: ${failure.message ?: failure}"
    }

    private fun schema(): JsonObject = try {
        Json.decodeFromString(JsonObject.serializer(), parameters)
    } catch (error: SerializationException) {
        val sentence = "the parameters of the tool $name must be a JSON schema, an object: ${error.message}"
        throw StreamFuseException(ErrorCode.BAD_GRAMMAR, sentence)
    }
}

/**
 * A tool whose arguments are a [serializable][Serializable] class: `tool("weather", "…") { query: Query -> … }`. Its
 * [Tool.parameters] are `schemaOf<A>()`. A result that is a String goes to the model as it is, another one as JSON.
 *
 * @param run the function; see [Tool].
 * @throws StreamFuseException ([ErrorCode.BAD_GRAMMAR]) if the class has no JSON schema or is not an object.
 */
public inline fun <reified A, reified R> tool(
    name: String,
    description: String,
    noinline run: suspend (arguments: A) -> R,
): Tool = toolOf(name, description, serializer<A>(), serializer<R>(), run)

@PublishedApi
internal fun <A, R> toolOf(
    name: String,
    description: String,
    arguments: KSerializer<A>,
    results: KSerializer<R>,
    run: suspend (arguments: A) -> R,
): Tool {
    val type = arguments.descriptor
    if (type.isNullable || type.kind !is StructureKind || type.kind == StructureKind.LIST) {
        val sentence = "the arguments of the tool $name must be the properties of a class, not ${type.serialName}"
        throw StreamFuseException(ErrorCode.BAD_GRAMMAR, sentence)
    }
    return Tool(name, description, schemaOf(type)) { call ->
        val result = run(structured.decodeFromJsonElement(arguments, call))
        if (result is String) result else structured.encodeToString(results, result)
    }
}

/**
 * A call of a [Tool] by the model.
 *
 * @property id identifies the call in its conversation.
 * @property name the name of the tool.
 * @property arguments a JSON object that fits [Tool.parameters].
 */
@Serializable
public data class ToolCall(val id: String, val name: String, val arguments: JsonObject) {
    /**
     * The arguments as a serializable class.
     *
     * @throws SerializationException if they do not fit the class.
     */
    public inline fun <reified T> parsed(): T = structured.decodeFromJsonElement(serializer<T>(), arguments)
}

/**
 * The result of a [ToolCall], for [Chat.send] and [Chat.generate].
 *
 * @property toolCallId [ToolCall.id].
 * @property content what the tool returned: text, often JSON.
 */
@Serializable
public data class ToolResult(@SerialName("tool_call_id") val toolCallId: String, val content: String)

/** The JSON format of answers, tool calls and their results: keys that a class lacks are ignored; default values are
 * written too. */
@PublishedApi
internal val structured: Json = Json {
    ignoreUnknownKeys = true
    encodeDefaults = true
}
