package dev.streamfuse.app

import androidx.test.platform.app.InstrumentationRegistry
import dev.streamfuse.GenerationConfig
import dev.streamfuse.Model
import dev.streamfuse.Options
import dev.streamfuse.StreamFuse
import java.io.File
import kotlinx.coroutines.runBlocking
import org.junit.After
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Assume.assumeTrue
import org.junit.Before
import org.junit.Test

/**
 * A bundle on a phone or in an emulator: its passes give what the exporter recorded, and drafts change no token.
 *
 *     adb push build/demo /data/local/tmp/
 *     ./gradlew :app:connectedDebugAndroidTest      (`gradle wrapper` writes gradlew)
 *
 * `-Pandroid.testInstrumentationRunnerArguments.bundle=FOLDER` names another folder of the device.
 */
open class BundleOnDeviceTest {
    protected open val folder get() = File(InstrumentationRegistry.getArguments().getString("bundle") ?: "/data/local/tmp/demo")
    private lateinit var model: Model

    @Before fun load() {
        assertTrue("the library is not built for this processor", StreamFuse.isSupported)
        assertTrue("there is no bundle in $folder: adb push build/demo $folder", File(folder, "manifest.json").isFile)
        val cache = InstrumentationRegistry.getInstrumentation().targetContext.cacheDir
        model = StreamFuse.loadBlocking(folder, Options(cacheDir = cache))
    }

    @After fun close() {
        if (::model.isInitialized) model.close()
    }

    @Test fun passesGiveTheRecordedResults() {
        val test = model.selfTest()
        assertTrue(test.differences.joinToString("\n"), test.passed)
    }

    @Test fun draftsChangeNoToken() {
        assumeTrue("the bundle only decodes plainly", model.widths.isNotEmpty())
        val plain = GenerationConfig(maxNewTokens = 48, temperature = 0.0, ignoreEos = true, enableSpeculativeDecoding = false)
        val answers = listOf(plain, plain.copy(enableSpeculativeDecoding = true, width = model.widths.first())).map { config ->
            model.completion().use { session -> runBlocking { session.generate("The capital of France is", config) } }
        }
        assertEquals(answers[0].text, answers[1].text)
        assertEquals(48, answers[1].statistics.generatedTokens)
        assertTrue("nothing was drafted", answers[1].statistics.draftTokensProposed > 0)
    }
}
