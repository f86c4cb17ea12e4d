package dev.streamfuse.app

import android.app.Activity
import android.app.Application
import android.content.Context
import android.os.Bundle
import dev.streamfuse.app.model.BenchmarkModel
import dev.streamfuse.app.model.BundleFolder
import dev.streamfuse.app.model.BundlesModel
import dev.streamfuse.app.model.ChatModel
import dev.streamfuse.app.model.Engine
import dev.streamfuse.app.model.LibraryEngine
import dev.streamfuse.app.model.Preferences
import dev.streamfuse.app.model.SavedChat
import dev.streamfuse.app.model.SettingsStore
import java.io.File
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel

/** What the screens share; it lives as long as the process. */
class Parts(context: Context, engine: Engine = LibraryEngine(context.cacheDir)) {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)
    private val bundleFolder = BundleFolder(File(context.filesDir, "bundles"), engine)
    val settings = SettingsStore(KeptPreferences(context))
    val chat = ChatModel(engine, bundleFolder::path, settings, SavedChat(File(context.filesDir, "chat")), scope)
    val bundles = BundlesModel(bundleFolder, settings, chat, scope)
    val benchmark = BenchmarkModel(chat, settings, scope)

    /** The user has left the app, which may be ended at any moment now. */
    fun leave() {
        benchmark.cancel()
        chat.leave()
    }

    suspend fun close() {
        benchmark.cancel()
        chat.close()
        scope.cancel()
    }
}

/** Android's preferences. */
class KeptPreferences(context: Context) : Preferences {
    private val kept = context.getSharedPreferences("settings", Context.MODE_PRIVATE)

    override fun read(key: String): String? = kept.getString(key, null)

    override fun write(key: String, value: String?) = kept.edit().putString(key, value).apply()
}

class App : Application() {
    private var made: Parts? = null

    /** Made when the first screen asks. */
    var parts: Parts
        get() = made ?: Parts(this).also { made = it }
        set(value) {
            made = value
        }

    override fun onCreate() {
        super.onCreate()
        registerActivityLifecycleCallbacks(Visible { made?.leave() })
    }
}

/** Tells when the last screen has gone; a screen that turns is not gone. */
private class Visible(private val left: () -> Unit) : Application.ActivityLifecycleCallbacks {
    private var started = 0

    override fun onActivityStarted(activity: Activity) {
        started++
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
