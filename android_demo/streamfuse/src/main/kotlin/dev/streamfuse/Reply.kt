package dev.streamfuse

import java.nio.Buffer
import java.nio.ByteBuffer
import java.nio.ByteOrder

private const val STEP_BYTES = 24
private const val MOST = Int.MAX_VALUE.toLong()

/**
 * The buffer that one handle shares with its native side: options in, handles and steps out. The layout is that of
 * `Step` and `Options` in streamfuse_jni.cpp.
 */
internal class Reply {
    val buffer: ByteBuffer = ByteBuffer.allocateDirect(1024).order(ByteOrder.nativeOrder())
    private val place: Buffer = buffer // by this type, whose `position` is the same on every Android
    private val bytes = ByteArray(buffer.capacity() - STEP_BYTES)

    /** The new handle. */
    val handle: Long get() = buffer.getLong(8)

    /** The result of an estimate. */
    val estimate: MemoryEstimate
        get() = MemoryEstimate(buffer.getLong(0), buffer.getLong(8), buffer.getLong(16))

    /** A message behind the first 24 bytes, closed by a zero byte. */
    val message: String
        get() {
            place.position(STEP_BYTES)
            buffer.get(bytes)
            return String(bytes, 0, bytes.indexOf(0), Charsets.UTF_8)
        }

    /** The code of a function that returns something else. */
    val code: Int get() = buffer.getInt(0)

    /** The new step; [longText] returns its text if it is too long for this buffer. */
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
        val token = buffer.getLong(8).toInt().takeIf { it >= 0 }
        return Piece(text, token, Source.entries[buffer.getInt(16)], Channel.entries[buffer.getInt(20)])
    }

    /** Whether the bundle of [config] has a chat template. */
    val canChat: Boolean get() = buffer.getInt(68) != 0

    /**
     * The numbers of a configuration; when it is set, every field except the width must have a value. A bundle's counts
     * may exceed an Int; no vocabulary or context is that large, so the maximum Int is equivalent.
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
