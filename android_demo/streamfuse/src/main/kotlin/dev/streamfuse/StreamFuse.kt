package dev.streamfuse

import java.io.File
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.withContext
import kotlinx.serialization.json.Json
import org.jetbrains.annotations.Blocking

/**
 * How a model is loaded and run.
 *
 * @property threads of the engine; null lets it choose (on phones: as many as there are big cores).
 * @property cacheDir a folder where the measured costs of passes are kept, for example Android's `context.cacheDir`.
 *   Null: a model's first drafted answer measures them anew, about 250 ms.
 * @property checkHashes reads the whole bundle once and compares its SHA-256 sums. Turn it off only for a bundle that
 *   was checked when it was installed.
 * @property publicKey the line that `streamfuse bundle keygen` wrote: 64 hexadecimal digits. A bundle that this key did not sign
 *   is refused, and hashes are checked whatever [checkHashes] says. Null: nobody asks who wrote the bundle.
 * @property dispatcher where answers are generated. A pass keeps its thread busy, so the default is not the few threads
 *   of [Dispatchers.Default].
 */
public data class Options(
    val threads: Int? = null,
    val cacheDir: File? = null,
    val checkHashes: Boolean = true,
    val publicKey: String? = null,
    val dispatcher: CoroutineDispatcher = Dispatchers.IO,
)

/** The way in: opens a bundle that `streamfuse export` wrote. */
public object StreamFuse {
    /** Whether the native library is built for this device. The first call loads it: some milliseconds. */
    @JvmStatic
    public val isSupported: Boolean get() = NativeLibrary.isLoaded

    /**
     * Which backends of a bundle ([Model.backend]) this library can run on this device: null, or the sentence that says
     * why not. One that the library does not have is not in it. The first call opens the vendors' libraries: some 30
     * milliseconds on a desktop.
     *
     * @throws StreamFuseException ([ErrorCode.UNSUPPORTED]) where [isSupported] is false.
     */
    @JvmStatic
    public val backends: Map<String, String?>
        get() {
            NativeLibrary.require()
            return Json.decodeFromString<Map<String, String?>>(Native.backends().text())
        }

    /**
     * Opens and checks the bundle in [folder], and loads its graphs. It takes from a tenth of a second to some seconds:
     * call it off the main thread, or use [loadInBackground].
     *
     * @throws StreamFuseException where the bundle cannot be used here, or is not signed with the key of [options]; its
     *   sentence names file and field. [ErrorCode.UNSUPPORTED] where [isSupported] is false.
     */
    @JvmStatic
    @JvmOverloads
    @Blocking
    public fun load(folder: File, options: Options = Options()): Model {
        NativeLibrary.require()
        Leaks.sweep()
        val native = JniModel.open(folder, options)
        try {
            return Model(native, folder, options)
        } catch (error: Throwable) {
            native.close()
            throw error
        }
    }

    /** [load] on the dispatcher of [options]. Where the caller is cancelled meanwhile, the model is closed again. */
    public suspend fun loadInBackground(folder: File, options: Options = Options()): Model =
        openedOn(options.dispatcher) { load(folder, options) }
}

/** What [open] gives, opened on [dispatcher]; closed again where the caller has been cancelled meanwhile. */
internal suspend fun <T : AutoCloseable> openedOn(dispatcher: CoroutineDispatcher, open: () -> T): T {
    var opened: T? = null
    try {
        return withContext(dispatcher) { open().also { opened = it } }
    } catch (error: Throwable) {
        withContext(NonCancellable + dispatcher) { opened?.close() }
        throw error
    }
}
