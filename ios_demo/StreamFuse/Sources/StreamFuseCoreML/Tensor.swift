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

/// Memory that a package reads and writes. Rows may be longer than they need be, so elements lie by strides.
public protocol Tensor: AnyObject {
  /// The type of its elements.
  var type: ElementType { get }
  /// Its sizes.
  var shape: [Int] { get }
  /// Gives the memory and its strides, in elements, to `body`. It may move afterwards.
  func access<Result>(_ body: (UnsafeMutableRawPointer, _ strides: [Int]) throws -> Result) rethrows -> Result
}

/// What runs a package's functions: Core ML, or another in its place for tests.
public protocol PackageRunner: Sendable {
  /// What makes a pass cost differently.
  var device: String { get }
  /// Memory that functions read without copying it, full of zeros.
  func makeTensor(_ type: ElementType, _ shape: [Int]) throws -> any Tensor
  /// Runs a function. The outputs stay as they are for as long as somebody keeps them.
  func predict(_ method: String, _ inputs: [String: any Tensor]) throws -> [String: any Tensor]
}

extension Tensor {
  /// All numbers in the order of their indices, as 64-bit integers.
  func integers() throws -> [Int64] {
    guard type == .int32 else {
      throw StreamFuseError(.badProgram, "token ids and rows must be int32 in a package, and these are \(type)")
    }
    return map { $0.assumingMemoryBound(to: Int32.self)[$1] }.map(Int64.init)
  }

  /// All numbers in the order of their indices, as floats.
  func floats() throws -> [Float] {
    switch type {
    case .float16: map { Float($0.assumingMemoryBound(to: Float16.self)[$1]) }
    case .float32: map { $0.assumingMemoryBound(to: Float.self)[$1] }
    case .int32: throw StreamFuseError(.badProgram, "scores must be floats in a package, and these are int32")
    }
  }

  /// Writes these numbers in the order of their indices.
  func fill(_ numbers: [Int32]) {
    access { memory, strides in
      forEachPlace(shape, strides) { memory.assumingMemoryBound(to: Int32.self)[$1] = numbers[$0] }
    }
  }

  /// Reads every element, in the order of the indices; `read` gets the memory and the place.
  private func map<Element>(_ read: (UnsafeMutableRawPointer, Int) -> Element) -> [Element] {
    access { memory, strides in
      var all = [Element]()
      all.reserveCapacity(shape.reduce(1, *))
      forEachPlace(shape, strides) { all.append(read(memory, $1)) }
      return all
    }
  }
}

/// Calls `body` with each element's number, in the order of the indices, and its place.
func forEachPlace(_ shape: [Int], _ strides: [Int], _ body: (_ number: Int, _ place: Int) -> Void) {
  guard let last = shape.last, let step = strides.last else { return }
  let rows = shape.dropLast().reduce(1, *)
  for row in 0..<rows {
    var place = 0, left = row
    for axis in shape.indices.dropLast().reversed() {
      place += left % shape[axis] * strides[axis]
      left /= shape[axis]
    }
    for column in 0..<last { body(row * last + column, place + column * step) }
  }
}
