import Foundation
import StreamFuseCoreML

/// Memory as Core ML gives it: the last axis is padded to a multiple of 64 bytes, and what lies between is noise.
public final class FakeTensor: Tensor {
  public let type: ElementType
  public let shape: [Int]
  private let strides: [Int]
  private let memory: UnsafeMutableRawBufferPointer

  /// A tensor of zeros.
  public init(_ type: ElementType, _ shape: [Int]) {
    self.type = type
    self.shape = shape
    var strides = [1]
    let line = 64 / type.bytes
    var step = ((shape.last ?? 1) + line - 1) / line * line
    for size in shape.dropLast().reversed() {
      strides.insert(step, at: 0)
      step *= size
    }
    self.strides = strides
    memory = .allocate(byteCount: step * type.bytes, alignment: 64)
    memory.initializeMemory(as: UInt8.self, repeating: 0xA5)
    dense = Data(count: shape.reduce(1, *) * type.bytes)
  }

  deinit { memory.deallocate() }

  public func access<Result>(_ body: (UnsafeMutableRawPointer, _ strides: [Int]) throws -> Result) rethrows -> Result {
    try body(memory.baseAddress!, strides)
  }

  /// The elements without gaps, in the order of their indices.
  public var dense: Data {
    get {
      var data = Data()
      forEachLine { data.append(contentsOf: memory[$0..<($0 + $1)]) }
      return data
    }
    set {
      var taken = newValue.startIndex
      forEachLine { start, count in
        newValue[taken..<(taken + count)].withUnsafeBytes { memory.baseAddress!.advanced(by: start).copyMemory(from: $0.baseAddress!, byteCount: count) }
        taken += count
      }
    }
  }

  /// Where each line along the last axis begins, and its bytes.
  private func forEachLine(_ body: (_ start: Int, _ count: Int) -> Void) {
    let count = (shape.last ?? 1) * type.bytes
    for line in 0..<shape.dropLast().reduce(1, *) {
      var place = 0, left = line
      for axis in shape.indices.dropLast().reversed() {
        place += left % shape[axis] * strides[axis]
        left /= shape[axis]
      }
      body(place * type.bytes, count)
    }
  }
}

/// A package whose functions are closures.
public final class FakePackage: PackageRunner, @unchecked Sendable {  // tests use it from one session
  public let device = "fake"
  private let answer: (String, [String: FakeTensor]) throws -> [String: FakeTensor]

  public init(_ answer: @escaping (String, [String: FakeTensor]) throws -> [String: FakeTensor]) {
    self.answer = answer
  }

  public func makeTensor(_ type: ElementType, _ shape: [Int]) -> any Tensor { FakeTensor(type, shape) }

  public func predict(
    _ method: String, _ inputs: [String: any Tensor], into room: [String: any Tensor]
  ) throws -> [String: any Tensor] {
    let found = try answer(method, inputs.mapValues { $0 as! FakeTensor })
    for (name, tensor) in room { (tensor as! FakeTensor).dense = found[name]!.dense }
    return found.merging(room.mapValues { $0 as! FakeTensor }) { $1 }
  }
}
