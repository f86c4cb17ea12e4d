package dev.streamfuse

import java.io.File

/** The lines of the pages' samples, where the compiler sees them (ReadmeTest). */
@Suppress("unused")
private class ReadmeSample(private val folder: File, private val cacheDir: File, private val file: File) {
    suspend fun tenLines() {
        val model = StreamFuse.loadInBackground(folder, Options(cacheDir = cacheDir))
        val chat = model.chat(system = "You answer briefly.")
        chat.send("Why is the sky blue?").collect { print(it.text) }
        println(chat.statistics?.meanAcceptedTokens)
        model.close()
    }

    suspend fun options(chat: Chat) {
        val warm = GenerationConfig(maxNewTokens = 40, temperature = 0.7, seed = 1)
        val answer = chat.generate("Name three primes.", warm)
        val plain = chat.generate("And three more?", GenerationConfig(enableSpeculativeDecoding = false))
        println(chat.fallbackReason) // off by request
        check(answer != plain)
    }

    fun saving(model: Model, chat: Chat) {
        chat.save(file) // for example in onStop, off the main thread
        val later = model.chat()
        later.restore(file)
        println(later.messages.last().content)
    }
}
