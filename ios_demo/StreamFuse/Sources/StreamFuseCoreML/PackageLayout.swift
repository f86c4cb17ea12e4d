import CTensor
import Foundation
import StreamFuseCore

/// Where the functions of a package may run.
public enum ComputeUnits: String, Sendable, CaseIterable {
  /// Core ML's choice.
  case all
  /// The CPU and the Neural Engine.
  case cpuAndNeuralEngine = "cpu_and_ne"
  /// The CPU and the GPU.
  case cpuAndGPU = "cpu_and_gpu"
  /// The CPU.
  case cpuOnly = "cpu_only"
}

/// What a package may say of layers, heads and numbers per head.
private let mostCount = 1 << 16

/// How a package lays out its tensors. The layout is in its metadata (docs/targets.md).
///
/// Plain: caches [C, Hkv, D], mask [R, C + R], hidden [K, h]. Channels first, for the Neural Engine: caches
/// [1, Hkv * D, 1, C], mask [1, C + R, 1, R], hidden [1, h, 1, K]. New rows have the cache's layout. Caches of layers with
/// a sliding window can have fewer positions than C, which the mask has: position t is at t modulo their number. Those of a
/// convolution, whose window is its number of taps, may have a different number of heads.
public struct PackageLayout: Sendable, Equatable {
  /// Layers of the model.
  public let numLayers: Int
  /// Top layers, whose new rows come in the order of `kept`.
  public let numTopLayers: Int
  /// Heads in the caches of each layer.
  public let kvHeads: [Int]
  /// Numbers per head.
  public let headDim: Int
  /// Whether it is the Neural Engine's layout.
  public let channelsFirst: Bool
  /// The package's float type. Caches of another type would round committed rows but not new ones.
  public let floats: ElementType
  /// The functions that it has.
  public let methods: [String]
  /// Whether `streams` takes the token after its node as input.
  public let nextToken: Bool
  /// The window of layers with a sliding window or a convolution; 0: there are none, and no function has the input
  /// `cache_length`.
  public let window: Int
  /// Positions in the caches of each layer, if there is a window; else empty, and all have the whole context.
  public let cachePositions: [Int]
  /// Where it was exported to run.
  public let computeUnits: ComputeUnits

  /// Reads the keys `streamfuse.*` of a package's metadata.
  public init(metadata: [String: String]) throws {
    func value(_ key: String) throws -> String {
      guard let text = metadata["streamfuse.\(key)"] else {
        throw StreamFuseError(
          .badProgram, "this package was not exported by this version of streamfuse: its metadata has no streamfuse.\(key)")
      }
      return text
    }
    func value<Value>(_ key: String, _ read: (String) -> Value?) throws -> Value {
      let text = try value(key)
      guard let parsed = read(text) else {
        throw StreamFuseError(.badProgram, "the package's metadata says \(text) for streamfuse.\(key), which is not valid")
      }
      return parsed
    }
    func count(_ key: String, in range: ClosedRange<Int> = 1...mostCount) throws -> Int {
      try value(key) { Int($0).flatMap { range.contains($0) ? $0 : nil } }
    }
    let layers = try count("num_layers")
    numLayers = layers
    numTopLayers = try count("num_msa_layers", in: 0...layers)
    func counts(_ key: String, in range: ClosedRange<Int>) throws -> [Int] {
      try value(key) { text in
        let found = try? JSONDecoder().decode([Int].self, from: Data(text.utf8))
        return found.flatMap { $0.count == layers && $0.allSatisfy(range.contains) ? $0 : nil }
      }
    }
    kvHeads = try counts("kv_heads", in: 1...mostCount)
    headDim = try count("head_dim")
    channelsFirst = try value("layout") { ["plain": false, "ane": true][$0] }
    floats = try value("dtype") { ["float16": .float16, "float32": .float32][$0] }
    methods = try value("methods") { try? JSONDecoder().decode([String].self, from: Data($0.utf8)) }
    nextToken = metadata["streamfuse.next_token"] == "true"
    let hasWindow = metadata["streamfuse.sliding_window"] != nil
    window = hasWindow ? try count("sliding_window", in: 1...(.max)) : 0
    cachePositions = hasWindow ? try counts("cache_positions", in: 1...(.max)) : []
    computeUnits = try value("compute_units") { ComputeUnits(rawValue: $0) }
  }

  /// Throws if the caches of a layer have more positions than the context, or fewer and not more than the window.
  func check(capacity: Int) throws {
    guard let wrong = cachePositions.first(where: { $0 > capacity || $0 <= min(window, capacity - 1) }) else { return }
    throw StreamFuseError(
      .badProgram, "the package's metadata says \(wrong) in streamfuse.cache_positions, which is neither the context of "
        + "\(capacity) nor between that and the window of \(window)")
  }

  /// The axis along which rows of a cache lie.
  var rowAxis: Int { channelsFirst ? 3 : 0 }

  /// Elements in one row of a layer's caches.
  func rowSize(layer: Int) -> Int { kvHeads[layer] * headDim }

