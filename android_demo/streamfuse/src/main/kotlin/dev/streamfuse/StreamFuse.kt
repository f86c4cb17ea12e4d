package dev.streamfuse

import java.io.File
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.withContext
import kotlinx.serialization.json.Json
import org.jetbrains.annotations.Blocking

/**
 * Options for loading and running a model.
 *
 * @property threads of the engine; null lets it choose (on phones, the number of big cores). Bundles for QNN and Vulkan
 *   ignore it, since their delegates choose their own number.
 * @property cacheDir a folder to store measured pass latencies in, for example Android's `context.cacheDir`. Null: the
 *   first drafted answer of each model measures them again, about 250 ms.
 * @property memoryFile a private file that keeps the answers of this model, as token ids, so that answers to later
 *   conversations are drafted from them and similar ones are generated faster. It holds about 0.3 MB, the latest
 *   answers. Put it where backups do not reach, for example in Android's `context.noBackupFilesDir`, and erase it with
 *   [Model.forget]. Null: no answer outlives its session.
 * @property checkHashes whether to read the whole bundle once and compare its SHA-256 sums. Turn it off only for a
 *   bundle that was checked when it was installed.
 * @property publicKey the line that `streamfuse bundle keygen` wrote: 64 hexadecimal digits. A bundle that this key did
 *   not sign is refused, and hashes are checked whatever [checkHashes] says. Null: the signature is not checked.
 * @property dispatcher where answers are generated. A pass keeps its thread busy, so the default is not the few threads
 *   of [Dispatchers.Default].
 */
public data class Options(
    val threads: Int? = null,
    val cacheDir: File? = null,
    val memoryFile: File? = null,
    val checkHashes: Boolean = true,
    val publicKey: String? = null,
    val dispatcher: CoroutineDispatcher = Dispatchers.IO,
)

/** The entry point: opens a bundle that `streamfuse export` wrote. */
public object StreamFuse {
    /** Whether the native library is built for this device. The first call loads it, which takes some milliseconds. */
    @JvmStatic
    public val isSupported: Boolean get() = NativeLibrary.isLoaded

    /**
     * The backends ([Model.backend]) that this library contains, each with null if it can run on this device, or else
     * the reason why not. The first call opens the vendors' libraries, about 30 milliseconds on a desktop.
     *
     * @throws StreamFuseException ([ErrorCode.UNSUPPORTED]) if [isSupported] is false.
     */
    @JvmStatic
    public val backends: Map<String, String?>
        get() {
            NativeLibrary.require()
            return Json.decodeFromString<Map<String, String?>>(Native.backends().text())
        }

    /**
     * Opens and checks the bundle in [folder], and loads its graphs, on the dispatcher of [options]. This takes from a
     * tenth of a second to several seconds. If the caller is cancelled meanwhile, loading ends within a megabyte of
     * hashing or one method, and nothing stays open.
     *
     * @param onProgress called in the caller's context, about 20 times per second, with the fraction that is done: from
     *   0 to 1, never decreasing. The first half is the bytes that are checked, the second the graphs that are loaded.
     * @throws StreamFuseException if the bundle cannot be used here or is not signed with the key of [options]; the
     *   message names file and field. [ErrorCode.UNSUPPORTED] if [isSupported] is false.
     */
    public suspend fun load(
        folder: File,
        options: Options = Options(),
        onProgress: (fraction: Double) -> Unit = {},
    ): Model {
        NativeLibrary.require()
        return LoadProgress().use { progress ->
            loaded(progress, options.dispatcher, onProgress) { open(folder, options, progress) }
        }
    }

    /** [load] on the calling thread, which must not be the main thread. */
    @JvmStatic
    @JvmOverloads
    @Blocking
    public fun loadBlocking(folder: File, options: Options = Options()): Model {
        NativeLibrary.require()
        return open(folder, options, null)
    }

    /**
     * What the bundle in [folder] occupies in memory once it is loaded, from its manifest: no other file is read, and
     * none is checked, so it takes about a millisecond.
     *
     * @throws StreamFuseException ([ErrorCode.BAD_FILE]) if the folder has no valid manifest.
     */
    @JvmStatic
    @Blocking
    public fun estimate(folder: File): MemoryEstimate {
        NativeLibrary.require()
        val reply = Reply()
        val code = Native.estimate(folder.bytes(), reply.buffer)
        if (code != Native.OK) throw failure(code) { reply.message }
        return reply.estimate
    }

    /**
     * Checks the manifest in [folder] and, unless [publicKey] is null, that this key signed it. No other file needs to
     * exist: [BundleStore] calls it before it downloads the others.
     */
    internal fun verifyManifest(folder: File, publicKey: String?) {
        NativeLibrary.require()
        val reply = Reply()
        val code = Native.verifyManifest(folder.bytes(), publicKey?.encodeToByteArray(), reply.buffer)
        if (code != Native.OK) throw failure(code) { reply.message }
    }

    private fun open(folder: File, options: Options, progress: LoadProgress?): Model {
        Leaks.sweep()
        val native = JniModel.open(folder, options, progress)
        val model = try {
            Model(native, folder, options)
        } catch (error: Throwable) {
            native.close()
            throw error
        }
        val (threads, ms) = model.threads to model.loadMs.toInt()
        log.info("${model.name} is loaded from $folder: backend ${model.backend}, $threads threads, $ms ms")
        return model
    }
}

/** Runs [open] on [dispatcher] and returns its result, which is closed if the caller was cancelled meanwhile. */
internal suspend fun <T : AutoCloseable> openedOn(dispatcher: CoroutineDispatcher, open: () -> T): T {
    var opened: T? = null
    try {
        return withContext(dispatcher) { open().also { opened = it } }
    } catch (error: Throwable) {
        withContext(NonCancellable + dispatcher) { opened?.close() }
        throw error
    }
}
