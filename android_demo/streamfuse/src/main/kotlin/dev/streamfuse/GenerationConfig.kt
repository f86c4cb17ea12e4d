package dev.streamfuse

import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable

/**
 * Options of one answer. A null field takes the chat's default, then the bundle's ([Model.defaults]).
 *
 * The names are the same in every language and on the command line. Ranges are checked when the answer begins: a
 * [StreamFuseException] with [ErrorCode.BAD_ARGUMENT] names the field and its range.
 *
 * @property maxNewTokens maximum number of tokens to generate; exported bundles default to 128.
 * @property temperature 0 is greedy; higher is more varied.
 * @property topK sample among the k most probable tokens; 0: off.
 * @property topP sample among the most probable tokens of this total probability; 1: off.
 * @property minP drop tokens below this share of the most probable one; 0: off.
 * @property repetitionPenalty above 1, tokens seen before are less probable; 1: off.
 * @property seed the same seed gives the same text; with the backend `kernels`, also with and without speculation. Its
 *   64 bits count as unsigned.
 * @property stop the text ends before any of these.
 * @property stopTokenIds tokens that end the text, in addition to the model's own.
 * @property ignoreEos treat the model's end-of-sequence tokens as ordinary tokens.
 * @property enableSpeculativeDecoding false: one token per pass, the baseline. With the backend `kernels` the text is
 *   the same. Null or true: drafts are used if the bundle has them; if they are not used, [Statistics.fallbackReason]
 *   says why.
 * @property width nodes per verify pass, one of [Model.widths]. Null or 0: chosen for each pass by the latency measured
 *   on this device.
 * @property logProbs compute the log-probability of each token: [Piece.logProb]. The text is the same.
 * @property topLogProbs number of most probable tokens to return per position, at most 20: [Piece.topLogProbs]. More
 *   than 0 implies [logProbs].
 * @property schema the answer is JSON that fits this JSON schema, for example of [schemaOf]. At most one of [schema],
 *   [regex] and [grammar] is set; docs/structured.md says what is supported.
 * @property regex the whole answer matches this regular expression.
 * @property grammar the answer is in the language of this grammar, in Lark's syntax.
 * @property toolChoice of a chat with tools: `auto`, any text, in which calls fit their tools' parameters; `none`, text
 *   without calls; `required` or the name of a tool, one call. With [schema], [regex] or [grammar], `auto` means an
 *   answer that fits it, or one call. Null: `auto`, or `none` with one of these.
 */
@Serializable
public data class GenerationConfig(
    @SerialName("max_new_tokens") val maxNewTokens: Int? = null,
    val temperature: Double? = null,
    @SerialName("top_k") val topK: Int? = null,
    @SerialName("top_p") val topP: Double? = null,
    @SerialName("min_p") val minP: Double? = null,
    @SerialName("repetition_penalty") val repetitionPenalty: Double? = null,
    val seed: Long? = null,
    val stop: List<String>? = null,
    @SerialName("stop_token_ids") val stopTokenIds: List<Int>? = null,
    @SerialName("ignore_eos") val ignoreEos: Boolean? = null,
    @SerialName("speculative") val enableSpeculativeDecoding: Boolean? = null,
    val width: Int? = null,
    @SerialName("log_probs") val logProbs: Boolean? = null,
    @SerialName("top_log_probs") val topLogProbs: Int? = null,
    val schema: String? = null,
    val regex: String? = null,
    val grammar: String? = null,
    @SerialName("tool_choice") val toolChoice: String? = null,
) {
    private val isConstrained get() = schema != null || regex != null || grammar != null || toolChoice != null

    /**
     * This configuration, with its null fields taken from [defaults]. [schema], [regex], [grammar] and [toolChoice] are
     * taken together: only if all are null.
     */
    public fun over(defaults: GenerationConfig): GenerationConfig = GenerationConfig(
        maxNewTokens = maxNewTokens ?: defaults.maxNewTokens,
        temperature = temperature ?: defaults.temperature,
        topK = topK ?: defaults.topK,
        topP = topP ?: defaults.topP,
        minP = minP ?: defaults.minP,
        repetitionPenalty = repetitionPenalty ?: defaults.repetitionPenalty,
        seed = seed ?: defaults.seed,
        stop = stop ?: defaults.stop,
        stopTokenIds = stopTokenIds ?: defaults.stopTokenIds,
        ignoreEos = ignoreEos ?: defaults.ignoreEos,
        enableSpeculativeDecoding = enableSpeculativeDecoding ?: defaults.enableSpeculativeDecoding,
        width = width ?: defaults.width,
        logProbs = logProbs ?: defaults.logProbs,
        topLogProbs = topLogProbs ?: defaults.topLogProbs,
        schema = (if (isConstrained) this else defaults).schema,
        regex = (if (isConstrained) this else defaults).regex,
        grammar = (if (isConstrained) this else defaults).grammar,
        toolChoice = (if (isConstrained) this else defaults).toolChoice,
    )
}
