/// The fields of a manifest that apps may need (docs/bundle.md); the rest is in `Model.manifest`.
public struct Manifest: Sendable, Codable {
  /// Facts about a model.
  public struct Model: Sendable, Codable {
    /// For example `HuggingFaceTB/SmolLM2-135M-Instruct`.
    public let name: String
    /// The licence of the weights; nil if the bundle does not state it.
    public let license: String?
    /// Number of weights.
    public let parameters: Int
  }
  /// Which engine the graphs are for: `executorch`, `coreml` or `onnx`.
  public let target: String
  /// Which delegate: `kernels`, `xnnpack`, `mlprogram`, ...
  public let backend: String
  /// Facts about the model.
  public let model: Model
}
