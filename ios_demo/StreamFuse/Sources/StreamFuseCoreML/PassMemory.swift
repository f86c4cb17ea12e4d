import CStreamFuse
import StreamFuseCore

/// What a pass hands to the core: it stays where it is until the next pass.
final class PassMemory {
  /// [survivors, vocabSize], or nothing.
  let logits = SteadyArray<Float>()
  /// [survivors].
  let best = SteadyArray<Int64>()
  /// [survivors].
  let kept = SteadyArray<Int64>()
  /// [carrying, numStreams, topK].
  let streamIDs = SteadyArray<Int64>()
  /// [carrying, numStreams, topK].
  let streamLogProbs = SteadyArray<Float>()

  /// The core's structure.
  func all(_ spec: ModelSpec, survivors: Int, carrying: Int) -> sf_results {
    sf_results(
      survivors: Int64(survivors), carrying: Int64(carrying), vocab_size: Int64(spec.vocabSize),
      num_streams: Int64(spec.numStreams), top_k: Int64(spec.topK), logits: logits.pointer, best: best.pointer,
      kept: kept.pointer, stream_ids: streamIDs.pointer, stream_log_probs: streamLogProbs.pointer)
  }
}

/// Numbers that do not move until they are replaced; memory is kept for the next ones.
final class SteadyArray<Number> {
  /// The memory; as large as the most numbers so far.
  private var memory = UnsafeMutableBufferPointer<Number>(start: nil, count: 0)
  /// How many numbers there are.
  private var count = 0

  /// Where the numbers lie; nil where there are none.
  var pointer: UnsafePointer<Number>? { count == 0 ? nil : UnsafePointer(memory.baseAddress) }

  /// The numbers.
  var elements: UnsafeBufferPointer<Number> { UnsafeBufferPointer(start: pointer, count: count) }

  /// Replaces the numbers.
  func fill(_ numbers: ArraySlice<Number>) {
    if numbers.count > memory.count {
      memory.deallocate()
      memory = .allocate(capacity: numbers.count)
    }
    _ = memory.update(fromContentsOf: numbers)
    count = numbers.count
  }

  deinit { memory.deallocate() }
}
