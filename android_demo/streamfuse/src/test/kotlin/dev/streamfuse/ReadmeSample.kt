package dev.streamfuse

import java.io.File
import kotlinx.coroutines.flow.collect

/** The lines of the pages' samples, where the compiler sees them (ReadmeTest). */
@Suppress("unused")
private class ReadmeSample(private val cacheDir: File, private val folder: File, private val file: File) {
    suspend fun tenLines() {
        val model = StreamFuse.loadInBackground(folder, Options(cacheDir = cacheDir))
        val chat = model.chat(system = "You answer briefly.")
        chat.send("Why is the sky blue?").collect { print(it.text) }
        println(chat.statistics?.meanAcceptedTokens)
        model.close()
    }
}
