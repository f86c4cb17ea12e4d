import CStreamFuse
import StreamFuseCore

/// The arithmetic model of tests/traces/README.md: its logits depend on every token of the context in order, so a wrong
/// commit, a wrong path or a wrong position changes the text.
package final class ArithmeticBackend: Backend {
  /// The bundle's facts.
  package let spec: ModelSpec
  /// How often, in sixteenths of cases, a stream's first candidate is right.
  package let accuracy: UInt32
  /// Called before each pass.
  package let beforePass: @Sendable () throws -> Void
  /// A committed row is its token.
  private var cache: [Int64] = []
  /// Surviving row of the last run to its whole context.
  private var paths: [Int: [Int64]] = [:]
  /// Rows of the last run that survived, in the pass's order.
  private var survivors: [Int] = []
  /// What the results point to.
  private let memory = Results()

  /// A model with an empty cache.
  package init(_ spec: ModelSpec, accuracy: Int = 12, beforePass: @escaping @Sendable () throws -> Void = {}) {
    self.spec = spec
    self.accuracy = UInt32(accuracy)
    self.beforePass = beforePass
  }

  /// Runs one pass.
  package func run(
    _ method: String, ids: UnsafeBufferPointer<Int64>, positions: UnsafeBufferPointer<Int64>,
    ancestors: UnsafeBufferPointer<UInt8>, wantLogits: Bool
  ) throws -> sf_results {
    try beforePass()
    let rows = ids.count
    let whole = (0..<rows).map { row in
      cache + (0..<rows).filter { ancestors[row * rows + $0] != 0 }.map { ids[$0] }
    }
    for (path, position) in zip(whole, positions) where path.count != Int(position) + 1 {
      throw StreamFuseError(.execution, "a row at position \(position) has a context of \(path.count) tokens")
    }
    if method == "prefill" {
      paths = Dictionary(uniqueKeysWithValues: whole.enumerated().map { ($0, $1) })
      return sf_results()
    }
    let verify = spec.verify.first { $0.name == method }
    survivors = kept(whole, ancestors, keep: verify?.keep ?? 1)
    if spec.deferred { survivors.sort { mix(hash(whole[$0]), 2) < mix(hash(whole[$1]), 2) } }
    paths = Dictionary(uniqueKeysWithValues: survivors.map { ($0, whole[$0]) })
    let scores = survivors.map { logits(whole[$0]) }
    memory.best.fill(scores.map(bestOf))
    memory.kept.fill(survivors.map(Int64.init))
    memory.logits.fill(wantLogits ? scores.flatMap { $0 } : [])
    let carrying = survivors.prefix(verify?.carrying ?? 0)
    memory.fillStreams(carrying.map { streams(of: whole[$0]) }, topK: spec.topK)
    return memory.results(spec, survivors: survivors.count, carrying: carrying.count)
  }

  /// Streams of one survivor.
  package func streams(survivor: Int, nextToken: Int64) throws -> sf_results {
    guard let path = paths[survivors[survivor]], path == cache else {
      throw StreamFuseError(.notKept, "deferred streams are those of the last committed node")
    }
    memory.fillStreams([streams(of: path)], topK: spec.topK)
    return memory.results(spec, survivors: survivors.count, carrying: 1)
  }

  /// Appends the rows' tokens.
  package func commit(rows: UnsafeBufferPointer<Int32>) throws {
    for row in rows {
      guard let path = paths[Int(row)], path.dropLast() == cache[...] else {
        throw StreamFuseError(.notKept, "row \(row) does not continue the cache")
      }
      cache.append(path.last!)
    }
  }

  /// Forgets the tail.
  package func truncate(to length: Int) throws {
    cache.removeLast(cache.count - length)
    paths = [:]
  }

  /// Eight bytes per token.
  package func byteCount(length: Int) throws -> Int? { 8 * length }

  /// Writes tokens.
  package func save(length: Int, write: (UnsafeRawBufferPointer) throws -> Void) throws {
    for token in cache.prefix(length) { try withUnsafeBytes(of: token, write) }
  }

  /// Reads tokens.
  package func load(length: Int, read: (UnsafeMutableRawBufferPointer) throws -> Void) throws {
    cache = [Int64](repeating: 0, count: length)
    try cache.withUnsafeMutableBytes(read)
  }

  /// The best `keep` rows by path score, best first.
  private func kept(_ whole: [[Int64]], _ ancestors: UnsafeBufferPointer<UInt8>, keep: Int) -> [Int] {
    let own = whole.indices.map { $0 == 0 ? UInt64(1) << 32 : UInt64(mix(hash(whole[$0]), 1)) }
    let scores = whole.indices.map { row in
      whole.indices.filter { ancestors[row * whole.count + $0] != 0 }.map { own[$0] }.min()!
    }
    return Array(whole.indices.sorted { (scores[$1], $0) < (scores[$0], $1) }.prefix(keep))
  }

  /// [num_streams * top_k] candidates of one context.
  private func streams(of path: [Int64]) -> [Int64] {
    let vocab = Int64(spec.vocabSize)
    var future = path + [bestOf(logits(path))]
    return (1...spec.numStreams).flatMap { stream in
      future.append(bestOf(logits(future)))
      let wrong: Int64 = mix(hash(path), UInt32(100 + stream)) % 16 < accuracy ? 0 : 1
      return (0..<Int64(spec.topK)).map { [last = future.last!] in (last + $0 + wrong) % vocab }
    }
  }

  /// Multiples of 1/16; the successor of the last token gets 4 more.
  private func logits(_ context: [Int64]) -> [Float] {
    let value = hash(context), vocab = spec.vocabSize
    var logits = (0..<UInt32(vocab)).map { Float(mix(value, $0) >> 25) / 16 }
    logits[Int(31 * context.last! + 7) % vocab] += 4
    return logits
  }
}

