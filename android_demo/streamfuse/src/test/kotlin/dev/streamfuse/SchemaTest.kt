package dev.streamfuse

import java.util.Date
import kotlinx.serialization.Contextual
import kotlinx.serialization.ExperimentalSerializationApi
import kotlinx.serialization.Polymorphic
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonClassDiscriminator
import kotlinx.serialization.json.JsonElement
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** The JSON schema of a serializable class. StructuredTest uses them. */
class SchemaTest {
    @Serializable
    enum class Continent {
        AFRICA,

        @SerialName("europe")
        EUROPE,
    }

    @Description("A city.")
    @Serializable
    class City(
        @Description("Its own name.") @Keywords("""{"maxLength": 40}""") val name: String,
        @SerialName("is_capital") val isCapital: Boolean,
        val continent: Continent,
        val mayor: Person?,
        val twins: List<String> = emptyList(),
    )

    @Serializable
    class Person(val name: String, @Keywords("""{"minimum": 0, "maximum": 150}""") val age: Int? = null)

    @Test
    fun `properties have their serial names and order, and those with defaults may be left out`() {
        val person = """{"type":"object","properties":{"name":{"type":"string"},"age":{"anyOf":[""" +
            """{"type":"integer","minimum":0,"maximum":150},{"type":"null"}]}},""" +
            """"required":["name"],"additionalProperties":false}"""
        val expected = """{"type":"object","properties":{""" +
            """"name":{"type":"string","maxLength":40,"description":"Its own name."},""" +
            """"is_capital":{"type":"boolean"},""" +
            """"continent":{"enum":["AFRICA","europe"]},""" +
            """"mayor":{"anyOf":[$person,{"type":"null"}]},""" +
            """"twins":{"type":"array","items":{"type":"string"}}},""" +
            """"required":["name","is_capital","continent","mayor"],"additionalProperties":false,""" +
            """"description":"A city."}"""
        assertEquals(expected, schemaOf<City>())
    }

    @JvmInline
    @Serializable
    value class Year(val value: Short)

    @Serializable
    class Kinds(
        val byte: Byte,
        val long: Long,
        val unsigned: UInt,
        val year: Year,
        val double: Double,
        val letter: Char,
        val scores: Map<String, Double>,
        val byContinent: Map<Continent, Int>,
        val anything: JsonElement,
        val nothing: Unit,
    )

    @Test
    fun `numbers have the ranges of their types, and maps are objects`() {
        val properties = Json.parseToJsonElement(schemaOf<Kinds>()).let { (it as Map<*, *>)["properties"] as Map<*, *> }
        val int = """{"type":"integer","minimum":-2147483648,"maximum":2147483647}"""
        val expected = mapOf(
            "byte" to """{"type":"integer","minimum":-128,"maximum":127}""",
            "long" to """{"type":"integer","minimum":-9007199254740991,"maximum":9007199254740991}""",
            "unsigned" to """{"type":"integer","minimum":0,"maximum":4294967295}""",
            "year" to """{"type":"integer","minimum":-32768,"maximum":32767}""",
            "double" to """{"type":"number"}""",
            "letter" to """{"type":"string","pattern":"^[ -${'\uffff'}]${'$'}"}""",
            "scores" to """{"type":"object","additionalProperties":{"type":"number"}}""",
            "byContinent" to """{"type":"object","properties":{"AFRICA":$int,"europe":$int},"required":[],""" +
                """"additionalProperties":false}""",
            "anything" to "{}",
            "nothing" to """{"type":"object","properties":{},"required":[],"additionalProperties":false}""",
        )
        assertEquals(expected, properties.mapValues { "${it.value}" })
    }

    @OptIn(ExperimentalSerializationApi::class)
    @Serializable
    @JsonClassDiscriminator("kind")
    sealed interface Shape {
        @Serializable
        @SerialName("circle")
        class Circle(val radius: Double) : Shape

        @Serializable
        @SerialName("empty")
        object Empty : Shape
    }

    @Serializable
    sealed class Term {
        @Serializable
        @SerialName("number")
        class Number(val value: Int) : Term()

        @Serializable
        @SerialName("sum")
        class Sum(val terms: List<Term>, val next: Sum? = null) : Term()
    }

    @Serializable
    class Tree<T>(val value: T, val children: List<Tree<T>> = emptyList())

    @Serializable
    class Forest(val words: Tree<String>, val flags: Tree<Boolean>)

    @Test
    fun `a sealed class is one of its classes, told apart by the discriminator`() {
        val expected = """{"anyOf":[{"type":"object","properties":{"kind":{"const":"circle"},""" +
            """"radius":{"type":"number"}},"required":["kind","radius"],"additionalProperties":false},""" +
            """{"type":"object","properties":{"kind":{"const":"empty"}},"required":["kind"],"additionalProperties":false}]}"""
        assertEquals(expected, schemaOf<Shape>())
    }

    @Test
    fun `classes that contain themselves are definitions, each type argument one of its own`() {
        val sum = schemaOf<Term>()
        assertTrue(sum.startsWith("""{"${'$'}ref":"#/${'$'}defs/Term","${'$'}defs":{"""), sum)
        assertTrue(""""terms":{"type":"array","items":{"${'$'}ref":"#/${'$'}defs/Term"}}""" in sum, sum)
        assertTrue(""""next":{"anyOf":[{"${'$'}ref":"#/${'$'}defs/sum"},{"type":"null"}]}""" in sum, sum)
        val forest = schemaOf<Forest>()
        val trees = """"words":{"${'$'}ref":"#/${'$'}defs/Tree"},"flags":{"${'$'}ref":"#/${'$'}defs/Tree2"}"""
        assertTrue(trees in forest, forest)
    }

    @Serializable
    class Dated(val city: City, val last: Visit)

    @Serializable
    class Visit(@Contextual val day: Date)

    @Serializable
    class Open(@Polymorphic val thing: Any)

    @Serializable
    class Numbered(val names: Map<Int, String>)

    @Serializable
    class Misspelt(@Keywords("maxLength: 40") val name: String)

    @Test
    fun `an error names the property that has no schema`() {
        val refused = mapOf(
            "Visit.day" to { schemaOf<Dated>() },
            "Open.thing" to { schemaOf<Open>() },
            "Numbered.names" to { schemaOf<Numbered>() },
            "Misspelt.name" to { schemaOf<Misspelt>() },
        )
        for ((place, make) in refused) {
            val error = failureOf<StreamFuseException> { make() }
            assertEquals(ErrorCode.BAD_GRAMMAR, error.code)
            assertTrue(place in error.message!!, error.message)
        }
    }
}
