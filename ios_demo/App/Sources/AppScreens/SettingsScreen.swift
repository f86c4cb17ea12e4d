#if canImport(UIKit)
  import AppModel
  import StreamFuseCore
  import SwiftUI

  /// The settings. Changes take effect at once; those that load the model again, when the screen is closed.
  struct SettingsScreen: View {
    private static let first: [Field] = [.temperature, .maxNewTokens]
    private static let more: [Field] = [.topK, .topP, .minP, .repetitionPenalty, .threads]

    /// The settings.
    let store: SettingsStore
    /// The chat, whose model has defaults and may remember answers.
    let chat: ChatModel

    @State private var showsMore = false
    @State private var isErasing = false
    @State private var told: String?

    var body: some View {
      Form {
        Section {
          Picker(selection: preset) {
            ForEach(Preset.allCases, id: \.self) { Text($0.word).tag(Optional($0)) }
          } label: {
            Text(.preset)
          }
          .pickerStyle(.segmented)
          ForEach(Self.first, id: \.self) { SliderRow(field: $0, store: store, defaults: chat.defaults) }
        } header: {
          Text(.preset)
        }
        Section {
          TextField(Word.systemPrompt(), text: systemPrompt, axis: .vertical)
        } header: {
          Text(.systemPrompt)
        } footer: {
          Text(.systemPromptHelp)
        }
        ForEach([Switch.showsDrafts, .dropsOldest], id: \.self) { toggle($0) }
        toggle(.remembersAnswers)
        Section {
          Button(role: .destructive) { isErasing = true } label: { Text(.eraseAnswers) }
          if let told { Text(verbatim: told).foregroundStyle(.secondary) }
        }
        Section {
          DisclosureGroup(isExpanded: $showsMore) {
            ForEach(Self.more, id: \.self) { SliderRow(field: $0, store: store, defaults: chat.defaults) }
            NumberRow(field: .seed, store: store)
            Picker(selection: speculation) {
              ForEach(Speculation.allCases, id: \.self) { Text($0.word).tag($0) }
            } label: {
              Text(.speculation)
            }
            Text(.speculationHelp).font(.footnote).foregroundStyle(.secondary)
          } label: {
            Text(.moreSettings)
          }
        }
        Button { store.clear() } label: { Text(.restoreDefaults) }
      }
      .navigationTitle(Text(.settings))
      .alert(Text(.eraseAnswersQuestion), isPresented: $isErasing) {
        Button(role: .destructive) {
          Task {
            let words = await chat.forgetAnswers().value
            told = words
            announce(words)
          }
        } label: {
          Text(.erase)
        }
        Button(role: .cancel) {} label: { Text(.cancel) }
      }
    }

    private func toggle(_ toggle: Switch) -> some View {
      Section {
        Toggle(isOn: Binding { @MainActor in toggle.isOn(store.settings) } set: { @MainActor in store.set(toggle, $0) }) {
          Text(toggle.words.label)
        }
      } footer: {
        Text(toggle.words.help)
      }
    }

    private var preset: Binding<Preset?> {
      Binding { @MainActor in
        Preset.allCases.first { $0.isIn(store.settings) }
      } set: { @MainActor in
        if let chosen = $0 { store.set(chosen) }
      }
    }

    private var systemPrompt: Binding<String> {
      Binding { @MainActor in store.settings.systemPrompt } set: { @MainActor in store.setSystemPrompt($0) }
    }

    private var speculation: Binding<Speculation> {
      Binding { @MainActor in store.settings.speculation } set: { @MainActor in store.set($0) }
    }
  }

  /// A number on a slider, beside its value.
  private struct SliderRow: View {
    let field: Field
    let store: SettingsStore
    let defaults: GenerationConfig

    var body: some View {
      if let slider = field.slider {
        VStack(alignment: .leading, spacing: 4) {
          HStack {
            Text(field.words.label)
            Spacer()
            Text(verbatim: store.shown(field, defaults)).monospacedDigit().foregroundStyle(.secondary)
            if store.settings.numbers[field] != nil {
              Button { store.reset(field) } label: { Image(systemName: "arrow.uturn.backward") }
                .buttonStyle(.borderless)
                .accessibilityLabel(Text(.bundleDefault))
            }
          }
          Slider(value: value, in: slider.range, step: slider.step) { Text(field.words.label) }
            .accessibilityValue(Text(verbatim: store.shown(field, defaults)))
          Text(field.words.help).font(.footnote).foregroundStyle(.secondary)
        }
      }
    }

    private var value: Binding<Double> {
      Binding { @MainActor in store.position(field, defaults) } set: { @MainActor in store.slide(field, to: $0) }
    }
  }

  /// A text field for a number. Invalid input shows an error and keeps the last valid value.
  private struct NumberRow: View {
    let field: Field
    let store: SettingsStore

    @State private var typed = ""
    @State private var error: String?

    var body: some View {
      VStack(alignment: .leading, spacing: 4) {
        HStack {
          Text(field.words.label)
          TextField(field.placeholder(), text: $typed)
            .keyboardType(.numberPad)
            .multilineTextAlignment(.trailing)
            .onChange(of: typed) { _, text in error = store.typed(field, text) }
        }
        if let error { Text(verbatim: error).foregroundStyle(Color(.error)) }
        Text(field.words.help).font(.footnote).foregroundStyle(.secondary)
      }
      .onChange(of: store.settings.numbers[field], initial: true) { _, number in typed = number ?? "" }
    }
  }
#endif
