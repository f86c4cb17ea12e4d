package dev.streamfuse

import java.io.File
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Test

/** The sample code of README.md is compiled: it stands in ReadmeSample.kt, line for line. */
class ReadmeTest {
    @Test
    fun `every line of Kotlin in README is compiled with the tests`() {
        val sources = File(Repository.root, "android_demo/streamfuse")
        val sample = File(sources, "src/test/kotlin/dev/streamfuse/ReadmeSample.kt")
        val compiled = sample.readLines().map { it.trim() }.toSet()
        for (page in listOf(File(sources, "README.md"), File(Repository.root, "docs/android.md"))) {
            val samples = Regex("```kotlin\n(.*?)```", RegexOption.DOT_MATCHES_ALL).findAll(page.readText())
            val lines = samples.flatMap { it.groupValues[1].trim().lines() }.map { it.trim() }.toList()
            check(lines.isNotEmpty()) { "$page has no sample" }
            assertEquals(emptyList<String>(), lines.filter { it !in compiled }, page.path)
        }
    }
}
