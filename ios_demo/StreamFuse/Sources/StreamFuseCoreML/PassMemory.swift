import CStreamFuse
import StreamFuseCore

/// The results of a pass for the core; they do not move until the next pass.
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

/// Numbers that do not move until they are replaced; the memory is reused.
final class SteadyArray<Number> {
  /// The memory; its size is the largest count so far.
  private var memory = UnsafeMutableBufferPointer<Number>(start: nil, count: 0)
  /// Number of elements.
  private var count = 0

  /// Pointer to the numbers; nil if there are none.
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
