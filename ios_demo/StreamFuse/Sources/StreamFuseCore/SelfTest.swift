import Foundation

/// Whether this device computes what the exporter recorded in the bundle: `Model.selfTest`. docs/bundle.md explains the
/// figures.
public struct SelfTest: Sendable, Codable, Hashable {
  /// The outputs of one method, compared with the recorded ones.
  public struct Parity: Sendable, Codable, Hashable {
    /// Whether it is not noisier than the exporter measured.
    public let passed: Bool
    /// Whether all outputs have the recorded bits.
    public let equal: Bool
    /// Signal-to-noise ratio of its logits in dB; 200 if they are equal.
    public let snrDb: Double
    /// The ratio that the exporter measured. Up to 6 dB less is no fault.
    public let expectedSnrDb: Double
    /// Largest difference of a logit.
    public let maxAbsDifference: Double
    /// Number of recorded nodes.
    public let nodes: Int
    /// Share of them that the pruner keeps.
    public let keptAgreement: Double
    /// Share of the kept ones with the recorded best token.
    public let top1Agreement: Double
    /// The same share of streams.
    public let streamTop1Agreement: Double

    /// The names in the report.
    enum CodingKeys: String, CodingKey {
      case passed, equal, nodes
      case snrDb = "snr_db"
      case expectedSnrDb = "expected_snr_db"
      case maxAbsDifference = "max_abs_difference"
      case keptAgreement = "kept_agreement"
      case top1Agreement = "top1_agreement"
      case streamTop1Agreement = "stream_top1_agreement"
    }
  }

  /// Whether no method is noisier than the exporter measured.
  public let passed: Bool
  /// Whether all outputs have the recorded bits, as those of the backend `kernels` must.
  public let equal: Bool
  /// Whether the best token of every node is the recorded one.
  public let tokensEqual: Bool
  /// Duration in milliseconds.
  public let ms: Double
  /// The figures by method.
  public let methods: [String: Parity]
  /// One sentence for each figure that differs.
  public let differences: [String]

  /// The names in the report.
  enum CodingKeys: String, CodingKey {
    case passed, equal, ms, methods, differences
    case tokensEqual = "tokens_equal"
  }

  /// Reads the report of the native library.
  package init(json: Data) throws { self = try JSONDecoder().decode(SelfTest.self, from: json) }
}
