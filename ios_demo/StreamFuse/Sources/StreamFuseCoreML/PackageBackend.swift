import CStreamFuse
import CTensor
import StreamFuseCore

/// The engine of one sequence on a package's functions: it owns the caches, makes the mask, and copies accepted rows. The
/// Neural Engine cannot update a cache in place, so caches are inputs and new rows are outputs (docs/targets.md).
final class PackageBackend: Backend {
  /// What runs the functions.
  private let runner: any PackageRunner
  /// The bundle's facts.
  private let spec: ModelSpec
  /// How the package lays out its tensors.
  private let layout: PackageLayout
  /// `key_cache_0`, `value_cache_0`, `key_cache_1`, ...; none after `trim`.
  private var caches: [(name: String, output: String, tensor: any Tensor)] = []
  /// Ids, positions and mask of each function that has run, reused by its next pass.
  private var inputs: [String: [String: any Tensor]] = [:]
  /// Output memory of this sequence for each function that has run, where the rows of a pass wait to be committed.
  private var room: [String: [String: any Tensor]] = [:]
  /// Outputs of the last pass.
  private var outputs: [String: any Tensor] = [:]
  /// Maps the surviving rows of the last pass to their index among the survivors.
  private var places: [Int32: Int] = [:]
  /// Committed rows.
  private var length = 0
  /// The first position that every cache still has.
  private var oldest = 0
  /// The memory of the results.
  private let results = PassMemory()

  /// An engine with an empty cache.
  init(_ runner: any PackageRunner, _ spec: ModelSpec, _ layout: PackageLayout) throws {
    self.runner = runner
    self.spec = spec
    self.layout = layout
    try makeCaches()
  }

  /// Allocates the caches, unless they are there.
  private func makeCaches() throws {
    guard caches.isEmpty else { return }
    caches = try (0..<layout.numLayers).flatMap { layer in
      try ["key", "value"].map { kind in
        try (
          "\(kind)_cache_\(layer)", "new_\(kind)_\(layer)",
          runner.makeTensor(layout.floats, layout.cacheShape(layout.rows(layer: layer, length: spec.capacity), layer: layer))
        )
      }
    }
  }

  /// One pass.
  func run(
    _ method: String, ids: UnsafeBufferPointer<Int64>, positions: UnsafeBufferPointer<Int64>,
    ancestors: UnsafeBufferPointer<UInt8>, wantLogits: Bool
  ) throws -> sf_results {
    places = [:]
    let n = ids.count
    let verify = spec.verify.first { $0.name == method }
    let rows = method == "prefill" ? spec.prefillRows : method == "decode" ? 1 : verify?.rows ?? 0
    guard (1...max(rows, 1)).contains(n), layout.methods.contains(method) else {
      throw StreamFuseError(.badArgument, "\(method) takes from 1 to \(rows) rows, not \(n)")
    }
    try makeCaches()
    let own = try tensors(method, rows: rows)
    own["input_ids"]!.fill(padded(ids, rows))
    own["position_ids"]!.fill(padded(positions, rows))
    own["cache_length"]?.fill([Int32(length)])
    try layout.writeMask(own["mask"]!, n: n, sees: ancestors, capacity: spec.capacity, length: length)
    outputs = try predict(method, own, caches[...])
    let isPrefill = method == "prefill"
    for index in isPrefill ? 0..<caches.count : 0..<lower { try checkRows(of: index, method, rows: rows) }
    if isPrefill {
      places = Dictionary(uniqueKeysWithValues: (0..<n).map { (Int32($0), $0) })
      return sf_results()
    }
    let kept = try outputs["kept"]?.integers() ?? (0..<Int64(rows)).map { $0 }
    let real = kept.prefix { $0 < n }.count  // padding rows come last
    for index in lower..<caches.count { try checkRows(of: index, method, rows: real) }
    // Of a row that a damaged package names twice the first place counts.
    places = Dictionary((0..<real).map { (Int32(kept[$0]), $0) }, uniquingKeysWith: { first, _ in first })
    results.kept.fill(kept[..<real])
    try readScores(method, real, wantLogits: wantLogits)
    let carrying = min(real, verify?.carrying ?? 0)
    try readStreams(method, carrying)
    return results.all(spec, survivors: real, carrying: carrying)
  }

