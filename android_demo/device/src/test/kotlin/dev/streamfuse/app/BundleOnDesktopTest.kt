package dev.streamfuse.app

import java.io.File
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config

/** The app's test for a device, with Robolectric for the device and the demo bundle of the repository. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35])
class BundleOnDesktopTest : BundleOnDeviceTest() {
    override val folder get() = File(System.getProperty("streamfuse.root")!!, "build/demo")
}
