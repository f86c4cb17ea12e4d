package dev.streamfuse

import kotlinx.serialization.ExperimentalSerializationApi
import kotlinx.serialization.SerialInfo
import kotlinx.serialization.SerializationException
import kotlinx.serialization.descriptors.PolymorphicKind
import kotlinx.serialization.descriptors.PrimitiveKind
import kotlinx.serialization.descriptors.SerialDescriptor
import kotlinx.serialization.descriptors.SerialKind
import kotlinx.serialization.descriptors.StructureKind
import kotlinx.serialization.descriptors.elementDescriptors
import kotlinx.serialization.descriptors.elementNames
import kotlinx.serialization.descriptors.nonNullOriginal
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonClassDiscriminator
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.serializer

/**
 * What a property or a class means: `description` in the JSON schema of [schemaOf]. The model reads the schema of a
 * tool's parameters, which is in the prompt, but not that of an answer: say in the request what is wanted.
 *
 * @property text the description.
 */
@OptIn(ExperimentalSerializationApi::class)
@SerialInfo
@Target(AnnotationTarget.PROPERTY, AnnotationTarget.CLASS)
public annotation class Description(val text: String)

/**
 * Adds keywords to the JSON schema of a property, and replaces those that it has: `@Keywords("""{"maxLength": 40}""")`.
 * docs/structured.md lists the supported keywords. In the schema of a nullable property they apply to values other than
 * null.
 *
 * @property json a JSON object.
 */
@OptIn(ExperimentalSerializationApi::class)
@SerialInfo
@Target(AnnotationTarget.PROPERTY)
public annotation class Keywords(val json: String)

/**
 * The JSON schema of a [serializable][kotlinx.serialization.Serializable] class, for [GenerationConfig.schema].
 *
 * Properties have the names and the order of the class's serial form; one with a default may be left out, and objects
 * have no other properties. Supported are strings, booleans, numbers (a Long within 53 bits), enums, nullable types,
 * lists, sets, maps whose keys are strings or enums, classes, objects, sealed classes and interfaces (`anyOf` with the
 * class discriminator), and classes that contain themselves.
 *
 * @throws StreamFuseException ([ErrorCode.BAD_GRAMMAR]) if a type has no schema; the message names the property.
 */
public inline fun <reified T> schemaOf(): String = schemaOf(serializer<T>().descriptor)

/**
 * The JSON schema of a serializer's type, [KSerializer.descriptor][kotlinx.serialization.KSerializer.descriptor].
 *
 * @throws StreamFuseException ([ErrorCode.BAD_GRAMMAR]) if a type has no schema; the message names the property.
 */
public fun schemaOf(descriptor: SerialDescriptor): String = SchemaBuilder().build(descriptor).toString()

/** Derives one schema. */
@OptIn(ExperimentalSerializationApi::class)
private class SchemaBuilder {
    private val definitions = linkedMapOf<String, JsonObject>()
    private val open = mutableListOf<SerialDescriptor>() // the classes around the current property
    private val recursive = mutableMapOf<SerialDescriptor, String>() // the classes that contain themselves, with names

    fun build(root: SerialDescriptor): JsonObject {
        val schema = schema(root, shortName(root))
        return if (definitions.isEmpty()) schema else JsonObject(schema + ("\$defs" to JsonObject(definitions)))
    }

    /** [place] is the property in error messages, such as City.mayor. */
    private fun schema(
        type: SerialDescriptor,
        place: String,
        keywords: Map<String, JsonElement> = emptyMap(),
    ): JsonObject {
        if (type.isNullable) {
            val other = schema(type.nonNullOriginal, place, keywords)
            return json("anyOf" to JsonArray(listOf(other, json("type" to "null"))))
        }
        val known = integer(type) ?: FORMATS[type.serialName]?.let { json("type" to "string", "format" to it) }
        val schema = when {
            known != null -> known
            type.serialName == "kotlinx.serialization.json.JsonElement" -> json() // any value
            type.isInline -> property(type, 0, place)
            else -> schema(type, type.kind, place)
        }
        return JsonObject(schema + keywords)
    }

