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
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch

enum class Speculation(val word: Int) { AUTO(R.string.speculation_auto), ON(R.string.speculation_on), OFF(R.string.speculation_off) }

/** A choice of numbers under a name. */
enum class Preset(val word: Int, vararg val numbers: Pair<Field, String>) {
    PRECISE(R.string.precise, Field.TEMPERATURE to "0"),
    BALANCED(R.string.balanced, Field.TEMPERATURE to "0.7", Field.TOP_P to "0.9"),
    CREATIVE(R.string.creative, Field.TEMPERATURE to "1", Field.MIN_P to "0.05"),
    ;

    /** Its numbers, and no other one that changes what is sampled. */
    fun over(settings: Settings) = settings.copy(
        numbers = settings.numbers - Field.SAMPLING + numbers.associate { (field, number) -> field to BigDecimal(number) },
    )

    fun isIn(settings: Settings) = over(settings) == settings
}

/** Settings that load the model again. */
data class LoadOptions(val threads: Int?, val remembersAnswers: Boolean, val dropsOldest: Boolean)

/**
 * What the user chose. A field that is missing is the bundle's default.
 *
 * @property showsDrafts whether drafted words are tinted.
 * @property dropsOldest whether a full context drops its oldest turns, instead of refusing the next question.
 * @property remembersAnswers whether later answers are drafted from earlier ones, which the device keeps.
 * @property bundle the name of the bundle in use.
 * @property chat the id of the chat that was open last, saved or not.
 * @property catalog the address of the catalogue that was asked for last.
 */
data class Settings(
    val numbers: Map<Field, BigDecimal> = emptyMap(),
    val speculation: Speculation = Speculation.AUTO,
    val systemPrompt: String = "",
    val showsDrafts: Boolean = false,
    val dropsOldest: Boolean = false,
    val remembersAnswers: Boolean = false,
    val bundle: String? = null,
    val chat: String? = null,
    val catalog: String = "",
) {
    val loading: LoadOptions get() = LoadOptions(numbers[Field.THREADS]?.toInt(), remembersAnswers, dropsOldest)

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

/** For another answer to the same question. Greedy decoding would repeat itself, so this one is sampled. */
fun GenerationConfig.another(defaults: GenerationConfig?, seed: Long): GenerationConfig {
    val isGreedy = (temperature ?: defaults?.temperature ?: 0.0) == 0.0
    val sampled = if (isGreedy) Preset.BALANCED.over(Settings()).config() else this
    return copy(temperature = sampled.temperature, topP = topP ?: sampled.topP, seed = seed)
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

    /** The id of the chat that was open last, saved or not. */
    var chat: String?
        get() = current.value.chat
        set(value) = current.update { it.copy(chat = value) }

    /** The address of the catalogue that was asked for last. */
    var catalog: String
        get() = current.value.catalog
        set(value) = current.update { it.copy(catalog = value) }

    init {
        scope.launch {
            current.collectLatest { // the first one too: it may have changed before this began
                delay(WRITE_AFTER_MS)
                flush()
            }
        }
    }

    /** Takes what the user typed. AppException where it is no such number; then nothing has changed. */
    fun set(field: Field, text: String) {
        val number = field.read(text)?.stripTrailingZeros()
        current.update { it.copy(numbers = if (number == null) it.numbers - field else it.numbers + (field to number)) }
    }

    fun set(preset: Preset) = current.update(preset::over)

    fun set(speculation: Speculation) = current.update { it.copy(speculation = speculation) }

    fun setSystemPrompt(text: String) = current.update { it.copy(systemPrompt = text) }

    fun setShowsDrafts(on: Boolean) = current.update { it.copy(showsDrafts = on) }

    fun setDropsOldest(on: Boolean) = current.update { it.copy(dropsOldest = on) }

    fun setRemembersAnswers(on: Boolean) = current.update { it.copy(remembersAnswers = on) }

    /** Everything as the bundle has it. */
    fun clear() = current.update { Settings(bundle = it.bundle, chat = it.chat, catalog = it.catalog) }

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
            put("drafts", settings.showsDrafts.toString())
            put("drop", settings.dropsOldest.toString())
            put("remember", settings.remembersAnswers.toString())
            settings.bundle?.let { put("bundle", it) }
            settings.chat?.let { put("chat", it) }
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
            showsDrafts = kept["drafts"].toBoolean(),
            dropsOldest = kept["drop"].toBoolean(),
            remembersAnswers = kept["remember"].toBoolean(),
            bundle = kept["bundle"],
            chat = kept["chat"],
            catalog = kept["catalog"].orEmpty(),
        )
    }
}
