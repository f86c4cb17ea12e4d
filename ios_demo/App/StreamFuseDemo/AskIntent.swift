#if canImport(AppIntents)
  import AppIntents
  import AppScreens

  /// "Ask streamfuse", for Siri, Shortcuts and Spotlight: opens the app and asks in a new chat.
  struct AskIntent: AppIntent {
    static let title: LocalizedStringResource = "Ask"
    static let description: IntentDescription? = IntentDescription("Asks the model on this device.")
    static let openAppWhenRun = true

    @Parameter(title: "Question") var question: String

    @MainActor func perform() async throws -> some IntentResult {
      Outside.shared.question = question
      return .result()
    }
  }

  /// What the system offers by itself.
  struct AskShortcuts: AppShortcutsProvider {
    static var appShortcuts: [AppShortcut] {
      AppShortcut(intent: AskIntent(), phrases: ["Ask \(.applicationName)"], shortTitle: "Ask", systemImageName: "text.bubble")
    }
  }
#endif
