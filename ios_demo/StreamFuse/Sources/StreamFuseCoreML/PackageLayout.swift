import Foundation
import StreamFuseCore

/// Where the functions of a package may run.
public enum ComputeUnits: String, Sendable, CaseIterable {
  /// Wherever Core ML likes.
  case all
  /// The CPU and the Neural Engine.
  case cpuAndNeuralEngine = "cpu_and_ne"
  /// The CPU and the GPU.
  case cpuAndGPU = "cpu_and_gpu"
  /// The CPU.
  case cpuOnly = "cpu_only"
}

/// How a package lays out its tensors. It says so itself, in its own metadata (docs/coreml.md).
///
/// Plain: caches [C, Hkv, D], mask [R, C + R], hidden [K, h]. Channels first, for the Neural Engine: caches
/// [1, Hkv * D, 1, C], mask [1, C + R, 1, R], hidden [1, h, 1, K]. New rows lie as the cache does.
public struct PackageLayout: Sendable, Equatable {
  /// Layers of the model.
  public let numLayers: Int
  /// Top layers, whose new rows come in the order of `kept`.
  public let numTopLayers: Int
  /// Heads of keys and values.
  public let kvHeads: Int
  /// Numbers per head.
  public let headDim: Int
  /// Whether it is the Neural Engine's layout.
  public let channelsFirst: Bool
  /// The package's float type. Caches of another one would round what is committed and not what is new.
  public let floats: ElementType
  /// The functions that it has.
  public let methods: [String]
  /// Whether `streams` takes the token after its node.
  public let nextToken: Bool
  /// Where it was exported to run.
  public let computeUnits: ComputeUnits

  /// Reads the keys `streamfuse.*` of a package's metadata.
  public init(metadata: [String: String]) throws {
    func said(_ key: String) throws -> String {
      guard let value = metadata["streamfuse.\(key)"] else {
        throw StreamFuseError(.badProgram, "this package is not streamfuse's: its metadata has no streamfuse.\(key)")
      }
      return value
    }
    func said<Value>(_ key: String, _ read: (String) -> Value?) throws -> Value {
      let text = try said(key)
      guard let value = read(text) else {
        throw StreamFuseError(.badProgram, "the package's metadata says \(text) for streamfuse.\(key), which no version knows")
      }
      return value
    }
    numLayers = try said("num_layers") { Int($0) }
    numTopLayers = try said("num_msa_layers") { Int($0) }
    kvHeads = try said("num_kv_heads") { Int($0) }
    headDim = try said("head_dim") { Int($0) }
    channelsFirst = try said("layout") { ["plain": false, "ane": true][$0] }
    floats = try said("dtype") { ["float16": .float16, "float32": .float32][$0] }
    methods = try said("methods") { try? JSONDecoder().decode([String].self, from: Data($0.utf8)) }
    nextToken = metadata["streamfuse.next_token"] == "true"  // older packages do not say
    computeUnits = try said("compute_units") { ComputeUnits(rawValue: $0) }
    guard numLayers > 0, kvHeads > 0, headDim > 0, (0...numLayers).contains(numTopLayers) else {
      throw StreamFuseError(.badProgram, "the package's metadata has sizes that no model has")
    }
  }

  /// The axis along which rows of a cache lie.
  var rowAxis: Int { channelsFirst ? 3 : 0 }

  /// Numbers of one row of a cache.
  var rowSize: Int { kvHeads * headDim }

  /// The shape of keys or values of so many rows.
  func cacheShape(_ rows: Int) -> [Int] { channelsFirst ? [1, rowSize, 1, rows] : [rows, kvHeads, headDim] }

  /// The shape of the mask of a pass over so many rows.
  func maskShape(_ rows: Int, capacity: Int) -> [Int] {
    channelsFirst ? [1, capacity + rows, 1, rows] : [rows, capacity + rows]
  }

