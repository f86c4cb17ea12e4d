package dev.streamfuse

import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json

/**
 * Whether this device computes what the exporter recorded in the bundle: [Model.selfTest]. docs/bundle.md explains the
 * figures.
 *
 * @property passed whether no method is noisier than the exporter measured.
 * @property equal whether all outputs have the recorded bits, as those of the backend `kernels` must.
 * @property tokensEqual whether the best token of every node is the recorded one.
 * @property ms duration in milliseconds.
 * @property methods the figures by method.
 * @property differences one sentence for each figure that differs.
 */
@Serializable
public data class SelfTest(
    public val passed: Boolean,
    public val equal: Boolean,
    @SerialName("tokens_equal") public val tokensEqual: Boolean,
    public val ms: Double,
    public val methods: Map<String, Parity>,
    public val differences: List<String>,
) {
    /**
     * The outputs of one method, compared with the recorded ones.
     *
     * @property snrDb signal-to-noise ratio of its logits in dB; 200 if they are equal.
     * @property expectedSnrDb the ratio that the exporter measured. Up to 6 dB less is no fault.
     * @property maxAbsDifference the largest difference of two logits.
     * @property nodes number of recorded nodes.
     * @property keptAgreement share of them that the pruner keeps.
     * @property top1Agreement share of the kept ones with the recorded best token.
     * @property streamTop1Agreement the same share of streams.
     */
    @Serializable
    public data class Parity(
        public val passed: Boolean,
        public val equal: Boolean,
        @SerialName("snr_db") public val snrDb: Double,
        @SerialName("expected_snr_db") public val expectedSnrDb: Double,
        @SerialName("max_abs_difference") public val maxAbsDifference: Double,
        public val nodes: Int,
        @SerialName("kept_agreement") public val keptAgreement: Double,
        @SerialName("top1_agreement") public val top1Agreement: Double,
        @SerialName("stream_top1_agreement") public val streamTop1Agreement: Double,
    )

    internal companion object {
        fun of(report: String): SelfTest = Json.decodeFromString(serializer(), report)
    }
}
