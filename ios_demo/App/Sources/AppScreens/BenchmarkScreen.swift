#if canImport(UIKit)
  import Accessibility
  import AppModel
  import SwiftUI

  /// Measures with and without speculation.
  struct BenchmarkScreen: View {
    /// The benchmark.
    let benchmark: BenchmarkModel

    @State private var prompt = Word.benchmarkPrompt()
    @State private var tokens = "128"

    var body: some View {
      Form {
        Text(verbatim: Word.benchmarkHelp(BenchmarkModel.repetitions)).foregroundStyle(Color(.textSecondary))
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
            if benchmark.running { benchmark.cancel() } else { benchmark.run(prompt: prompt, tokens: tokens) }
          } label: {
            Text(benchmark.running ? .cancel : .run)
          }
          if benchmark.running {
            ProgressView(value: Double(benchmark.done), total: Double(benchmark.total))
          }
          if let note = benchmark.note { Text(verbatim: note) }
        }
        if let report = benchmark.report {
          Section {
            ScrollView(.horizontal) {
              Text(verbatim: report).font(.footnote.monospaced()).textSelection(.enabled)
            }
            ShareLink(item: report, subject: Text(.reportTitle)) { Text(.share) }
          }
        }
      }
      .navigationTitle(Text(.benchmark))
      .onChange(of: benchmark.running) { _, running in
        if !running, let note = benchmark.note { AccessibilityNotification.Announcement(note).post() }
      }
    }
  }
#endif
