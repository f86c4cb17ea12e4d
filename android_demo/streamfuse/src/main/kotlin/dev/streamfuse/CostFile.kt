package dev.streamfuse

import java.io.File
import java.security.MessageDigest

/**
 * Where the core keeps what passes cost: one file per bundle and device. [text] says what a pass's cost depends on;
 * engines.py has the same for Python.
 */
internal class CostFile(cacheDir: File?, identity: String, stamp: String, threads: Int?) {
    val text: String = listOf(
        "${System.getProperty("os.name")} ${System.getProperty("os.arch")}",
        processor(),
        "${Runtime.getRuntime().availableProcessors()} cores",
        "threads ${threads ?: "default"}",
        stamp,
    ).joinToString(", ")

    /** Null where nothing is kept. Its folder is made; it may be read-only. */
    val file: File? = cacheDir?.let { folder ->
        folder.mkdirs()
        val sum = MessageDigest.getInstance("SHA-256").digest("$identity\n$text".encodeToByteArray())
        File(folder, sum.joinToString("") { "%02x".format(it) }.take(24) + ".costs")
    }

    private companion object {
        private val names = listOf("model name", "Hardware", "CPU part")

        /** What Linux says of the processor: its name, or the numbers of its kinds of cores. */
        fun processor(): String {
            val facts = runCatching { File("/proc/cpuinfo").readLines() }.getOrDefault(emptyList())
                .map { it.substringBefore(':').trim() to it.substringAfter(':').trim() }
            val name = names.firstOrNull { known -> facts.any { it.first == known } }
            return facts.filter { it.first == name }.map { it.second }.distinct().joinToString(" ")
        }
    }
}
