package dev.streamfuse

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** What the library can run here, and what a bundle needs of it. */
class BackendsTest {
    @Test
    fun `the library lists its backends, those that it cannot run with the reason`() {
        val found = StreamFuse.backends
        assertTrue("kernels" in found && found["kernels"] == null)
        assertTrue("xnnpack" in found && found["xnnpack"] == null)
        assertFalse("vulkan" in found)
        found["qnn"]?.let { assertTrue("cannot be loaded" in it, it) }
    }

    @Test
    fun `a model names the backend that runs its graphs`() {
        StreamFuse.loadBlocking(Repository.bundle("demo")).use { assertEquals("kernels", it.backend) }
    }
}
