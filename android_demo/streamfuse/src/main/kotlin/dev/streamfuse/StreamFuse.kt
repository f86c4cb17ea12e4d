package dev.streamfuse

import java.io.File
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.withContext

/**
 * How a model is loaded and run.
 *
 * @property threads of the engine; null lets it choose (on phones: the big cores).
 * @property cacheDir a folder where the measured costs of passes are kept, for example Android's `context.cacheDir`.
 *   Null: each chat measures anew before its first drafted answer, about 100 ms.
 * @property checkHashes reads the whole bundle once and compares its SHA-256 sums. Turn it off only for a bundle that
 *   was checked when it was installed.
 * @property publicKey the line that `streamfuse keys` wrote: 64 hexadecimal digits. A bundle that this key did not sign
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
    /**
     * Opens and checks the bundle in [folder], and loads its graphs. It takes from a tenth of a second to some seconds:
     * call it off the main thread, or use [loadInBackground].
     *
     * @throws StreamFuseException where the bundle cannot be used here, or is not signed with the key of [options]; its
     *   sentence names file and field.
     */
    @JvmStatic
    @JvmOverloads
    public fun load(folder: File, options: Options = Options()): Model {
        val started = System.nanoTime()
        val reply = Reply()
        val key = options.publicKey?.encodeToByteArray()
        val code = Native.openModel(folder.bytes(), options.threads ?: 0, options.checkHashes, key, reply.buffer)
        val handle = reply.handle
        if (handle == 0L) throw failure(code, "")
        try {
            if (code != Native.OK) throw failure(code, Native.modelError(handle).text())
            return Model(handle, folder, options, started)
        } catch (error: Throwable) {
            Native.closeModel(handle)
            throw error
        }
    }

    /** [load] on the dispatcher of [options]. Where the caller is cancelled meanwhile, the model is closed again. */
    public suspend fun loadInBackground(folder: File, options: Options = Options()): Model {
        var model: Model? = null
        try {
            return withContext(options.dispatcher) { load(folder, options).also { model = it } }
        } catch (error: Throwable) {
            model?.close()
            throw error
        }
    }
}

/** A path for the native half, which reads it up to a zero byte. */
internal fun File.bytes(): ByteArray {
    require('\u0000' !in path) { "a path cannot hold a zero character" }
    return path.encodeToByteArray()
}
