package dev.streamfuse.app

import android.annotation.TargetApi
import android.app.Notification
import android.app.NotificationChannel
import android.app.NotificationManager
import android.app.PendingIntent
import android.app.job.JobInfo
import android.app.job.JobParameters
import android.app.job.JobScheduler
import android.app.job.JobService
import android.content.ComponentName
import android.content.Context
import android.content.Intent
import android.os.Build
import android.os.PersistableBundle
import android.util.Log
import dev.streamfuse.CatalogEntry
import dev.streamfuse.app.model.Offer
import dev.streamfuse.app.model.OfferState
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.flow.distinctUntilChanged
import kotlinx.coroutines.flow.map
import kotlinx.coroutines.launch

/**
 * Keeps the process running while a bundle is downloaded: a user-initiated data transfer job, from Android 14 on. Its
 * notification shows the progress. The download itself is that of the bundles screen; where the system has ended the
 * process meanwhile, the job starts it again and the download resumes. After a temporary failure, such as no connection or
 * an overloaded server, the system reruns the job later.
 */
@TargetApi(Build.VERSION_CODES.UPSIDE_DOWN_CAKE)
open class DownloadJob : JobService() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Main.immediate)
    private val running = mutableMapOf<Int, Job>() // used on the main thread only

    override fun onCreate() {
        super.onCreate()
        val channel = NotificationChannel(CHANNEL, getString(R.string.downloads), NotificationManager.IMPORTANCE_LOW)
        getSystemService(NotificationManager::class.java).createNotificationChannel(channel)
    }

    override fun onStartJob(params: JobParameters): Boolean {
        val id = params.extras.getString(ENTRY) ?: return false
        val catalog = params.extras.getString(CATALOG) ?: return false
        show(params, notification(null)) // within ten seconds, or the system ends the job
        running[params.jobId] = scope.launch {
            val bundles = (application as App).parts().bundles
            val showing = launch {
                bundles.state.map { state -> state.offers.find { it.entry.id == id } }
                    .distinctUntilChanged { old, new -> percent(old) == percent(new) }
                    .collect { show(params, notification(it)) }
            }
            val isDone = bundles.finish(id, catalog)
            showing.cancel()
            running -= params.jobId
            jobFinished(params, !isDone) // the system reschedules it with backoff
        }
        return true
    }

    /** The system ends the job: what has arrived is kept, and the job begins again, unless the user ended it. */
    override fun onStopJob(params: JobParameters): Boolean {
        running.remove(params.jobId)?.cancel()
        val id = params.extras.getString(ENTRY)
        scope.launch { if (id != null) (application as App).parts().bundles.pause(id) }
        return params.stopReason != JobParameters.STOP_REASON_USER
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    /** Shows the job's notification, or changes it. */
    protected open fun show(params: JobParameters, notification: Notification) =
        setNotification(params, params.jobId, notification, JOB_END_NOTIFICATION_POLICY_REMOVE)

    private fun percent(offer: Offer?): Int {
        val done = (offer?.state as? OfferState.Downloading)?.doneBytes ?: return -1
        return (100 * done / maxOf(1, offer.entry.bytes)).toInt()
    }

    private fun notification(offer: Offer?): Notification {
        val screen = Intent(this, BundlesActivity::class.java)
        val openScreen = PendingIntent.getActivity(this, 0, screen, PendingIntent.FLAG_IMMUTABLE)
        val percent = percent(offer)
        return Notification.Builder(this, CHANNEL)
            .setSmallIcon(R.drawable.down)
            .setContentTitle(offer?.entry?.title ?: getString(R.string.downloads))
            .setContentIntent(openScreen)
            .setProgress(100, maxOf(0, percent), percent < 0)
            .setOnlyAlertOnce(true)
            .build()
    }

    companion object {
        private const val TAG = "DownloadJob"
        private const val ENTRY = "entry"
        private const val CATALOG = "catalog"
        private const val CHANNEL = "downloads"

        /**
         * Schedules the job of a download that the user has started, of an entry of the catalogue at this address.
         * Before Android 14 there is no such job. If the system refuses the job, the download runs without it, as long as
         * the process does.
         */
        fun schedule(context: Context, entry: CatalogEntry, catalog: String) {
            if (Build.VERSION.SDK_INT < Build.VERSION_CODES.UPSIDE_DOWN_CAKE) return
            val extras = PersistableBundle()
            extras.putString(ENTRY, entry.id)
            extras.putString(CATALOG, catalog)
            val job = JobInfo.Builder(idOf(entry), ComponentName(context, DownloadJob::class.java))
                .setUserInitiated(true)
                .setRequiredNetworkType(JobInfo.NETWORK_TYPE_ANY) // a NetworkRequest excludes VPNs by default
                .setEstimatedNetworkBytes(entry.bytes, 0)
                .setExtras(extras)
                .build()
            val result = context.getSystemService(JobScheduler::class.java).schedule(job)
            if (result == JobScheduler.RESULT_FAILURE) {
                Log.w(TAG, "The system refused the job of ${entry.name}: its download ends when the process does")
            }
        }

        /** Ends the job of a download that the user has paused. */
        fun cancel(context: Context, entry: CatalogEntry) {
            if (Build.VERSION.SDK_INT < Build.VERSION_CODES.UPSIDE_DOWN_CAKE) return
            context.getSystemService(JobScheduler::class.java).cancel(idOf(entry))
        }

        /** The id of the job of an entry: the first digits of the hash that identifies it. */
        fun idOf(entry: CatalogEntry): Int = entry.id.take(7).toInt(16)
    }
}
