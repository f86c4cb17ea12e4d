package dev.streamfuse.app

import android.Manifest
import android.app.Notification
import android.app.job.JobInfo
import android.app.job.JobParameters
import android.app.job.JobScheduler
import android.content.pm.PackageManager
import android.net.NetworkCapabilities
import android.os.Build
import android.os.PersistableBundle
import dev.streamfuse.app.model.OfferState
import dev.streamfuse.app.model.Phase
import dev.streamfuse.testing.Publisher
import java.io.File
import java.util.concurrent.CountDownLatch
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotNull
import org.junit.Assert.assertNull
import org.junit.Assert.assertSame
import org.junit.Assert.assertTrue
import org.junit.Test
import org.robolectric.Robolectric
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import org.robolectric.shadow.api.Shadow
import org.robolectric.shadows.ShadowLog
import org.robolectric.util.ReflectionHelpers

/** A job that shows what it would give the system, which Robolectric does not have. */
class ShownJob : DownloadJob() {
    val shown = mutableListOf<Notification>()

    override fun show(params: JobParameters, notification: Notification) {
        shown += notification
    }
}

/** Downloads while the app is left: the job that is scheduled, and what it does in this process and in another one. */
@Config(qualifiers = Device.PHONE)
class DownloadJobTest : Device() {
    private val scheduler get() = app.getSystemService(JobScheduler::class.java)!!

    private fun parameters(job: JobInfo, stopped: Int = 0): JobParameters =
        Shadow.newInstanceOf(JobParameters::class.java).also {
            ReflectionHelpers.setField(it, "jobId", job.id)
            ReflectionHelpers.setField(it, "extras", job.extras as PersistableBundle)
            ReflectionHelpers.setField(it, "mStopReason", stopped)
        }

    /** The bundles screen with the catalogue of this publisher. */
    private fun openCatalog(publisher: Publisher): BundlesActivity = open(BundlesActivity::class.java).get().apply {
        type(R.id.catalog, publisher.address)
        press(R.id.catalog_show)
        until { all().any { it.id == R.id.download && it.isShown } }
    }

    /** The bundles screen with a download that stops in the middle of the model until [gate] opens. */
    private fun openDownload(publisher: Publisher, gate: CountDownLatch): BundlesActivity {
        publisher.publish("demo" to Publisher.contentOf(built("demo").canonicalFile))
        publisher.halfway = { if (it == "demo/model.pte") gate.await() }
        return openCatalog(publisher).apply { press(R.id.download) }
    }

    private fun offer() = parts.bundles.state.value.offers.single()

    @Test fun `a download has a job of the user's that shows a notification at once`() {
        Publisher().use { publisher ->
            val gate = CountDownLatch(1)
            openDownload(publisher, gate)
            val job = scheduler.allPendingJobs.single()
            assertTrue(job.isUserInitiated)
            assertEquals(offer().entry.bytes, job.estimatedNetworkDownloadBytes)
            val network = job.requiredNetwork
            assertNotNull(network)
            assertFalse("a VPN will do", network!!.hasCapability(NetworkCapabilities.NET_CAPABILITY_NOT_VPN))
            val facts = app.packageManager.getPackageInfo(app.packageName, PackageManager.GET_PERMISSIONS)
            val permissions = facts.requestedPermissions.orEmpty().toList()
            assertTrue("$permissions: a phone refuses the job", Manifest.permission.ACCESS_NETWORK_STATE in permissions)
            val service = Robolectric.buildService(ShownJob::class.java).create().get()
            assertTrue(service.onStartJob(parameters(job)))
            assertTrue("at once, before anything is known", service.shown.isNotEmpty())
            gate.countDown()
        }
    }

    @Test fun `a download requests notifications once, and goes on if they are refused`() {
        Publisher().use { publisher ->
            val gate = CountDownLatch(1)
            val screen = openDownload(publisher, gate)
            val request = shadowOf(screen).lastRequestedPermission
            assertEquals(listOf(Manifest.permission.POST_NOTIFICATIONS), request.requestedPermissions.toList())
            assertEquals("before the answer", 1, scheduler.allPendingJobs.size)
            val facts = app.packageManager.getPackageInfo(app.packageName, PackageManager.GET_PERMISSIONS)
            assertTrue(Manifest.permission.POST_NOTIFICATIONS in facts.requestedPermissions.orEmpty())

            val refused = intArrayOf(PackageManager.PERMISSION_DENIED)
            screen.onRequestPermissionsResult(request.requestCode, request.requestedPermissions, refused)
            shadowOf(app.packageManager).setShouldShowRequestPermissionRationale(Manifest.permission.POST_NOTIFICATIONS, true)
            screen.pressSoon(R.id.pause)
            until { offer().state is OfferState.Paused }
            screen.press(R.id.download)
            assertSame("a second request", request, shadowOf(screen).lastRequestedPermission)
            val service = Robolectric.buildService(ShownJob::class.java).create().get()
            assertTrue(service.onStartJob(parameters(scheduler.allPendingJobs.single())))
            gate.countDown()
            until { shadowOf(service).isJobFinished }
            assertEquals(OfferState.Installed, offer().state)
        }
    }

