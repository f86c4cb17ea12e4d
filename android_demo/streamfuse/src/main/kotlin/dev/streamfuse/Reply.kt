package dev.streamfuse

import java.nio.Buffer
import java.nio.ByteBuffer
import java.nio.ByteOrder

private const val STEP_BYTES = 32
private const val OPTIONS_BYTES = 128
private const val MOST = Int.MAX_VALUE.toLong()

/**
 * The buffer that one handle shares with its native side: options in, handles and steps out. The layout is that of
 * `Step` and `Options` in streamfuse_jni.cpp; options are an `sf_options` of core/streamfuse_core.h.
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

    /** A message behind the step, closed by a zero byte. */
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
        val logProb = buffer.getFloat(24).takeUnless { it.isNaN() }?.toDouble()
        return Piece(text, token, Source.entries[buffer.getInt(16)], Channel.entries[buffer.getInt(20)], logProb)
    }

    /** Whether the bundle of [config] has a chat template. */
    val canChat: Boolean get() = buffer.getInt(OPTIONS_BYTES) != 0

    /**
     * The numbers of a configuration; when it is set, every field except the width must have a value. A bundle's counts
     * may exceed an Int; no vocabulary or context is that large, so the maximum Int is equivalent.
     */
    var config: GenerationConfig
        get() = GenerationConfig(
            maxNewTokens = buffer.getLong(8).coerceAtMost(MOST).toInt(),
            temperature = buffer.getDouble(16),
            topK = buffer.getLong(24).coerceAtMost(MOST).toInt(),
            topP = buffer.getDouble(32),
            minP = buffer.getDouble(40),
            repetitionPenalty = buffer.getDouble(48),
            seed = buffer.getLong(56),
            ignoreEos = buffer.getInt(76) != 0,
            enableSpeculativeDecoding = buffer.getInt(80) != 0,
            logProbs = buffer.getInt(100) != 0,
            topLogProbs = buffer.getInt(120),
        )
        set(value) {
            for (offset in 0 until OPTIONS_BYTES step 8) buffer.putLong(offset, 0)
            buffer.putLong(8, value.maxNewTokens!!.toLong())
            buffer.putDouble(16, value.temperature!!)
            buffer.putLong(24, value.topK!!.toLong())
            buffer.putDouble(32, value.topP!!)
            buffer.putDouble(40, value.minP!!)
            buffer.putDouble(48, value.repetitionPenalty!!)
            buffer.putLong(56, value.seed!!)
            buffer.putInt(76, if (value.ignoreEos!!) 1 else 0)
            buffer.putInt(80, if (value.enableSpeculativeDecoding!!) 1 else 0)
            buffer.putInt(84, value.width ?: 0)
            buffer.putInt(100, if (value.logProbs!!) 1 else 0)
            buffer.putInt(120, value.topLogProbs!!)
        }
}
