package dev.streamfuse

import java.nio.Buffer
import java.nio.ByteBuffer
import java.nio.ByteOrder

private const val STEP_BYTES = 24
private const val MOST = Int.MAX_VALUE.toLong()

/**
 * The memory through which one handle speaks with its native half: options go in, handles and steps come out. The
 * places are those of `Step` and `Options` in streamfuse_jni.cpp.
 */
internal class Reply {
    val buffer: ByteBuffer = ByteBuffer.allocateDirect(1024).order(ByteOrder.nativeOrder())
    private val place: Buffer = buffer // by this type, whose `position` is the same on every Android
    private val bytes = ByteArray(buffer.capacity() - STEP_BYTES)

    /** The handle that was made. */
    val handle: Long get() = buffer.getLong(8)

    /** The step that was made; [longText] gives its text where there is too much of it for this memory. */
    fun step(longText: () -> ByteArray?): Piece {
        val length = buffer.getLong(0)
        val text = when {
            length == 0L -> ""
            length > bytes.size -> longText().text()
            else -> {
                place.position(STEP_BYTES)
                buffer.get(bytes, 0, length.toInt())
                String(bytes, 0, length.toInt(), Charsets.UTF_8)
            }
        }
        return Piece(text, buffer.getLong(8).toInt().takeIf { it >= 0 }, Source.entries[buffer.getInt(16)])
    }

    /** Whether the bundle that gave the [config] has a chat template. */
    val canChat: Boolean get() = buffer.getInt(68) != 0

    /**
     * The numbers of a configuration; one that is put must be complete but for the width. A bundle's counts may be
     * larger than an Int: there are fewer tokens than that, in a vocabulary as in a context, so the largest means the
     * same.
     */
    var config: GenerationConfig
        get() = GenerationConfig(
            maxNewTokens = buffer.getLong(0).coerceAtMost(MOST).toInt(),
            temperature = buffer.getDouble(8),
            topK = buffer.getLong(16).coerceAtMost(MOST).toInt(),
            topP = buffer.getDouble(24),
            minP = buffer.getDouble(32),
            repetitionPenalty = buffer.getDouble(40),
            seed = buffer.getLong(48),
            ignoreEos = buffer.getInt(56) != 0,
            enableSpeculativeDecoding = buffer.getInt(60) != 0,
        )
        set(value) {
            buffer.putLong(0, value.maxNewTokens!!.toLong())
            buffer.putDouble(8, value.temperature!!)
            buffer.putLong(16, value.topK!!.toLong())
            buffer.putDouble(24, value.topP!!)
            buffer.putDouble(32, value.minP!!)
            buffer.putDouble(40, value.repetitionPenalty!!)
            buffer.putLong(48, value.seed!!)
            buffer.putInt(56, if (value.ignoreEos!!) 1 else 0)
            buffer.putInt(60, if (value.enableSpeculativeDecoding!!) 1 else 0)
            buffer.putInt(64, value.width ?: 0)
        }
}