    @Test fun `notifications that are allowed are not requested`() {
        shadowOf(app).grantPermissions(Manifest.permission.POST_NOTIFICATIONS)
        Publisher().use { publisher ->
            publisher.publish("demo" to Publisher.bundle(emptyMap()))
            val screen = openCatalog(publisher)
            screen.press(R.id.download)
            assertEquals(1, scheduler.allPendingJobs.size)
            assertNull(shadowOf(screen).lastRequestedPermission)
            until { offer().error != null }
        }
    }

    @Test fun `a pause ends the job, and a job that the system ends is begun again, also in a new process`() {
        Publisher().use { publisher ->
            val gate = CountDownLatch(1)
            val screen = openDownload(publisher, gate)
            val job = scheduler.allPendingJobs.single()
            screen.pressSoon(R.id.pause)
            assertNull(scheduler.getPendingJob(job.id))
            until { offer().state is OfferState.Paused }
            publisher.goesAwayHalfway("demo/model.pte", gate)
            screen.press(R.id.download)
            val service = Robolectric.buildService(ShownJob::class.java).create().get()
            service.onStartJob(parameters(job))
            until { (offer().state as? OfferState.Downloading)?.let { it.doneBytes > 50_000_000 } == true }
            assertFalse(service.onStopJob(parameters(job, JobParameters.STOP_REASON_USER)))
            assertTrue(service.onStopJob(parameters(job, JobParameters.STOP_REASON_CONSTRAINT_CONNECTIVITY)))
            gate.countDown()
            until { offer().state is OfferState.Paused }

            publisher.halfway = {}
            endedParts += parts
            app.replace(Parts(app))
            parts.settings.catalog = "https://models.example/catalog.json" // another one has been shown since
            publisher.requests.clear()
            val again = Robolectric.buildService(ShownJob::class.java).create().get()
            again.onStartJob(parameters(job))
            until { shadowOf(again).isJobFinished }
            assertEquals(listOf("demo"), File(app.filesDir, "bundles").list().orEmpty().toList())
            assertEquals("no screen has been shown since", Phase.LOADING, parts.chat.state.value.phase)
            assertTrue("${publisher.requests}", publisher.requests.single { it.first == "demo/model.pte" }.second != null)
        }
    }

    @Test fun `a job whose server fails is begun again later, until the catalogue is gone or its download is discarded`() {
        Publisher().use { publisher ->
            publisher.publish("demo" to Publisher.bundle(mapOf("model.pte" to ByteArray(1000))))
            publisher.statuses["demo/model.pte"] = ArrayDeque(listOf(404))
            val screen = openCatalog(publisher)
            screen.press(R.id.download)
            until { offer().error != null && offer().state is OfferState.Paused }
            val job = scheduler.allPendingJobs.single()
            endedParts += parts
            app.replace(Parts(app)) // the system has ended the process
            for (status in listOf(503, 404)) {
                publisher.statuses["catalog.json"] = ArrayDeque(listOf(status))
                val service = Robolectric.buildService(ShownJob::class.java).create().get()
                service.onStartJob(parameters(job))
                until { shadowOf(service).isJobFinished }
                assertEquals("$status", status == 503, shadowOf(service).isRescheduleNeeded)
            }
            assertEquals("no model is loaded for a download", Phase.LOADING, parts.chat.state.value.phase)

            openCatalog(publisher).pressSoon(R.id.discard)
            until { offer().state is OfferState.Available }
            assertNull(scheduler.getPendingJob(job.id))
        }
    }

    @Test fun `a job that the system refuses is logged, and the download runs without it`() {
        Publisher().use { publisher ->
            publisher.publish("demo" to Publisher.bundle(emptyMap()))
            val screen = openCatalog(publisher)
            shadowOf(scheduler).failOnJob(DownloadJob.idOf(offer().entry))
            screen.press(R.id.download)
            assertEquals(0, scheduler.allPendingJobs.size)
            val warning = ShadowLog.getLogsForTag("DownloadJob").single().msg
            assertTrue(warning, "refused the job of demo" in warning)
            until { offer().error != null }
            assertTrue("${publisher.requests}", publisher.requests.any { it.first == "demo/manifest.json" })
        }
    }

    @Test fun `before Android 14 there is no such job and no notification`() {
        ReflectionHelpers.setStaticField(Build.VERSION::class.java, "SDK_INT", Build.VERSION_CODES.TIRAMISU)
        Publisher().use { publisher ->
            publisher.publish("demo" to Publisher.bundle(emptyMap()))
            val screen = openCatalog(publisher)
            screen.press(R.id.download)
            assertEquals(0, scheduler.allPendingJobs.size)
            assertNull(shadowOf(screen).lastRequestedPermission)
            until { offer().error != null }
        }
    }
}
