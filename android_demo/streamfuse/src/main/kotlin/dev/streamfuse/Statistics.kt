package dev.streamfuse

import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException
import kotlinx.serialization.Transient
import kotlinx.serialization.json.Json

/**
 * Counters and times of one answer. The keys of its JSON are the same in every language (docs/runtime.md); times are in
 * milliseconds and cover the generation loop only, not the app's work between two tokens.
 *
 * @property promptTokens length of the whole prompt, including the part already in the cache.
 * @property generatedTokens delivered tokens.
 * @property modelLoadMs load time of the model.
 * @property measureMs measuring the latency of passes on this device; 0 if it was known already.
 * @property prefillMs prefill of the prompt.
 * @property firstTokenMs from the start to the first token, [measureMs] and [prefillMs] included.
 * @property decodeTokensPerSecond delivered tokens per second after prefill.
 * @property prefillTokensPerSecond [prefilledTokens] per second of [prefillMs].
 * @property rounds verify passes; 0 in plain decoding.
 * @property targetForwardPasses verify and decode passes.
 * @property draftTokensProposed drafted tokens, accepted or not.
 * @property draftTokensAccepted drafted tokens that were delivered.
 * @property acceptanceRate accepted / proposed.
 * @property acceptancePerDepth per depth of the draft, the share of passes that delivered a drafted token of that
 *   depth.
 * @property meanAcceptedTokens tokens per pass; plain decoding has 1.
 * @property timeMs milliseconds per part of the loop: prefill, draft, verify, accept, commit, sample.
 * @property widths passes per method.
 * @property speculative whether drafts were to be used.
 * @property fallbackReason why they were not, or why passes were plain; null if neither happened.
 * @property finishReason `stop` (a stop token or stop string), `length` ([GenerationConfig.maxNewTokens]), `context`
 *   (the context is full), `incomplete` (one of these two limits came before [GenerationConfig.schema] or another
 *   constraint allowed an end) or `stopped` (ended early, from outside or by an error).
 * @property acceptancePerRank acceptance rate per rank of a candidate among its siblings.
 * @property fallbackReasons plain passes that ran instead of drafted ones, per reason.
 * @property costMs expected latency of a full pass of each method at the start of the answer.
 * @property acceptedBySource accepted drafted tokens per source.
 * @property prefilledTokens tokens of the prompt that were not in the cache.
 * @property streamsPasses passes that computed only streams.
 * @property nearTies choices so close that another engine's rounding could change them.
 * @property forcedTokens drafted tokens that the constraint forces.
 * @property refusedDrafts candidates for drafts that the constraint refused.
 * @property maskMs part of `accept` in [timeMs]: computing which tokens the constraint allows next.
 * @property droppedTurns turns that [ContextPolicy.DROP_OLDEST] dropped for this answer.
 * @property rereadTokens tokens that were prefilled again although the cache had them before: of the remaining turns,
 *   if turns were dropped, or of a prefix that layers with a sliding window, convolution or linear attention cannot go
 *   back to.
 * @property prefixTokens tokens of the prompt whose cache came from a stored prefix of the bundle.
 * @property prefixRefused why a stored prefix of the bundle was not used; null if none was refused.
 */
@Serializable
public data class Statistics(
    @SerialName("prompt_tokens") val promptTokens: Int = 0,
    @SerialName("generated_tokens") val generatedTokens: Int = 0,
    @SerialName("model_load_ms") val modelLoadMs: Double = 0.0,
    @SerialName("measure_ms") val measureMs: Double = 0.0,
    @SerialName("prefill_ms") val prefillMs: Double = 0.0,
    @SerialName("first_token_ms") val firstTokenMs: Double = 0.0,
    @SerialName("decode_token_per_sec") val decodeTokensPerSecond: Double = 0.0,
    @SerialName("prefill_token_per_sec") val prefillTokensPerSecond: Double = 0.0,
    val rounds: Int = 0,
    @SerialName("target_forward_passes") val targetForwardPasses: Int = 0,
    @SerialName("draft_tokens_proposed") val draftTokensProposed: Int = 0,
    @SerialName("draft_tokens_accepted") val draftTokensAccepted: Int = 0,
    @SerialName("acceptance_rate") val acceptanceRate: Double = 0.0,
    @SerialName("acceptance_per_depth") val acceptancePerDepth: List<Double> = emptyList(),
    @SerialName("mean_accepted_tokens") val meanAcceptedTokens: Double = 0.0,
    @SerialName("time_ms") val timeMs: Map<String, Double?> = emptyMap(),
    val widths: Map<String, Int> = emptyMap(),
    val speculative: Boolean = false,
    @SerialName("fallback_reason") val fallbackReason: String? = null,
    @SerialName("finish_reason") val finishReason: String = "",
    @SerialName("acceptance_per_rank") val acceptancePerRank: List<Double> = emptyList(),
    @SerialName("fallback_reasons") val fallbackReasons: Map<String, Int> = emptyMap(),
    @SerialName("cost_ms") val costMs: Map<String, Double?> = emptyMap(),
    @SerialName("accepted_by_source") val acceptedBySource: Map<String, Int> = emptyMap(),
    @SerialName("prefilled_tokens") val prefilledTokens: Int = 0,
    @SerialName("streams_passes") val streamsPasses: Int = 0,
    @SerialName("near_ties") val nearTies: Int = 0,
    @SerialName("forced_tokens") val forcedTokens: Int = 0,
    @SerialName("refused_drafts") val refusedDrafts: Int = 0,
    @SerialName("mask_ms") val maskMs: Double = 0.0,
    @SerialName("dropped_turns") val droppedTurns: Int = 0,
    @SerialName("reread_tokens") val rereadTokens: Int = 0,
    @SerialName("prefix_tokens") val prefixTokens: Int = 0,
    @SerialName("prefix_refused") val prefixRefused: String? = null,
) {
    /** The JSON object as the core wrote it, including keys of later versions. */
    @Transient
    public var json: String = ""
        private set

    public companion object {
        private val reader = Json {
            ignoreUnknownKeys = true
            coerceInputValues = true // the core writes null for what is not a finite number
        }

        /**
         * Parses the JSON object of any language's statistics; unknown keys are ignored.
         *
         * @throws SerializationException if it is not such an object.
         */
        public fun of(json: String): Statistics =
            reader.decodeFromString(serializer(), json).also { it.json = json }
    }
}