    private fun schema(type: SerialDescriptor, kind: SerialKind, place: String): JsonObject = when (kind) {
        PrimitiveKind.STRING -> json("type" to "string")
        PrimitiveKind.BOOLEAN -> json("type" to "boolean")
        PrimitiveKind.FLOAT, PrimitiveKind.DOUBLE -> json("type" to "number")
        PrimitiveKind.CHAR -> json("type" to "string", "pattern" to "^[ -\uffff]$") // one UTF-16 unit
        SerialKind.ENUM -> json("enum" to texts(names(type, place)))
        StructureKind.LIST -> json("type" to "array", "items" to schema(type.getElementDescriptor(0), place))
        StructureKind.MAP -> map(type.getElementDescriptor(0), type.getElementDescriptor(1), place)
        StructureKind.CLASS, StructureKind.OBJECT -> once(type) { described(type.annotations, members(type)) }
        PolymorphicKind.SEALED -> once(type) { described(type.annotations, json("anyOf" to JsonArray(variants(type, place)))) }
        PolymorphicKind.OPEN -> refuse(place, type, "is open to other classes; make it sealed")
        else -> refuse(place, type, "has no serializer that is known at compile time; declare one (@Serializable)")
    }

    /** Whole numbers that fit the type; JSON's are exact up to 53 bits. */
    private fun integer(type: SerialDescriptor): JsonObject? {
        val range = when (type.serialName) {
            "kotlin.UByte" -> 0..UByte.MAX_VALUE.toLong()
            "kotlin.UShort" -> 0..UShort.MAX_VALUE.toLong()
            "kotlin.UInt" -> 0..UInt.MAX_VALUE.toLong()
            "kotlin.ULong" -> 0..EXACT
            else -> when (type.kind) {
                PrimitiveKind.BYTE -> Byte.MIN_VALUE..Byte.MAX_VALUE.toLong()
                PrimitiveKind.SHORT -> Short.MIN_VALUE..Short.MAX_VALUE.toLong()
                PrimitiveKind.INT -> Int.MIN_VALUE..Int.MAX_VALUE.toLong()
                PrimitiveKind.LONG -> -EXACT..EXACT
                else -> return null
            }
        }
        return json("type" to "integer", "minimum" to range.first, "maximum" to range.last)
    }

    private fun map(key: SerialDescriptor, value: SerialDescriptor, place: String): JsonObject {
        val schema = schema(value, place)
        return when (key.kind.takeUnless { key.isNullable }) {
            PrimitiveKind.STRING -> json("type" to "object", "additionalProperties" to schema)
            SerialKind.ENUM -> objectOf(names(key, place).associateWith { schema })
            else -> refuse(place, key, "is the type of a map's keys, which must be strings or enums")
        }
    }

    private fun members(type: SerialDescriptor): JsonObject {
        val members = type.elementNames.withIndex().associate { (index, name) ->
            name to property(type, index, "${shortName(type)}.$name")
        }
        return objectOf(members, members.keys.filter { !type.isElementOptional(type.getElementIndex(it)) })
    }

    private fun property(owner: SerialDescriptor, index: Int, place: String): JsonObject {
        val annotations = owner.getElementAnnotations(index)
        val keywords = annotations.filterIsInstance<Keywords>().map { keywords(it.json, place) }
        val merged = keywords.fold(emptyMap<String, JsonElement>()) { all, more -> all + more }
        return described(annotations, schema(owner.getElementDescriptor(index), place, merged))
    }

    private fun keywords(text: String, place: String): JsonObject = try {
        Json.decodeFromString(JsonObject.serializer(), text)
    } catch (error: SerializationException) {
        throw refusal("@Keywords of $place is not a JSON object: ${error.message}")
    }

