package dev.streamfuse.app.model

import dev.streamfuse.GenerationConfig
import dev.streamfuse.app.R
import java.math.BigDecimal
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.collectLatest
import kotlinx.coroutines.flow.drop
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch

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

/**
 * What the user chose. A field that is missing is the bundle's default.
 *
 * @property bundle the name of the bundle in use.
 * @property catalog the address of the catalogue that was asked for last.
 */
data class Settings(
    val numbers: Map<Field, BigDecimal> = emptyMap(),
    val speculation: Speculation = Speculation.AUTO,
    val systemPrompt: String = "",
    val bundle: String? = null,
    val catalog: String = "",
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

/** Small texts under names that survive the process. Both functions wait for the disk. */
interface Preferences {
    fun read(): Map<String, String>

    /** Replaces all of them, in one step. */
    fun write(all: Map<String, String>)
}

/**
 * The settings, kept. Making it reads the disk. What is changed counts at once and is written a moment after the last
 * change, so that typing does not write at each letter.
 *
 * @param scope where it is written; not the main thread's.
 */
class SettingsStore(private val preferences: Preferences, scope: CoroutineScope) {
    private val current = MutableStateFlow(load(preferences.read()))
    private var written = current.value // guarded by this store, like what is written
    val settings: StateFlow<Settings> = current.asStateFlow()

    /** The name of the bundle in use. */
    var bundle: String?
        get() = current.value.bundle
        set(value) = current.update { it.copy(bundle = value) }

    /** The address of the catalogue that was asked for last. */
    var catalog: String
        get() = current.value.catalog
        set(value) = current.update { it.copy(catalog = value) }

    init {
        scope.launch {
            current.drop(1).collectLatest {
                delay(WRITE_AFTER_MS)
                flush()
            }
        }
    }

    /** Takes what the user typed. AppException where it is no such number; then nothing has changed. */
    fun set(field: Field, text: String) {
        val number = field.read(text)
        current.update { it.copy(numbers = if (number == null) it.numbers - field else it.numbers + (field to number)) }
    }

    fun set(speculation: Speculation) = current.update { it.copy(speculation = speculation) }

    fun setSystemPrompt(text: String) = current.update { it.copy(systemPrompt = text) }

    /** Everything as the bundle has it. */
    fun clear() = current.update { Settings(bundle = it.bundle, catalog = it.catalog) }

    /** Writes now what is not written yet. */
    @Synchronized
    fun flush() {
        val now = current.value
        if (now == written) return
        preferences.write(kept(now))
        written = now
    }

    companion object {
        private const val WRITE_AFTER_MS = 300L

        fun kept(settings: Settings): Map<String, String> = buildMap {
            for ((field, number) in settings.numbers) put(field.name, number.toPlainString())
            put("speculation", settings.speculation.name)
            put("system", settings.systemPrompt)
            settings.bundle?.let { put("bundle", it) }
            put("catalog", settings.catalog)
        }

        private fun load(kept: Map<String, String>) = Settings(
            numbers = buildMap {
                for (field in Field.entries) {
                    // What an older version of the app kept may be out of range by now.
                    val number = runCatching { field.read(kept[field.name].orEmpty()) }.getOrNull()
                    if (number != null) put(field, number)
                }
            },
            speculation = Speculation.entries.firstOrNull { it.name == kept["speculation"] } ?: Speculation.AUTO,
            systemPrompt = kept["system"].orEmpty(),
            bundle = kept["bundle"],
            catalog = kept["catalog"].orEmpty(),
        )
    }
}
