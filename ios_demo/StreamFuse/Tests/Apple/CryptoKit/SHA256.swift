// What the library uses of Apple's CryptoKit, for Linux: SHA-256 (FIPS 180-4).
import Foundation

/// 32 bytes.
public struct SHA256Digest: Sequence {
  let bytes: [UInt8]
  public func makeIterator() -> [UInt8].Iterator { bytes.makeIterator() }
}

public struct SHA256 {
  private static let constants: [UInt32] = primes(64).map { fraction(cbrt(Double($0))) }
  private var state: [UInt32] = primes(8).map { fraction(Double($0).squareRoot()) }
  private var rest: [UInt8] = []  // less than a block
  private var count: UInt64 = 0

  public init() {}

  public mutating func update<D: DataProtocol>(data: D) {
    count += UInt64(data.count)
    rest += data
    let blocks = rest.count / 64
    rest.withUnsafeBufferPointer { bytes in
      for block in 0..<blocks { Self.mix(&state, UnsafeBufferPointer(rebasing: bytes[(64 * block)..<(64 * block + 64)])) }
    }
    rest.removeFirst(64 * blocks)
  }

  public func finalize() -> SHA256Digest {
    var last = self
    let bits = count * 8
    let padding = [0x80] + [UInt8](repeating: 0, count: (119 - Int(count % 64)) % 64)
    last.update(data: padding + (0..<8).map { UInt8(truncatingIfNeeded: bits >> (56 - 8 * $0)) })
    return SHA256Digest(bytes: last.state.flatMap { word in (0..<4).map { UInt8(truncatingIfNeeded: word >> (24 - 8 * $0)) } })
  }

  private static func mix(_ state: inout [UInt32], _ block: UnsafeBufferPointer<UInt8>) {
    func right(_ word: UInt32, _ places: UInt32) -> UInt32 { word >> places | word << (32 - places) }
    withUnsafeTemporaryAllocation(of: UInt32.self, capacity: 64) { w in
      for t in 0..<16 {
        w[t] = UInt32(block[4 * t]) << 24 | UInt32(block[4 * t + 1]) << 16 | UInt32(block[4 * t + 2]) << 8 | UInt32(block[4 * t + 3])
      }
      for t in 16..<64 {
        let small0 = right(w[t - 15], 7) ^ right(w[t - 15], 18) ^ w[t - 15] >> 3
        let small1 = right(w[t - 2], 17) ^ right(w[t - 2], 19) ^ w[t - 2] >> 10
        w[t] = w[t - 16] &+ small0 &+ w[t - 7] &+ small1
      }
      var (a, b, c, d) = (state[0], state[1], state[2], state[3])
      var (e, f, g, h) = (state[4], state[5], state[6], state[7])
      for t in 0..<64 {
        let big1 = right(e, 6) ^ right(e, 11) ^ right(e, 25)
        let first = h &+ big1 &+ (e & f ^ ~e & g) &+ constants[t] &+ w[t]
        let big0 = right(a, 2) ^ right(a, 13) ^ right(a, 22)
        let second = big0 &+ (a & b ^ a & c ^ b & c)
        (h, g, f, e, d, c, b, a) = (g, f, e, d &+ first, c, b, a, first &+ second)
      }
      for (place, word) in [a, b, c, d, e, f, g, h].enumerated() { state[place] &+= word }
    }
  }

  private static func primes(_ count: Int) -> [Int] {
    Array((2...).lazy.filter { number in !(2..<number).contains { number % $0 == 0 } }.prefix(count))
  }

  /// The first 32 bits after the point.
  private static func fraction(_ number: Double) -> UInt32 { UInt32((number - number.rounded(.down)) * 4_294_967_296) }
}