  /// The shape of so many hidden states, like that of another number of them.
  func hiddenShape(_ shape: [Int], rows: Int) -> [Int] {
    var shape = shape
    shape[rowAxis] = rows
    return shape
  }

  /// Writes the additive mask: 0 where a row looks, else -10000, which is finite because the Neural Engine makes NaN of
  /// infinities. `sees` is n x n for the n real rows, of which each sees the first `length` cached positions too. A row
  /// beyond them sees nothing; all its entries being equal it averages, and nobody reads it.
  func writeMask(_ mask: any Tensor, n: Int, sees: (_ row: Int, _ other: Int) -> Bool, capacity: Int, length: Int) {
    let (rows, columns) = channelsFirst ? (mask.shape[3], mask.shape[1]) : (mask.shape[0], mask.shape[1])
    mask.access { memory, strides in
      let (rowStep, columnStep) = channelsFirst ? (strides[3], strides[1]) : (strides[0], strides[1])
      for row in 0..<rows {
        for column in 0..<columns {
          let seen =
            row < n && (column < capacity ? column < length : column - capacity < n && sees(row, column - capacity))
          let place = row * rowStep + column * columnStep
          switch floats {
          case .float16: memory.assumingMemoryBound(to: Float16.self)[place] = seen ? 0 : -10000
          default: memory.assumingMemoryBound(to: Float.self)[place] = seen ? 0 : -10000
          }
        }
      }
    }
  }

  /// Copies rows of keys, values or hidden states of one tensor to rows of another, from `first` on.
  func copyRows(_ rows: [Int], of source: any Tensor, to target: any Tensor, at first: Int) {
    source.access { from, fromStrides in
      target.access { to, toStrides in
        let fromPlaces = placesInRow(source.shape, fromStrides), toPlaces = placesInRow(target.shape, toStrides)
        for (index, row) in rows.enumerated() {
          copy(
            from, fromPlaces, from: row * fromStrides[rowAxis],
            to, toPlaces, from: (first + index) * toStrides[rowAxis])
        }
      }
    }
  }

  /// Copies the first `length` rows to memory without gaps.
  func saveRows(_ length: Int, of source: any Tensor, to memory: UnsafeMutableRawPointer) {
    source.access { from, strides in
      let places = placesInRow(source.shape, strides), dense = Array(places.indices)
      for row in 0..<length { copy(from, places, from: row * strides[rowAxis], memory, dense, from: row * dense.count) }
    }
  }

  /// Copies the first `length` rows back from memory without gaps.
  func loadRows(_ length: Int, of target: any Tensor, from memory: UnsafeRawPointer) {
    target.access { to, strides in
      let places = placesInRow(target.shape, strides), dense = Array(places.indices)
      for row in 0..<length { copy(memory, dense, from: row * dense.count, to, places, from: row * strides[rowAxis]) }
    }
  }

  /// Where the numbers of a row lie, from where the row begins.
  private func placesInRow(_ shape: [Int], _ strides: [Int]) -> [Int] {
    var shape = shape
    shape[rowAxis] = 1
    var places = [Int]()
    forEachPlace(shape, strides) { places.append($1) }
    return places
  }

  /// Copies one row, number by number.
  private func copy(
    _ source: UnsafeRawPointer, _ sourcePlaces: [Int], from sourceStart: Int,
    _ target: UnsafeMutableRawPointer, _ targetPlaces: [Int], from targetStart: Int
  ) {
    if floats.bytes == 2 {
      let from = source.assumingMemoryBound(to: UInt16.self), to = target.assumingMemoryBound(to: UInt16.self)
      for (one, other) in zip(sourcePlaces, targetPlaces) { to[targetStart + other] = from[sourceStart + one] }
    } else {
      let from = source.assumingMemoryBound(to: UInt32.self), to = target.assumingMemoryBound(to: UInt32.self)
      for (one, other) in zip(sourcePlaces, targetPlaces) { to[targetStart + other] = from[sourceStart + one] }
    }
  }
}
