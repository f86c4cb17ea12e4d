package dev.streamfuse

import java.io.File
import java.util.concurrent.TimeUnit.SECONDS
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** A device that the native library is not built for is told so, in a virtual machine that has no such library. */
class UnsupportedTest {
    @Test
    fun `without a native library isSupported is false, and each load fails with that reason`() {
        val java = File(System.getProperty("java.home"), "bin/java").path
        val command = listOf(
            java, "-Dstreamfuse.library.path=/nowhere/libstreamfuse_jni.so", "-cp", System.getProperty("java.class.path"),
            "dev.streamfuse.UnsupportedMain",
        )
        val process = ProcessBuilder(command).redirectErrorStream(true).start()
        val lines = process.inputStream.bufferedReader().readLines()
        assertTrue(process.waitFor(60, SECONDS))
        assertEquals("supported: false", lines.firstOrNull(), lines.joinToString("\n"))
        assertEquals(3, lines.size, lines.joinToString("\n"))
        for (line in lines.drop(1)) assertTrue(line.startsWith("UNSUPPORTED: libstreamfuse_jni cannot be loaded"), line)
    }
}

/** What [UnsupportedTest] runs. */
object UnsupportedMain {
    @JvmStatic
    fun main(arguments: Array<String>) {
        println("supported: ${StreamFuse.isSupported}")
        repeat(2) {
            val error = failureOf<StreamFuseException> { StreamFuse.loadBlocking(File("nowhere")) }
            println("${error.code}: ${error.message!!.lines().first()}")
        }
    }
}
