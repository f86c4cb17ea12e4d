#if canImport(UIKit)
  import AppModel
  import SwiftUI

  /// Measures with and without speculation, and checks the device.
  struct BenchmarkScreen: View {
    /// The benchmark.
    let benchmark: BenchmarkModel
    /// The check of this device.
    let check: DeviceCheck

    @State private var prompt = Word.benchmarkPrompt()
    @State private var tokens = "128"

    var body: some View {
      Form {
        if let result = benchmark.result { ResultView(result: result) }
        Section {
          Button {
            if benchmark.running { benchmark.cancel() } else { benchmark.run(prompt: prompt, tokens: tokens) }
          } label: {
            Text(benchmark.running ? .cancel : .run)
          }
          if benchmark.running {
            ProgressView(value: Double(benchmark.done), total: Double(benchmark.total))
          }
          if let note = benchmark.note { Text(verbatim: note) }
        } footer: {
          Text(verbatim: Word.benchmarkHelp(BenchmarkModel.repetitions))
        }
        Section {
          TextField(Word.benchmarkPromptLabel(), text: $prompt, axis: .vertical)
        } header: {
          Text(.benchmarkPromptLabel)
        }
        Section {
          TextField(Word.benchmarkTokens(), text: $tokens).keyboardType(.numberPad)
        } header: {
          Text(.benchmarkTokens)
        }
        Section {
          Button {
            check.run()
          } label: {
            Text(.checkDevice)
          }
          .disabled(check.isRunning)
          if check.isRunning { Text(.checking) }
          ForEach(check.lines, id: \.self) { Text(verbatim: $0) }
        } footer: {
          Text(.checkDeviceHelp)
        }
      }
      .navigationTitle(Text(.benchmark))
      .onChange(of: benchmark.running) { _, running in
        if !running { announce(benchmark.note) }
      }
      .onChange(of: check.isRunning) { _, running in
        if !running { announce(check.lines.first) }
      }
    }
  }

  /// What it found: the speed-up first, then both modes side by side.
  private struct ResultView: View {
    let result: BenchmarkResult

    var body: some View {
      Section {
        if let speedup = result.speedup {
          VStack(spacing: 4) {
            Text(verbatim: Word.chipSpeedup(speedup)).font(.largeTitle.bold()).monospacedDigit()
            Text(.headlineHelp).foregroundStyle(.secondary)
          }
          .frame(maxWidth: .infinity)
          .accessibilityElement(children: .combine)
        }
        ForEach(result.notes, id: \.self) { Text(verbatim: $0).font(.footnote).foregroundStyle(.secondary) }
      }
      Section {
        Grid(alignment: .trailing, horizontalSpacing: 12, verticalSpacing: 6) {
          GridRow {
            Text(verbatim: "")
            Text(.reportPlain)
            Text(.reportSpeculative)
          }
          .font(.footnote)
          .foregroundStyle(.secondary)
          ForEach(result.rows) { row in
            GridRow {
              Text(verbatim: row.name).frame(maxWidth: .infinity, alignment: .leading)
              Text(verbatim: row.plain).monospacedDigit()
              Text(verbatim: row.speculative).monospacedDigit().bold()
            }
            .accessibilityElement(children: .combine)
          }
        }
        ForEach(result.about, id: \.self) { Text(verbatim: $0).font(.footnote) }
        ShareLink(item: result.report, subject: Text(.reportTitle)) { Label(.share, "square.and.arrow.up") }
      }
    }
  }
#endif