    /** The concrete classes of a sealed one; each begins with the discriminator. */
    private fun variants(type: SerialDescriptor, place: String): List<JsonObject> {
        val marked = type.annotations.filterIsInstance<JsonClassDiscriminator>().firstOrNull()
        val discriminator = marked?.discriminator ?: "type"
        val classes = type.getElementDescriptor(1).elementDescriptors.toList()
        if (classes.isEmpty()) refuse(place, type, "has no subclasses")
        return classes.map { variant ->
            if (variant.kind != StructureKind.CLASS && variant.kind != StructureKind.OBJECT) {
                refuse(place, variant, "is one of ${shortName(type)}'s classes and has no properties")
            }
            // A variant that contains itself, and not the sealed class, has no discriminator in there.
            val own = once(variant) { described(variant.annotations, members(variant)) }.let { definitionOf(it) ?: it }
            val properties = own["properties"] as JsonObject
            val named = mapOf<String, JsonElement>(discriminator to json("const" to variant.serialName)) + properties
            val required = listOf(JsonPrimitive(discriminator)) + (own["required"] as JsonArray)
            JsonObject(own + ("properties" to JsonObject(named)) + ("required" to JsonArray(required)))
        }
    }

    private fun definitionOf(schema: JsonObject): JsonObject? {
        val reference = schema["\$ref"] as JsonPrimitive? ?: return null
        return definitions.getValue(reference.content.substringAfterLast('/'))
    }

    /** [make] is called once per class that contains itself; its schema is then a definition that is referred to. */
    private fun once(type: SerialDescriptor, make: () -> JsonObject): JsonObject {
        recursive[type]?.let { return reference(it) }
        if (type in open) {
            val plain = shortName(type)
            val candidates = sequenceOf(plain) + generateSequence(2) { it + 1 }.map { "$plain$it" }
            return reference(candidates.first { it !in recursive.values }.also { recursive[type] = it })
        }
        open += type
        val schema = make()
        open -= type
        val name = recursive[type] ?: return schema
        definitions[name] = schema
        return reference(name)
    }

    private fun reference(name: String) = json("\$ref" to "#/\$defs/$name")

    private fun described(annotations: List<Annotation>, schema: JsonObject): JsonObject {
        val description = annotations.filterIsInstance<Description>().firstOrNull() ?: return schema
        return JsonObject(schema + ("description" to JsonPrimitive(description.text)))
    }

    private fun names(enum: SerialDescriptor, place: String): List<String> =
        enum.elementNames.toList().ifEmpty { refuse(place, enum, "is an enum without values") }

    private fun objectOf(properties: Map<String, JsonElement>, required: List<String> = emptyList()): JsonObject = json(
        "type" to "object",
        "properties" to JsonObject(properties),
        "required" to texts(required),
        "additionalProperties" to false,
    )

    private fun json(vararg fields: Pair<String, Any>): JsonObject = JsonObject(
        fields.associate { (name, value) ->
            name to when (value) {
                is JsonElement -> value
                is Boolean -> JsonPrimitive(value)
                is Number -> JsonPrimitive(value)
                else -> JsonPrimitive(value.toString())
            }
        },
    )

    private fun texts(values: List<String>) = JsonArray(values.map { JsonPrimitive(it) })

    private fun shortName(type: SerialDescriptor) = type.serialName.removeSuffix("?").substringAfterLast('.')

    private fun refuse(place: String, type: SerialDescriptor, reason: String): Nothing =
        throw refusal("there is no JSON schema of $place: ${type.serialName} $reason")

    private fun refusal(sentence: String) = StreamFuseException(ErrorCode.BAD_GRAMMAR, sentence)

    private companion object {
        const val EXACT = (1L shl 53) - 1
        val FORMATS = mapOf(
            "kotlin.uuid.Uuid" to "uuid",
            "kotlin.time.Instant" to "date-time",
            "kotlinx.datetime.Instant" to "date-time",
            "kotlinx.datetime.LocalDate" to "date",
        )
    }
}