  /// Streams of one survivor of the last pass.
  func streams(survivor: Int, nextToken: Int64) throws -> sf_results {
    guard let hidden = outputs["hidden"], (0..<places.count).contains(survivor) else {
      throw StreamFuseError(.notKept, "the last pass has no survivor \(survivor) with a hidden state")
    }
    guard hidden.type == layout.floats, hidden.shape.count > layout.rowAxis, hidden.shape[layout.rowAxis] > survivor else {
      throw unfitting("hidden", hidden, of: "last pass")
    }
    let depth = spec.numStreams
    var own = try tensors("streams", rows: depth)
    if own["hidden"] == nil {
      own["hidden"] = try runner.makeTensor(layout.floats, layout.hiddenShape(hidden.shape, rows: 1))
      inputs["streams"] = own
    }
    layout.copyRows([survivor], of: hidden, to: own["hidden"]!, at: 0)
    own["position_ids"]!.fill([Int32(length - 1)])
    own["cache_length"]?.fill([Int32(length)])
    own["next_token"]?.fill([Int32(nextToken)])
    let causal = (0..<depth * depth).map { UInt8($0 % depth <= $0 / depth ? 1 : 0) }
    try causal.withUnsafeBufferPointer {
      try layout.writeMask(own["mask"]!, n: depth, sees: $0, capacity: spec.capacity, length: length)
    }
    let found = try predict("streams", own, caches.suffix(2 * layout.numTopLayers))
    outputs["stream_ids"] = found["stream_ids"]
    outputs["stream_log_probs"] = found["stream_log_probs"]
    try readStreams("streams", 1)
    return results.all(spec, survivors: places.count, carrying: 1)
  }

  /// Copies rows of the last pass to the end of the cache.
  func commit(rows: UnsafeBufferPointer<Int32>) throws {
    let survivors = try rows.map { row in
      guard let place = places[row] else {
        throw StreamFuseError(.notKept, "row \(row) is not among the surviving rows of the last pass")
      }
      return place
    }
    guard length + rows.count <= spec.capacity else {
      throw StreamFuseError(
        .contextFull, "\(length + rows.count) rows do not fit into the cache of \(spec.capacity)")
    }
    for (index, cache) in caches.enumerated() {
      layout.copyRows(
        index < lower ? rows.map(Int.init) : survivors, of: outputs[cache.output]!, to: cache.tensor, at: length)
    }
    length += rows.count
    oldest = max(oldest, length - ring)
  }

  /// Truncates the cache.
  func truncate(to length: Int) throws {
    guard (0...self.length).contains(length) else {
      throw StreamFuseError(.badArgument, "cannot truncate a cache of \(self.length) rows to \(length)")
    }
    guard truncatable(length) == length else {
      throw StreamFuseError(
        .badArgument,
        "cannot truncate to \(length): layers with a sliding window or convolution of \(layout.window) positions have "
          + "only those from \(oldest) on; truncate to 0 and run the tokens again")
    }
    self.length = length
    if length == 0 { oldest = 0 }
    places = [:]
  }

  /// The longest prefix of at most `length` positions whose windows the caches still have.
  func truncatable(_ length: Int) -> Int { oldest <= max(0, length - layout.window) ? length : 0 }

  /// Positions in the smallest caches.
  private var ring: Int { layout.cachePositions.min() ?? spec.capacity }

  /// Contiguous rows, cache by cache; before them, if there is a window, the first position that every cache has.
  func byteCount(length: Int) -> Int? { layout.bytes(length: length) + (layout.window > 0 ? MemoryLayout<Int64>.size : 0) }

  /// Writes the rows of the first positions in every cache.
  func save(length: Int, write: (UnsafeRawBufferPointer) throws -> Void) throws {
    guard truncatable(length) == length else {
      throw StreamFuseError(
        .badArgument, "the first \(length) positions cannot be saved: the caches have those from \(oldest) on")
    }
    if layout.window > 0 { try withUnsafeBytes(of: Int64(oldest), write) }
    try withRows(length) { cache, count, rows in
      layout.saveRows(count, of: cache, to: rows.baseAddress!)
      try write(UnsafeRawBufferPointer(rows))
    }
  }

  /// Reads the rows of the first positions in every cache.
  func load(length: Int, read: (UnsafeMutableRawBufferPointer) throws -> Void) throws {
    var oldest: Int64 = 0
    if layout.window > 0 { try withUnsafeMutableBytes(of: &oldest, read) }
    guard (0...Int64(max(0, length - layout.window))).contains(oldest) else {
      throw StreamFuseError(.badArgument, "these cache rows do not fit this engine: the first one is \(oldest)")
    }
    try makeCaches()
    try withRows(length) { cache, count, rows in
      try read(rows)
      layout.loadRows(count, of: cache, from: rows.baseAddress!)
    }
    self.length = length
    self.oldest = max(Int(oldest), length - ring)
  }

  /// Frees caches, inputs and outputs.
  func trim() {
    caches = []
    inputs = [:]
    room = [:]
    outputs = [:]
    places = [:]
  }

