package dev.streamfuse

import kotlin.math.exp

/**
 * How probable the model finds a given answer: [Session.score].
 *
 * @property logProbs the log-probability of each token of the answer given all tokens before it, as [Piece.logProb].
 */
public class Score internal constructor(public val logProbs: List<Double>) {
    /** The log-probability of the whole answer: the sum of [logProbs]. */
    public val logProb: Double get() = logProbs.sum()

    /** exp(-[logProb] / number of tokens). Lower is more probable. */
    public val perplexity: Double get() = exp(-logProb / logProbs.size)
}
