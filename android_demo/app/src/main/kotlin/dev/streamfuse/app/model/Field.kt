package dev.streamfuse.app.model

import dev.streamfuse.GenerationConfig
import dev.streamfuse.app.R
import java.math.BigDecimal
import java.math.RoundingMode

/** What a slider reaches: the usual numbers of a field, which takes others when they are typed. */
class Slider(low: String, high: String, step: String) {
    private val low = BigDecimal(low)
    private val step = BigDecimal(step)

    /** The last of its positions, which begin with 0. */
    val last: Int = ((BigDecimal(high) - this.low) / this.step).toInt()

    fun at(position: Int): BigDecimal = low + step * BigDecimal(position)

    /** The position next to a number. */
    fun positionOf(number: BigDecimal): Int =
        (number - low).divide(step, 0, RoundingMode.HALF_UP).max(BigDecimal.ZERO).min(BigDecimal(last)).toInt()
}

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
    val slider: Slider? = null,
) {
    TEMPERATURE(R.string.temperature, R.string.temperature_help, "0", null, slider = Slider("0", "2", "0.05")),
    TOP_K(R.string.top_k, R.string.top_k_help, "0", "2147483647", whole = true, slider = Slider("0", "100", "1")),
    TOP_P(R.string.top_p, R.string.top_p_help, "0", "1", lowAllowed = false, slider = Slider("0.05", "1", "0.05")),
    MIN_P(R.string.min_p, R.string.min_p_help, "0", "1", slider = Slider("0", "0.5", "0.01")),
    REPETITION_PENALTY(
        R.string.repetition_penalty, R.string.repetition_penalty_help, "0", null, lowAllowed = false,
        slider = Slider("1", "2", "0.05"),
    ),
    SEED(R.string.seed, R.string.seed_help, "0", "9223372036854775807", whole = true),
    MAX_NEW_TOKENS(
        R.string.max_new_tokens, R.string.max_new_tokens_help, "1", "2147483647", whole = true,
        slider = Slider("16", "2048", "16"),
    ),
    THREADS(R.string.threads, R.string.threads_help, "1", "64", whole = true, slider = Slider("1", "16", "1")),
    ;

    /** The number of a bundle's configuration; null where it has none. */
    fun of(config: GenerationConfig): Number? = when (this) {
        TEMPERATURE -> config.temperature
        TOP_K -> config.topK
        TOP_P -> config.topP
        MIN_P -> config.minP
        REPETITION_PENALTY -> config.repetitionPenalty
        SEED -> config.seed
        MAX_NEW_TOKENS -> config.maxNewTokens
        THREADS -> null
    }

    /** The number in a text; null where it is empty. AppException where it is none, or out of range. */
    fun read(text: String): BigDecimal? {
        val plain = text.trim().replace(',', '.')
        if (plain.isEmpty()) return null
        val number = plain.takeIf(DIGITS::matches)?.toBigDecimalOrNull()
            ?: throw AppException(words(R.string.not_a_number, plain))
        val tooLow = number < BigDecimal(low) || !lowAllowed && number.signum() == 0
        val tooHigh = high != null && number > BigDecimal(high)
        val fraction = whole && number.scale() > 0 // 1,000 is no 1: it may be a thousand
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

    companion object {
        /** Those that decide how a token is chosen. */
        val SAMPLING = setOf(TEMPERATURE, TOP_K, TOP_P, MIN_P, REPETITION_PENALTY)

        /** Digits as people write them. An exponent could stand for more digits than there is memory for. */
        private val DIGITS = Regex("""[+-]?([0-9]{1,25}\.?[0-9]{0,12}|\.[0-9]{1,12})""")
    }
}