  /// Calls `body` with each cache, how many of the first `length` positions it has, and memory for their rows.
  private func withRows(
    _ length: Int, _ body: (any Tensor, _ count: Int, UnsafeMutableRawBufferPointer) throws -> Void
  ) throws {
    if length == 0 { return }
    let counts = (0..<layout.numLayers).map { layout.rows(layer: $0, length: length) }
    let bytes = counts.enumerated().map { $1 * layout.rowSize(layer: $0) * layout.floats.bytes }
    let rows = UnsafeMutableRawBufferPointer.allocate(byteCount: bytes.max() ?? 0, alignment: 16)
    defer { rows.deallocate() }
    for (index, cache) in caches.enumerated() {
      let layer = index / 2
      try body(cache.tensor, counts[layer], UnsafeMutableRawBufferPointer(rebasing: rows[..<bytes[layer]]))
    }
  }

  /// Runs a function on its own inputs and these caches; from its second run on, the output memory is reused.
  private func predict(
    _ method: String, _ own: [String: any Tensor], _ caches: ArraySlice<(name: String, output: String, tensor: any Tensor)>
  ) throws -> [String: any Tensor] {
    let inputs = own.merging(caches.map { ($0.name, $0.tensor) }) { own, _ in own }
    let found = try runner.predict(method, inputs, into: room[method] ?? [:])
    if room[method] == nil { room[method] = try found.mapValues { try runner.makeTensor($0.type, $0.shape) } }
    return found
  }

  /// Ids, positions and mask of a function.
  private func tensors(_ method: String, rows: Int) throws -> [String: any Tensor] {
    if let known = inputs[method] { return known }
    let count = method == "streams" ? 1 : rows
    var made = [
      "position_ids": try runner.makeTensor(.int32, [count]),
      "mask": try runner.makeTensor(layout.floats, layout.maskShape(rows, capacity: spec.capacity)),
    ]
    if layout.window > 0 { made["cache_length"] = try runner.makeTensor(.int32, [1]) }
    if method != "streams" { made["input_ids"] = try runner.makeTensor(.int32, [count]) }
    if method == "streams", layout.nextToken { made["next_token"] = try runner.makeTensor(.int32, [1]) }
    inputs[method] = made
    return made
  }

  /// How many of `caches` are of the layers below the top ones.
  private var lower: Int { 2 * (layout.numLayers - layout.numTopLayers) }

  /// Throws unless the function returned at least `rows` new rows for the cache with this index, in its shape.
  private func checkRows(of index: Int, _ method: String, rows: Int) throws {
    let name = caches[index].output, found = try output(name, of: method)
    let count = found.shape.count > layout.rowAxis ? found.shape[layout.rowAxis] : 0
    guard found.type == layout.floats, found.shape == layout.cacheShape(count, layer: index / 2), count >= rows else {
      throw unfitting(name, found, of: "function \(method)")
    }
  }

  /// The error for an output whose type or shape does not match the package's layout.
  private func unfitting(_ name: String, _ found: any Tensor, of whom: String) -> StreamFuseError {
    StreamFuseError(
      .badProgram, "the package's \(whom) returned \(name) as \(found.type) \(found.shape), which its layout does not allow")
  }

  /// An output that a function must have.
  private func output(_ name: String, of method: String) throws -> any Tensor {
    guard let found = outputs[name] else {
      throw StreamFuseError(.badProgram, "the package's function \(method) has no output \(name)")
    }
    return found
  }

  /// Best tokens of the survivors, and their logits on request.
  ///
  /// If token ids do not fit into 16 bits, the argmax runs on the host: Core ML's compilers may narrow the integers of
  /// an argmax, but they cannot truncate logits.
  private func readScores(_ method: String, _ real: Int, wantLogits: Bool) throws {
    let ownBest = spec.vocabSize <= Int(UInt16.max) ? outputs["best"] : nil
    results.best.fill(try ownBest?.integers(real)[...] ?? [])
    results.logits.fill([])
    guard wantLogits || ownBest == nil else { return }
    let scores = try Scores(outputs, of: method, rows: real, vocabSize: spec.vocabSize)
    if wantLogits { results.logits.fill(scores.read(real)[...]) }
    if ownBest == nil { results.best.fill((0..<real).map(scores.best)[...]) }
  }

  /// Streams of the first `carrying` survivors.
  private func readStreams(_ method: String, _ carrying: Int) throws {
    let count = carrying * spec.numStreams * spec.topK
    results.streamIDs.fill(count == 0 ? [] : try output("stream_ids", of: method).integers(count)[...])
    results.streamLogProbs.fill(count == 0 ? [] : try output("stream_log_probs", of: method).floats(count)[...])
  }
}

/// Numbers padded with zeros.
private func padded(_ numbers: UnsafeBufferPointer<Int64>, _ rows: Int) -> [Int32] {
  numbers.map(Int32.init) + [Int32](repeating: 0, count: rows - numbers.count)
}
