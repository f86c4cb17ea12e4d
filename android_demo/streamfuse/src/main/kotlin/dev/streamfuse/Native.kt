package dev.streamfuse

import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.file.Files
import kotlin.math.abs

/**
 * The functions of `src/main/cpp/streamfuse_jni.cpp`, once [NativeLibrary] is loaded. Texts are UTF-8, paths too.
 * Functions that return an Int give a code of core/streamfuse_core.h, negated if the JNI code itself ran out of memory;
 * arrays are null if memory runs out.
 */
internal object Native {
    const val OK = 0
    const val OUT_OF_MEMORY = -7
    const val END = 100

    @JvmStatic external fun openModel(
        folder: ByteArray,
        threads: Int,
        checkHashes: Boolean,
        publicKey: ByteArray?,
        costFolder: ByteArray?,
        memoryFile: ByteArray?,
        progress: Long,
        reply: ByteBuffer,
    ): Int

    @JvmStatic external fun newProgress(): Long
    @JvmStatic external fun freeProgress(progress: Long)
    @JvmStatic external fun progress(progress: Long): Double
    @JvmStatic external fun cancelProgress(progress: Long)

    /** Writes three sizes in bytes to [reply] or, if it fails, the error message after them. */
    @JvmStatic external fun estimate(folder: ByteArray, reply: ByteBuffer): Int

    /** If it fails, writes the error message to [reply], at the same offset as [estimate]. */
    @JvmStatic external fun verifyManifest(folder: ByteArray, publicKey: ByteArray?, reply: ByteBuffer): Int
    @JvmStatic external fun closeModel(model: Long)
    @JvmStatic external fun modelError(model: Long): ByteArray?
    @JvmStatic external fun manifest(model: Long): ByteArray?
    @JvmStatic external fun description(model: Long): ByteArray?
    @JvmStatic external fun forget(model: Long): Int

    /** The report; null if it fails, with the code in the reply. */
    @JvmStatic external fun selfTest(model: Long, reply: ByteBuffer): ByteArray?

    /** The number of tokens; an error code, negated, where it fails. */
    @JvmStatic external fun countTokens(model: Long, text: ByteArray): Long
    @JvmStatic external fun loadMs(model: Long): Double
    @JvmStatic external fun defaults(model: Long, reply: ByteBuffer): Int
    @JvmStatic external fun backends(): ByteArray?

    /** [texts]: system message, history, tools, template variables, task adapter. */
    @JvmStatic external fun newSession(
        model: Long,
        chat: Boolean,
        texts: Array<ByteArray?>,
        contextPolicy: Int,
        reply: ByteBuffer,
    ): Int

    @JvmStatic external fun freeSession(session: Long)
    @JvmStatic external fun error(session: Long): ByteArray?
    @JvmStatic external fun prepare(session: Long): Int

    /** The log-probabilities as floats; puts the code into the reply. */
    @JvmStatic external fun score(session: Long, text: ByteArray, answer: ByteArray, reply: ByteBuffer): ByteArray?

    /** [texts]: prompt or results of tools, stop strings, schema, regular expression, grammar, tool choice. */
    @JvmStatic external fun start(
        session: Long,
        isResults: Boolean,
        texts: Array<ByteArray?>,
        stopIds: LongArray,
        options: ByteBuffer,
    ): Int

    @JvmStatic external fun next(session: Long, reply: ByteBuffer): Int
    @JvmStatic external fun longText(session: Long): ByteArray?

    /** Puts the code into the reply. */
    @JvmStatic external fun top(session: Long, reply: ByteBuffer): ByteArray?
    @JvmStatic external fun stop(session: Long)
    @JvmStatic external fun finish(session: Long): Int
    @JvmStatic external fun statistics(session: Long): ByteArray?
    @JvmStatic external fun messages(session: Long): ByteArray?
    @JvmStatic external fun toolCalls(session: Long): ByteArray?
    @JvmStatic external fun usedTokens(session: Long): Long
    @JvmStatic external fun reset(session: Long): Int
    @JvmStatic external fun trim(session: Long): Int
    @JvmStatic external fun save(session: Long, path: ByteArray): Int
    @JvmStatic external fun restore(session: Long, path: ByteArray): Int
}

/** The library with the functions of [Native], loaded once per process. */
internal object NativeLibrary {
    private val failure: UnsatisfiedLinkError? by lazy {
        try {
            // An app has the library in its package; a desktop JVM is told where it lies, or has it in streamfuse-jvm.
            val file = System.getProperty("streamfuse.library.path") ?: unpacked()
            if (file == null) System.loadLibrary("streamfuse_jni") else System.load(file)
            null
        } catch (error: UnsatisfiedLinkError) {
            error
        } catch (error: IOException) {
            UnsatisfiedLinkError("it cannot be unpacked: $error").apply { initCause(error) }
        }
    }

    /** The path of the library for this processor that streamfuse-jvm has among its resources, unpacked; null: none. */
    private fun unpacked(): String? {
        val system = System.getProperty("os.name").orEmpty().lowercase()
        val processor = System.getProperty("os.arch").let { if (it == "amd64") "x86_64" else it }
        val resources = "native/$system-$processor"
        val names = javaClass.getResource("$resources/files")?.readText()?.lines()?.filter(String::isNotEmpty)
        if (names.isNullOrEmpty()) return null
        val folder = Files.createTempDirectory("streamfuse").toFile()
        folder.deleteOnExit() // after the files in it, which are registered later
        for (name in names) {
            val file = folder.resolve(name)
            file.deleteOnExit()
            javaClass.getResourceAsStream("$resources/$name").use { from ->
                if (from == null) throw IOException("$resources/$name is not in the jar")
                Files.copy(from, file.toPath())
            }
        }
        return folder.resolve(names.first()).path
    }

    val isLoaded: Boolean get() = failure == null

    /** @throws StreamFuseException ([ErrorCode.UNSUPPORTED]) on every call if the library cannot be loaded. */
    fun require() {
        val cause = failure ?: return
        val processor = System.getProperty("os.arch")
        val sentence = "libstreamfuse_jni cannot be loaded on this device ($processor): ${cause.message}; usually it was " +
            "not built for this processor. Check StreamFuse.isSupported first"
        throw StreamFuseException(ErrorCode.UNSUPPORTED, sentence).apply { initCause(cause) }
    }
}

/** Texts for the native side. */
internal fun bytesOf(vararg texts: String?): Array<ByteArray?> = Array(texts.size) { texts[it]?.encodeToByteArray() }

/** Decodes UTF-8 from the native side; null means out of memory. */
internal fun ByteArray?.text(): String = this?.decodeToString() ?: throw failure(Native.OUT_OF_MEMORY) { "" }

/** The exception for a code; [sentence] returns the handle's error message. */
internal fun failure(code: Int, sentence: () -> String): StreamFuseException =
    StreamFuseException(ErrorCode.of(abs(code)), if (code < 0) "memory is out" else sentence())

/** The number of tokens that [Native.countTokens] replied with. Its error codes are negated, whoever found an error. */
internal fun tokenCount(reply: Long, sentence: () -> String): Int {
    if (reply >= 0) return reply.toInt()
    val code = reply.toInt()
    throw failure(if (code == Native.OUT_OF_MEMORY) code else -code, sentence)
}

/** A path for the native side, as UTF-8 without a zero byte. */
internal fun File.bytes(): ByteArray {
    require('\u0000' !in path) { "a path cannot hold a zero character" }
    return path.encodeToByteArray()
}
