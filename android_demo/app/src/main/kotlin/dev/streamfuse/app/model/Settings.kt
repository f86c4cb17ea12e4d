package dev.streamfuse.app.model

import dev.streamfuse.GenerationConfig
import dev.streamfuse.app.R
import java.math.BigDecimal
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow

/**
 * A number that the user may set; an empty field leaves it to the bundle. The ranges are those of the library, which
 * checks them again.
 */
enum class Field(
    val label: Int,
    val help: Int,
    private val low: String,
    private val high: String?,
    val whole: Boolean = false,
    private val lowAllowed: Boolean = true,
) {
    TEMPERATURE(R.string.temperature, R.string.temperature_help, "0", null),
    TOP_K(R.string.top_k, R.string.top_k_help, "0", "2147483647", whole = true),
    TOP_P(R.string.top_p, R.string.top_p_help, "0", "1", lowAllowed = false),
    MIN_P(R.string.min_p, R.string.min_p_help, "0", "1"),
    REPETITION_PENALTY(R.string.repetition_penalty, R.string.repetition_penalty_help, "0", null, lowAllowed = false),
    SEED(R.string.seed, R.string.seed_help, "0", "9223372036854775807", whole = true),
    MAX_NEW_TOKENS(R.string.max_new_tokens, R.string.max_new_tokens_help, "1", "2147483647", whole = true),
    THREADS(R.string.threads, R.string.threads_help, "1", "64", whole = true),
    ;

    /** The number in a text; null where it is empty. AppException where it is none, or out of range. */
    fun read(text: String): BigDecimal? {
        val plain = text.trim().replace(',', '.')
        if (plain.isEmpty()) return null
        val number = plain.toBigDecimalOrNull() ?: throw AppException(words(R.string.not_a_number, plain))
        val tooLow = number < BigDecimal(low) || !lowAllowed && number.signum() == 0
        val tooHigh = high != null && number > BigDecimal(high)
        val fraction = whole && number.stripTrailingZeros().scale() > 0
        if (!tooLow && !tooHigh && !fraction) return number
        throw AppException(
            when {
                fraction -> words(R.string.not_whole, plain)
                high == null && lowAllowed -> words(R.string.range_from, low, plain)
                high == null -> words(R.string.range_above, low, plain)
                lowAllowed -> words(R.string.range_between, low, high, plain)
                else -> words(R.string.range_above_to, low, high, plain)
            },
        )
    }
}

enum class Speculation { AUTO, ON, OFF }

/** What the user chose. A field that is missing is the bundle's default. */
data class Settings(
    val numbers: Map<Field, BigDecimal> = emptyMap(),
    val speculation: Speculation = Speculation.AUTO,
    val systemPrompt: String = "",
) {
    val threads: Int? get() = numbers[Field.THREADS]?.toInt()

    fun config() = GenerationConfig(
        maxNewTokens = numbers[Field.MAX_NEW_TOKENS]?.toInt(),
        temperature = numbers[Field.TEMPERATURE]?.toDouble(),
        topK = numbers[Field.TOP_K]?.toInt(),
        topP = numbers[Field.TOP_P]?.toDouble(),
        minP = numbers[Field.MIN_P]?.toDouble(),
        repetitionPenalty = numbers[Field.REPETITION_PENALTY]?.toDouble(),
        seed = numbers[Field.SEED]?.toLong(),
        enableSpeculativeDecoding = when (speculation) {
            Speculation.AUTO -> null
            Speculation.ON -> true
            Speculation.OFF -> false
        },
    )
}

/** Small texts under names that survive the process. */
interface Preferences {
    fun read(key: String): String?

    fun write(key: String, value: String?)
}

/** The settings, kept. */
class SettingsStore(private val preferences: Preferences) {
    private val current = MutableStateFlow(load())
    val settings: StateFlow<Settings> = current.asStateFlow()

    /** The name of the bundle in use. */
    var bundle: String?
        get() = preferences.read("bundle")
        set(value) = preferences.write("bundle", value)

    /** Takes what the user typed. AppException where it is no such number; then nothing has changed. */
    fun set(field: Field, text: String) {
        val number = field.read(text)
        val numbers = current.value.numbers
        change(current.value.copy(numbers = if (number == null) numbers - field else numbers + (field to number)))
    }

    fun set(speculation: Speculation) = change(current.value.copy(speculation = speculation))

    fun setSystemPrompt(text: String) = change(current.value.copy(systemPrompt = text))

    /** Everything as the bundle has it. */
    fun clear() = change(Settings())

    private fun change(settings: Settings) {
        for (field in Field.entries) preferences.write(field.name, settings.numbers[field]?.toPlainString())
        preferences.write("speculation", settings.speculation.name)
        preferences.write("system", settings.systemPrompt)
        current.value = settings
    }

    private fun load() = Settings(
        numbers = buildMap {
            for (field in Field.entries) {
                // What an older version of the app kept may be out of range by now.
                val number = runCatching { field.read(preferences.read(field.name).orEmpty()) }.getOrNull()
                if (number != null) put(field, number)
            }
        },
        speculation = Speculation.entries.firstOrNull { it.name == preferences.read("speculation") } ?: Speculation.AUTO,
        systemPrompt = preferences.read("system").orEmpty(),
    )
}