  /// How many of the first `length` positions of a sequence the caches of a layer have at most.
  func rows(layer: Int, length: Int) -> Int { cachePositions.isEmpty ? length : min(length, cachePositions[layer]) }

  /// Size in bytes of the first `length` positions in all caches.
  func bytes(length: Int) -> Int {
    2 * (0..<numLayers).map { rows(layer: $0, length: length) * rowSize(layer: $0) }.reduce(0, +) * floats.bytes
  }

  /// The shape of a layer's keys or values of that many rows.
  func cacheShape(_ rows: Int, layer: Int) -> [Int] {
    channelsFirst ? [1, rowSize(layer: layer), 1, rows] : [rows, kvHeads[layer], headDim]
  }

  /// The shape of the mask of a pass over that many rows.
  func maskShape(_ rows: Int, capacity: Int) -> [Int] {
    channelsFirst ? [1, capacity + rows, 1, rows] : [rows, capacity + rows]
  }

  /// `shape` with another number of hidden states.
  func hiddenShape(_ shape: [Int], rows: Int) -> [Int] {
    var shape = shape
    shape[rowAxis] = rows
    return shape
  }

  /// Writes the additive mask: 0 where a row attends, else -10000, which is finite because the Neural Engine turns
  /// infinities into NaN. `sees` is n x n for the n real rows, each of which also attends to the first `length` cached
  /// positions. Padding rows attend to nothing; with equal entries they compute an average that is never read.
  func writeMask(_ mask: any Tensor, n: Int, sees: UnsafeBufferPointer<UInt8>, capacity: Int, length: Int) throws {
    let (rowAxis, columnAxis) = channelsFirst ? (3, 1) : (0, 1)
    let type = try mask.floatType()
    mask.access { memory, strides in
      tensor_write_mask(
        memory, type, Int64(mask.shape[rowAxis]), Int64(strides[rowAxis]), Int64(mask.shape[columnAxis]),
        Int64(strides[columnAxis]), Int64(capacity), Int64(length), sees.baseAddress, Int64(n))
    }
  }

  /// Copies rows of keys, values or hidden states of one tensor to rows of another, from `first` on, modulo its rows.
  func copyRows(_ rows: [Int], of source: any Tensor, to target: any Tensor, at first: Int) {
    source.access { from, fromStrides in
      target.access { to, toStrides in
        let own = Lines(source.shape, fromStrides, self), other = Lines(target.shape, toStrides, self)
        for (index, row) in rows.enumerated() {
          let place = (first + index) % target.shape[rowAxis]
          copy(own, from, row * fromStrides[rowAxis], other, to, place * toStrides[rowAxis])
        }
      }
    }
  }

  /// Copies the first `length` rows to contiguous memory.
  func saveRows(_ length: Int, of source: any Tensor, to memory: UnsafeMutableRawPointer) {
    source.access { from, strides in
      let own = Lines(source.shape, strides, self), dense = own.dense
      for row in 0..<length { copy(own, from, row * strides[rowAxis], dense, memory, row * dense.numbers) }
    }
  }

  /// Copies the first `length` rows back from contiguous memory.
  func loadRows(_ length: Int, of target: any Tensor, from memory: UnsafeRawPointer) {
    target.access { to, strides in
      let own = Lines(target.shape, strides, self), dense = own.dense
      for row in 0..<length { copy(dense, memory, row * dense.numbers, own, to, row * strides[rowAxis]) }
    }
  }

  /// Copies one row, line by line.
  private func copy(
    _ own: Lines, _ from: UnsafeRawPointer, _ fromStart: Int, _ other: Lines, _ to: UnsafeMutableRawPointer, _ toStart: Int
  ) {
    for line in 0..<own.count {
      tensor_copy(
        from + (fromStart + line * own.distance) * floats.bytes, Int64(own.step),
        to + (toStart + line * other.distance) * floats.bytes, Int64(other.step), Int64(own.length), Int32(floats.bytes))
    }
  }
}

/// The memory layout of one row: lines of numbers that are `step` apart.
private struct Lines {
  /// Number of lines, and the distance between their starts.
  let count, distance: Int
  /// Numbers per line, and the distance between them.
  let length, step: Int

  /// A row of keys or values, or of hidden states. Channels first: one line along the channels. Else a line along the
  /// last axis for each index of the axis between the rows and it.
  init(_ shape: [Int], _ strides: [Int], _ layout: PackageLayout) {
    let axis = layout.channelsFirst ? 1 : shape.count - 1
    (length, step) = (shape[axis], strides[axis])
    (count, distance) = !layout.channelsFirst && shape.count == 3 ? (shape[1], strides[1]) : (1, 0)
  }

  /// Lines that are known.
  private init(count: Int, distance: Int, length: Int, step: Int) {
    (self.count, self.distance, self.length, self.step) = (count, distance, length, step)
  }

  /// The same numbers, contiguous.
  var dense: Lines { Lines(count: count, distance: length, length: length, step: 1) }

  /// All numbers of a row.
  var numbers: Int { count * length }
}
