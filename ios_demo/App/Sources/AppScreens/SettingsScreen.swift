#if canImport(UIKit)
  import AppModel
  import SwiftUI

  /// The settings.
  struct SettingsScreen: View {
    /// The settings.
    let store: SettingsStore
    /// Makes the fields anew where the defaults come back.
    @State private var filled = 0

    var body: some View {
      SettingsForm(store: store) {
        store.clear()
        filled += 1
      }
      .id(filled)
      .navigationTitle(Text(.settings))
    }
  }

  /// What is typed counts at once where it is right; what is wrong is said beside it, and the last right value stays.
  private struct SettingsForm: View {
    let store: SettingsStore
    let restore: @MainActor () -> Void

    @State private var systemPrompt: String
    @State private var speculation: Speculation

    init(store: SettingsStore, restore: @escaping @MainActor () -> Void) {
      self.store = store
      self.restore = restore
      _systemPrompt = State(initialValue: store.settings.systemPrompt)
      _speculation = State(initialValue: store.settings.speculation)
    }

    var body: some View {
      Form {
        Section {
          TextField(Word.systemPrompt(), text: $systemPrompt, axis: .vertical)
            .onChange(of: systemPrompt) { _, text in store.setSystemPrompt(text) }
        } header: {
          Text(.systemPrompt)
        } footer: {
          Text(.systemPromptHelp)
        }
        Section {
          Picker(selection: $speculation) {
            ForEach(Speculation.allCases, id: \.self) { Text($0.word) }
          } label: {
            Text(.speculation)
          }
          .onChange(of: speculation) { _, chosen in store.set(chosen) }
        } footer: {
          Text(.speculationHelp)
        }
        ForEach(Field.allCases, id: \.self) { FieldView(field: $0, store: store) }
        Button(action: restore) { Text(.restoreDefaults) }
      }
    }
  }

  /// A number that the user may set.
  private struct FieldView: View {
    let field: Field
    let store: SettingsStore

    @State private var typed: String
    @State private var wrong: String?

    init(field: Field, store: SettingsStore) {
      self.field = field
      self.store = store
      _typed = State(initialValue: store.settings.numbers[field] ?? "")
    }

    var body: some View {
      Section {
        TextField(field.placeholder(), text: $typed)
          .keyboardType(field.whole ? .numberPad : .decimalPad)
          .accessibilityLabel(Text(field.words.label))
          .onChange(of: typed) { _, text in wrong = store.typed(field, text) }
        if let wrong {
          Text(verbatim: wrong).foregroundStyle(Color(.error))
        }
      } header: {
        Text(field.words.label)
      } footer: {
        Text(field.words.help)
      }
    }
  }
#endif