/// The first of the greatest.
private func bestOf(_ logits: [Float]) -> Int64 {
  Int64(logits.indices.max { (logits[$0], $1) < (logits[$1], $0) }!)
}

/// Order matters.
private func hash(_ tokens: [Int64]) -> UInt32 {
  tokens.reduce(0) { $0 &* 31 &+ UInt32(truncatingIfNeeded: $1) &+ 7 }
}

/// The finaliser of MurmurHash3 over value XOR salt * 2654435761.
private func mix(_ value: UInt32, _ salt: UInt32) -> UInt32 {
  var x = value ^ (salt &* 2_654_435_761)
  x = (x ^ (x >> 16)) &* 0x85EB_CA6B
  x = (x ^ (x >> 13)) &* 0xC2B2_AE35
  return x ^ (x >> 16)
}

/// Memory that stays where it is until the next pass.
private final class Results {
  let logits = Memory<Float>(), best = Memory<Int64>(), kept = Memory<Int64>(), ids = Memory<Int64>()
  let logProbs = Memory<Float>()

  /// Keeps the candidates of each carrying survivor.
  func fillStreams(_ streams: [[Int64]], topK: Int) {
    let all = streams.flatMap { $0 }
    ids.fill(all)
    logProbs.fill(all.indices.map { -Float(0.6931472) * Float($0 % topK + 1) })
  }

  /// The core's structure.
  func results(_ spec: ModelSpec, survivors: Int, carrying: Int) -> sf_results {
    sf_results(
      survivors: Int64(survivors), carrying: Int64(carrying), vocab_size: Int64(spec.vocabSize),
      num_streams: Int64(spec.numStreams), top_k: Int64(spec.topK), logits: logits.pointer, best: best.pointer,
      kept: kept.pointer, stream_ids: ids.pointer, stream_log_probs: logProbs.pointer)
  }
}

/// An array that does not move.
private final class Memory<Element> {
  private var buffer = UnsafeMutableBufferPointer<Element>(start: nil, count: 0)

  /// Where it lies; nil where it is empty.
  var pointer: UnsafePointer<Element>? { UnsafePointer(buffer.baseAddress) }

  /// Replaces what it holds.
  func fill(_ elements: [Element]) {
    buffer.deallocate()
    buffer = .allocate(capacity: elements.count)
    _ = buffer.initialize(from: elements)
  }

  deinit { buffer.deallocate() }
}

/// Engines that are the arithmetic model.
package struct ArithmeticEngine: Engine {
  package var spec: ModelSpec
  package var accuracy = 12
  package var cacheBytes = 0
  package var beforePass: @Sendable () throws -> Void = {}
  package var device: String { "arithmetic" }

  package init(
    spec: ModelSpec, accuracy: Int = 12, cacheBytes: Int = 0, beforePass: @escaping @Sendable () throws -> Void = {}
  ) {
    self.spec = spec
    self.accuracy = accuracy
    self.cacheBytes = cacheBytes
    self.beforePass = beforePass
  }

  package func makeTable() -> EngineTable {
    EngineTable(ArithmeticBackend(spec, accuracy: accuracy, beforePass: beforePass))
  }
}

extension ModelSpec {
  /// Small facts for tests.
  package static func arithmetic(capacity: Int = 96, deferred: Bool = false) -> ModelSpec {
    ModelSpec(
      capacity: capacity, vocabSize: 64, numStreams: 3, topK: 3, prefillRows: 8,
      verify: [(2, 2), (4, 4), (8, 6)].map {
        VerifyMethod(name: "verify_\($0)", rows: $0, keep: $1, carrying: deferred ? 0 : $1)
      },
      deferred: deferred, identity: "arithmetic")
  }
}
