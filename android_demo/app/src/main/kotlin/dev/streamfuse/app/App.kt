package dev.streamfuse.app

import android.app.Activity
import android.app.ActivityManager
import android.app.Application
import android.content.Context
import android.content.pm.ApplicationInfo
import android.os.Build
import android.os.Bundle
import android.os.PowerManager
import android.os.StrictMode
import dev.streamfuse.BundleStore
import dev.streamfuse.Options
import dev.streamfuse.app.model.BenchmarkModel
import dev.streamfuse.app.model.BundlesModel
import dev.streamfuse.app.model.ChatListModel
import dev.streamfuse.app.model.ChatModel
import dev.streamfuse.app.model.DeviceCheck
import dev.streamfuse.app.model.Engine
import dev.streamfuse.app.model.Heat
import dev.streamfuse.app.model.LibraryEngine
import dev.streamfuse.app.model.Phase
import dev.streamfuse.app.model.Power
import dev.streamfuse.app.model.Preferences
import dev.streamfuse.app.model.SavedChats
import dev.streamfuse.app.model.SettingsStore
import java.io.File
import java.io.IOException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Deferred
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.async
import kotlinx.coroutines.cancel
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.launch
import kotlinx.coroutines.withTimeoutOrNull

/**
 * What the screens share; it lives as long as the process. Making it reads the disk.
 *
 * @param graceMs how long an answer goes on when the app is left. Android freezes a process about ten seconds later, and
 *   the chat must be saved by then.
 */
class Parts(context: Context, engine: Engine = LibraryEngine(context.cacheDir), private val graceMs: Long = 7_000) {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.IO)
    private val store = BundleStore(File(context.filesDir, "bundles")) { engine.open(it, Options()).close() }
    val settings = SettingsStore(KeptPreferences(context), scope)
    private val saved = SavedChats(File(context.filesDir, "chats"))
    private val memory = File(context.noBackupFilesDir, "answers")
    val chat = ChatModel(engine, store::folder, memory, settings, saved, scope)
    val chats = ChatListModel(saved, chat, scope)
    val bundles = BundlesModel(
        store, engine, settings, chat, scope, { entry, catalog -> DownloadJob.schedule(context, entry, catalog) },
        { DownloadJob.cancel(context, it) },
    )
    val benchmark = BenchmarkModel(chat, settings, scope, ::peakBytes) { powerOf(context) }
    val check = DeviceCheck(chat, scope)
    private var leaving: Job? = null

    init {
        context.contentResolver.releaseGrants() // left by earlier processes; this one has no import yet
    }

    /**
     * The last screen is hidden. Saves the words so far at once, since the process may be killed from now on. An answer
     * goes on for [graceMs]; then it ends and is saved with the model's cache.
     */
    fun leave() {
        benchmark.leave()
        chat.keep()
        leaving = scope.launch {
            settings.flush()
            withTimeoutOrNull(graceMs) { chat.state.first { it.phase != Phase.WRITING } }
            chat.leave()
        }
    }

    /** A screen is shown again. */
    fun back() {
        leaving?.cancel()
        chat.wake()
    }

    /** Memory is short and no screen is visible: closes the model, which the next screen loads again. */
    fun rest() {
        leaving?.cancel()
        benchmark.leave()
        chat.rest()
    }

    suspend fun close() {
        benchmark.cancel()
        chat.close()
        scope.cancel()
    }
}

/** Heat and battery saver; null before Android 10, which has no thermal status. */
private fun powerOf(context: Context): Power? {
    if (Build.VERSION.SDK_INT < Build.VERSION_CODES.Q) return null
    val manager = context.getSystemService(PowerManager::class.java)
    val heat = when (manager.currentThermalStatus) {
        PowerManager.THERMAL_STATUS_NONE -> Heat.NORMAL
        PowerManager.THERMAL_STATUS_LIGHT, PowerManager.THERMAL_STATUS_MODERATE -> Heat.WARM
        else -> Heat.HOT
    }
    return Power(heat, manager.isPowerSaveMode)
}

/** The peak memory of this process in bytes, mapped files included; null if the kernel does not report it. */
private fun peakBytes(): Long? = try {
    File("/proc/self/status").useLines { lines ->
        lines.firstOrNull { it.startsWith("VmHWM:") }?.filter(Char::isDigit)?.toLongOrNull()?.times(1024)
    }
} catch (_: IOException) {
    null
}

/** Android's preferences. */
class KeptPreferences(context: Context) : Preferences {
    private val kept = context.getSharedPreferences("settings", Context.MODE_PRIVATE)

    override fun read(): Map<String, String> = kept.all.mapNotNull { (key, value) -> (value as? String)?.let { key to it } }.toMap()

    override fun write(all: Map<String, String>) {
        val edit = kept.edit().clear()
        for ((key, value) in all) edit.putString(key, value)
        edit.commit() // off the main thread; what apply() leaves to do, screens wait for when they stop
    }
}

class App : Application() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.IO)
    @Volatile private var made: Parts? = null

    /** Made when the first screen asks, off the main thread. */
    private val making: Deferred<Parts> = scope.async(start = CoroutineStart.LAZY) { Parts(this@App).also { made = it } }

    suspend fun parts(): Parts = made ?: making.await()

    /** Parts of another process, for tests. */
    fun replace(parts: Parts) {
        made = parts
    }

    override fun onCreate() {
        super.onCreate()
        if (applicationInfo.flags and ApplicationInfo.FLAG_DEBUGGABLE != 0) {
            StrictMode.setThreadPolicy(mainThreadPolicy().penaltyLog().build())
        }
        registerActivityLifecycleCallbacks(Visible({ made?.back() }, { made?.leave() }))
    }

    override fun onTrimMemory(level: Int) {
        super.onTrimMemory(level)
        // In the foreground the model is what the memory is for; its weights are pages of a file, which the system drops.
        if (level < TRIM_MEMORY_BACKGROUND) return
        // From Android 14 on, every process gets this level before it is frozen, whether memory is short or not.
        if (Build.VERSION.SDK_INT < Build.VERSION_CODES.UPSIDE_DOWN_CAKE || isMemoryLow()) made?.rest()
    }

    private fun isMemoryLow(): Boolean {
        val memory = ActivityManager.MemoryInfo()
        getSystemService(ActivityManager::class.java).getMemoryInfo(memory)
        return memory.lowMemory
    }
}

/** Detects files and network on the main thread. Debug builds log violations; tests fail on them. */
fun mainThreadPolicy(): StrictMode.ThreadPolicy.Builder =
    StrictMode.ThreadPolicy.Builder().detectDiskReads().detectDiskWrites().detectNetwork()

/** Reports when the first screen becomes visible and the last is hidden; a rotation is neither. */
private class Visible(private val back: () -> Unit, private val left: () -> Unit) : Application.ActivityLifecycleCallbacks {
    private var started = 0

    override fun onActivityStarted(activity: Activity) {
        if (started++ == 0) back()
    }

    override fun onActivityStopped(activity: Activity) {
        started--
        if (started == 0 && !activity.isChangingConfigurations) left()
    }

    override fun onActivityCreated(activity: Activity, state: Bundle?) = Unit

    override fun onActivityResumed(activity: Activity) = Unit

    override fun onActivityPaused(activity: Activity) = Unit

    override fun onActivitySaveInstanceState(activity: Activity, state: Bundle) = Unit

    override fun onActivityDestroyed(activity: Activity) = Unit
}
