import CTensor
import StreamFuseCore

/// The types of a package's tensors.
public enum ElementType: Sendable, Equatable {
  /// Half precision.
  case float16
  /// Single precision.
  case float32
  /// Token ids, positions, rows: never fewer than 32 bits, since vocabularies are larger than 65,535.
  case int32

  /// Bytes of one element.
  public var bytes: Int { self == .float16 ? 2 : 4 }
}

/// Memory that a package reads and writes. Rows may be padded, so elements are addressed by strides.
public protocol Tensor: AnyObject {
  /// The type of its elements.
  var type: ElementType { get }
  /// Its sizes.
  var shape: [Int] { get }
  /// Calls `body` with the memory and its strides in elements. The memory may move afterwards.
  func access<Result>(_ body: (UnsafeMutableRawPointer, _ strides: [Int]) throws -> Result) rethrows -> Result
}

/// Runs a package's functions: Core ML, or a replacement in tests.
public protocol PackageRunner: Sendable {
  /// Everything that changes the latency of a pass.
  var device: String { get }
  /// Memory that functions read without copying it, full of zeros.
  func makeTensor(_ type: ElementType, _ shape: [Int]) throws -> any Tensor
  /// Runs a function. It may write its outputs into those of `room` by name, which have their types and shapes; others
  /// are new, and stay unchanged as long as they are referenced.
  func predict(
    _ method: String, _ inputs: [String: any Tensor], into room: [String: any Tensor]
  ) throws -> [String: any Tensor]
}

extension Tensor {
  /// The C loops' name of its float type.
  func floatType() throws -> tensor_float {
    switch type {
    case .float16: TENSOR_FLOAT16
    case .float32: TENSOR_FLOAT32
    case .int32: throw StreamFuseError(.badProgram, "scores must be floats in a package, and these are int32")
    }
  }

  /// The first `count` numbers in the order of their indices, as 64-bit integers; nil: all.
  func integers(_ count: Int? = nil) throws -> [Int64] {
    guard type == .int32 else {
      throw StreamFuseError(.badProgram, "token ids and rows must be int32 in a package, and these are \(type)")
    }
    let wanted = try wanted(count)
    return access { memory, strides in
      var found = [Int64]()
      found.reserveCapacity(wanted)
      forEachLine(shape, strides) { start in
        let line = memory.assumingMemoryBound(to: Int32.self) + start
        for number in 0..<min(shape.last ?? 0, wanted - found.count) { found.append(Int64(line[number * strides[shape.count - 1]])) }
      }
      return found
    }
  }

  /// The first `count` numbers in the order of their indices, as floats; nil: all.
  func floats(_ count: Int? = nil) throws -> [Float] {
    let type = try floatType(), bytes = self.type.bytes, wanted = try wanted(count)
    return access { memory, strides in
      [Float](unsafeUninitializedCapacity: wanted) { numbers, filled in
        forEachLine(shape, strides) { start in
          let some = min(shape.last ?? 0, wanted - filled)
          guard some > 0 else { return }
          tensor_read(memory + start * bytes, type, Int64(some), Int64(strides.last ?? 1), numbers.baseAddress! + filled)
          filled += some
        }
      }
    }
  }

  /// How many numbers that is, where there are so many.
  private func wanted(_ count: Int?) throws -> Int {
    let all = shape.reduce(1, *), wanted = count ?? all
    guard wanted <= all else {
      throw StreamFuseError(.badProgram, "an output of the package has \(all) numbers, and \(wanted) are needed")
    }
    return wanted
  }

  /// Writes these numbers in the order of their indices.
  func fill(_ numbers: [Int32]) {
    access { memory, strides in
      var next = 0
      forEachLine(shape, strides) { start in
        let line = memory.assumingMemoryBound(to: Int32.self) + start
        for number in 0..<(shape.last ?? 0) {
          line[number * strides[shape.count - 1]] = numbers[next]
          next += 1
        }
      }
    }
  }
}

/// Calls `body` with the place where each line along the last axis begins, in the order of the indices.
func forEachLine(_ shape: [Int], _ strides: [Int], _ body: (_ start: Int) -> Void) {
  for line in 0..<shape.dropLast().reduce(1, *) {
    var place = 0, left = line
    for axis in shape.indices.dropLast().reversed() {
      place += left % shape[axis] * strides[axis]
      left /= shape[axis]
    }
    body(place)
  }
}
