import Foundation
import StreamFuseCore

/// One answer of the benchmark.
struct Measured: Sendable {
  let text: String
  let statistics: Statistics
}

/// The thermal state of the device; the system slows the processor of a hot one.
public enum Heat: Sendable {
  case normal, warm, hot

  /// Its name.
  var word: Word {
    switch self {
    case .normal: .heatNormal
    case .warm: .heatWarm
    case .hot: .heatHot
    }
  }
}

/// What makes a device slower for a time.
public struct Power: Sendable, Equatable {
  let heat: Heat
  let isSaving: Bool

  /// The state that the system reports.
  public init(_ heat: Heat, isSaving: Bool) {
    self.heat = heat
    self.isSaving = isSaving
  }
}

/// All answers of one benchmark, in the order of their turns.
struct Measurement: Sendable {
  let bundle: String
  let threads: Int?
  /// Before and after the answers; empty if the system does not report it.
  var power: [Power] = []
  /// Peak memory of the app in bytes; nil if the system does not report it.
  var peakBytes: Int64?
  var plain: [Measured] = []
  var speculative: [Measured] = []

  /// Lossless: drafting changes no word.
  var equal: Bool { Set((plain + speculative).map(\.text)).count == 1 }
}

extension Measurement {
  /// Both modes side by side. Medians unless stated otherwise.
  func result(_ device: [String]) -> BenchmarkResult {
    let speeds = [plain, speculative].map { median($0, \.decodeTokensPerSecond) }
    let rows = [
      row(.reportRate, 1) { median($0, \.decodeTokensPerSecond) },
      row(.reportSlowest, 1) { rates($0).min() ?? 0 },
      row(.reportFastest, 1) { rates($0).max() ?? 0 },
      row(.reportFirstToken, 0) { median($0, \.firstTokenMs) },
      row(.reportPrefill, 0) { median($0, \.prefillTokensPerSecond) },
      row(.reportPerPass, 2) { median($0, \.meanAcceptedTokens) },
      row(.reportAccepted, 0, " %") { 100 * median($0, \.acceptanceRate) },
      row(.reportTokens, 0) { median($0) { Double($0.generatedTokens) } },
    ]
    var notes = [equal ? Word.reportEqual() : Word.reportDifferent()]
    if let reason = speculative.lazy.compactMap(\.statistics.fallbackReason).first {
      notes.append("\(Word.reportFallback()): \(reason)")
    }
    let how = threads.map(String.init) ?? Word.automatic().lowercased()
    return BenchmarkResult(
      speedup: speeds[0] > 0 ? String(format: "%.2f", speeds[1] / speeds[0]) : nil, rows: rows, notes: notes,
      about: device + [Word.reportBundle(bundle, how)] + (peakBytes.map { [Word.reportMemory(size($0))] } ?? []) + powerLines)
  }

  private func row(_ name: Word, _ digits: Int, _ unit: String = "", _ ofRuns: ([Measured]) -> Double) -> BenchmarkRow {
    let cells = [plain, speculative].map { String(format: "%.\(digits)f", ofRuns($0)) + unit }
    return BenchmarkRow(name: name(), plain: cells[0], speculative: cells[1])
  }

  private func rates(_ runs: [Measured]) -> [Double] { runs.map { $0.statistics.decodeTokensPerSecond ?? 0 } }

  private func median(_ runs: [Measured], _ value: (Statistics) -> Double?) -> Double {
    let sorted = runs.map { value($0.statistics) ?? 0 }.sorted()
    return sorted.isEmpty ? 0 : sorted[sorted.count / 2]
  }

  /// What slowed the device.
  private var powerLines: [String] {
    guard let before = power.first, let after = power.last else { return [] }
    let heat = Word.reportHeat(before.heat.word(), after.heat.word())
    return [heat] + (power.contains(where: \.isSaving) ? [Word.reportSaver()] : [])
  }
}

/// A figure of the benchmark, in both modes.
public struct BenchmarkRow: Sendable, Equatable, Identifiable {
  /// What it is.
  public let name: String
  /// Without drafts.
  public let plain: String
  /// With drafts.
  public let speculative: String
  /// The name.
  public var id: String { name }
}

/// What a benchmark found.
public struct BenchmarkResult: Sendable, Equatable {
  /// How many times faster drafts are; nil if plain answers have no speed.
  public let speedup: String?
  /// All figures.
  public let rows: [BenchmarkRow]
  /// Whether all answers were equal, and why passes were plain.
  public let notes: [String]
  /// The device, the bundle, memory, and what slowed the device.
  public let about: [String]

  /// As text that can be shared.
  public var report: String {
    let head = BenchmarkRow(name: "", plain: Word.reportPlain(), speculative: Word.reportSpeculative())
    var lines = [Word.reportTitle()] + about + [""] + table([head] + rows) + [""]
    if let speedup { lines.append("\(Word.reportSpeedup()): \(speedup)") }
    return (lines + notes).joined(separator: "\n") + "\n"
  }

  /// The first column to the left, the others to the right.
  private func table(_ rows: [BenchmarkRow]) -> [String] {
    let cells = rows.map { [$0.name, $0.plain, $0.speculative] }
    let widths = cells[0].indices.map { column in cells.map { $0[column].count }.max() ?? 0 }
    return cells.map { row in
      zip(row, widths).enumerated().map { column, cell in
        let gap = String(repeating: " ", count: cell.1 - cell.0.count)
        return column == 0 ? cell.0 + gap : gap + cell.0
      }.joined(separator: "  ")
    }
  }
}
