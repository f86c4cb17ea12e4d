package dev.streamfuse

import java.io.File
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable

/** The lines of the pages' samples, where the compiler sees them (ReadmeTest). */
@Suppress("unused")
private class ReadmeSample(private val folder: File, private val cacheDir: File, private val file: File) {
    suspend fun tenLines() {
        val model = StreamFuse.load(folder, Options(cacheDir = cacheDir))
        val chat = model.chat(system = "You answer briefly.")
        chat.send("Why is the sky blue?").collect { print(it.text) }
        println(chat.statistics?.meanAcceptedTokens)
        model.close()
    }

    suspend fun loading(model: Model) {
        val need = StreamFuse.estimate(folder)
        println("${need.totalBytes(chats = 1) / 1_000_000} MB, of which ${need.cacheBytes / 1_000_000} MB cannot be dropped")
        val loaded = StreamFuse.load(folder) { fraction -> println("${(100 * fraction).toInt()} %") }
        val test = loaded.selfTestInBackground()
        if (!test.passed) println(test.differences)
        check(model !== loaded)
    }

    suspend fun options(chat: Chat) {
        val warm = GenerationConfig(maxNewTokens = 40, temperature = 0.7, seed = 1)
        val answer = chat.generate("Name three primes.", warm)
        val plain = chat.generate("And three more?", GenerationConfig(enableSpeculativeDecoding = false))
        println(chat.fallbackReason) // off by request
        check(answer.text != plain.text)
    }

    suspend fun scores(chat: Chat, review: String) {
        val answers = listOf("positive", "negative", "neutral")
        val scores = answers.associateWith { chat.score("Is this review positive, negative or neutral? $review", it) }
        println(scores.maxBy { it.value.logProb }.key)
    }

    suspend fun objects(chat: Chat) {
        val city = chat.generateObject<City>("Describe the city of Rome.")
        val asked = chat.generate("And Oslo?", GenerationConfig(schema = schemaOf<City>(), maxNewTokens = 100))
        println(asked.statistics.forcedTokens)
        println(city.name + ", " + asked.parsed<City>().name)
        val short = GenerationConfig(regex = "(Yes|No), because [a-z ]{5,60}\\.")
        val yes = chat.generate("Is Oslo a capital?", short).text
        check(yes.isNotEmpty())
    }

    suspend fun tools(model: Model) {
        val weather = tool("get_weather", "The weather forecast of a city.") { query: Query ->
            Forecast(degrees = 20 + query.days, sky = "clear above ${query.city}")
        }
        val chat = model.chat(system = "You answer briefly.", tools = listOf(weather))
        val answer = chat.generate("Do I need an umbrella in Rome?")
        println(answer.text) // the answer after the call and its result; chat.messages contains both

        val manual = model.chat(tools = listOf(weather), maxToolRounds = 0)
        manual.send("Is it warm in Oslo?", GenerationConfig(toolChoice = "required")).collect { piece ->
            if (piece.channel == Channel.ANSWER) print(piece.text)
        }
        val results = manual.toolCalls.map { ToolResult(it.id, "4 degrees in " + it.parsed<Query>().city) }
        println(manual.generate(results).text)
    }

    @Serializable
    enum class Continent { AFRICA, AMERICA, ASIA, EUROPE, OCEANIA }

    @Serializable
    data class City(
        @Description("Its name in English.") @Keywords("""{"maxLength": 30}""") val name: String,
        val continent: Continent,
        @SerialName("is_capital") val isCapital: Boolean,
        val mayor: String? = null,
    )

    @Serializable
    data class Query(@Keywords("""{"maxLength": 40}""") val city: String, val days: Int = 1)

    @Serializable
    data class Forecast(val degrees: Int, val sky: String)

    suspend fun downloading(filesDir: File, key: String) {
        val store = BundleStore(File(filesDir, "bundles"), publicKey = key) // the line in release.pub
        store.sweep()
        val entry = store.catalog("https://models.example/catalog.json").entries.first()
        store.download(entry).collect { progress ->
            if (progress is BundleProgress.Receiving) print(progress.doneBytes)
        }
        val bundle = store.list().first { it.id == entry.id }
        val model = StreamFuse.load(bundle.folder, Options(checkHashes = false))
        model.close()
    }

    fun saving(model: Model, chat: Chat) {
        chat.save(file) // for example in onStop, off the main thread
        val later = model.chat()
        later.restore(file)
        println(later.messages.last().content)
    }
}
