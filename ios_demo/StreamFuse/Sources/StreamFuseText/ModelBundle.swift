import CStreamFuse
import CStreamFuseBundle
import Foundation
import StreamFuseCore

/// A bundle folder that `streamfuse export` wrote: checked, with its tokenizer and drafting tables. It never changes, so
/// any task may use it.
public final class ModelBundle: @unchecked Sendable {  // sf_bundle may be used by any threads
  /// The library's handle.
  private let handle: OpaquePointer

  /// The facts that the loop needs.
  public let spec: ModelSpec
  /// What answers take that do not say otherwise.
  public let defaults: GenerationConfig
  /// The manifest as JSON text, as it lies in the file.
  public let manifest: Data
  /// What an app may want to know of the manifest.
  public let facts: Manifest
  /// Where the graphs are: `model.pte`, or the folder `model.mlpackage`.
  public let graph: URL

  /// Opens and checks a bundle. This reads the whole folder where `checkHashes` is true or there is a `publicKey`, so it
  /// takes a moment.
  ///
  /// `publicKey` is the line that `streamfuse bundle keygen` wrote; a bundle that this key did not sign is refused.
  ///
  /// Throws the code `badFile` or `badTables` (`badArgument` for a key that is none), and one line that names file and field.
  public init(folder: URL, checkHashes: Bool = true, publicKey: String? = nil) throws {
    var made: OpaquePointer?
    do {
      try check(
        folder.withUnsafeFileSystemRepresentation { path in
          if let publicKey { sf_bundle_open_signed(path, publicKey, &made) } else { sf_bundle_open(path, checkHashes ? 1 : 0, &made) }
        },
        sf_bundle_error(made))
      var spec = sf_spec()
      spec.size = MemoryLayout<sf_spec>.size
      try check(sf_bundle_spec(made, &spec), sf_bundle_error(made))
      var options = sf_options()
      options.size = MemoryLayout<sf_options>.size
      try check(sf_bundle_defaults(made, &options), sf_bundle_error(made))
      self.spec = ModelSpec(spec)
      self.defaults = GenerationConfig(options)
      self.manifest = Data(String(cString: sf_bundle_manifest(made)).utf8)
      self.facts = try JSONDecoder().decode(Manifest.self, from: manifest)
      self.graph = URL(filePath: String(cString: sf_bundle_graph(made)))
    } catch {
      sf_bundle_close(made)
      throw error
    }
    self.handle = made!
  }

  deinit { sf_bundle_close(handle) }

  /// Whether the bundle has a chat template.
  public var canChat: Bool { sf_bundle_can_chat(handle) != 0 }

  /// The drafting tables, which live as long as this bundle.
  public func tables() throws -> DraftTables {
    var tensors: UnsafePointer<sf_tensor>?
    var count: Int32 = 0
    try check(sf_bundle_tensors(handle, &tensors, &count), sf_bundle_error(handle))
    return DraftTables(tensors: UnsafeBufferPointer(start: tensors, count: Int(count)), owner: self)
  }

  /// The text of one session, which begins with these messages.
  public func makeText(_ messages: [Message] = []) throws -> any SessionText {
    try BundleText(handle, bundle: self, messages: messages)
  }
}

/// What an app may want to know of a manifest (docs/bundle.md); the rest is in `ModelBundle.manifest`.
public struct Manifest: Sendable, Codable {
  /// A model's facts.
  public struct Model: Sendable, Codable {
    /// For example `HuggingFaceTB/SmolLM2-135M-Instruct`.
    public let name: String
    /// The licence of the weights; nil where the bundle does not know.
    public let license: String?
    /// How many weights it has.
    public let parameters: Int
  }
  /// Which engine the graphs are for: `executorch`, `coreml` or `onnx`.
  public let target: String
  /// Which delegate: `kernels`, `xnnpack`, `mlprogram`, ...
  public let backend: String
  /// The model's facts.
  public let model: Model
}
