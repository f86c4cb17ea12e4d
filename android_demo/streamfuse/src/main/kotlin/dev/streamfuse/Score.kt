package dev.streamfuse

import kotlin.math.exp

/**
 * How probable the model finds a given answer: [Session.score].
 *
 * @property logProbs the natural logarithm of the probability of each of its tokens after all tokens before it, as
 *   [Piece.logProb].
 */
public class Score internal constructor(public val logProbs: List<Double>) {
    /** The natural logarithm of the probability of the whole answer. */
    public val logProb: Double get() = logProbs.sum()

    /** exp(-[logProb] / number of tokens). */
    public val perplexity: Double get() = exp(-logProb / logProbs.size)
}
