package dev.streamfuse

import java.io.File
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Order
import org.junit.jupiter.api.Test

/** The tests run under -Xcheck:jni, which writes to this log what the native half does wrong; this test comes last. */
@Order(Int.MAX_VALUE)
class JniCheckTest {
    @Test
    fun `the virtual machine reports nothing about the native half`() {
        val log = File(System.getProperty("streamfuse.vmlog")).readText()
        assertTrue("-Xcheck:jni" in log, "the log names the flags that the machine runs with")
        val found = log.lines().filter { "native method" in it || "JNI" in it && "Xcheck" !in it }
        assertEquals(emptyList<String>(), found)
    }
}
