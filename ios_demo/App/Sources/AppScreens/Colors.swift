#if canImport(UIKit)
  import AppModel
  import SwiftUI
  import UIKit

  /// What a colour is for. All are the system's own, which follow dark mode, contrast and the tint of the app.
  enum Paint {
    case text, textSecondary, question, accent, error
  }

  extension Color {
    /// The system's colour for this.
    init(_ paint: Paint) {
      switch paint {
      case .text: self = .primary
      case .textSecondary: self = .secondary
      case .question: self.init(uiColor: .secondarySystemBackground)
      case .accent: self = .accentColor
      case .error: self = .red
      }
    }
  }

  extension Mark {
    /// Behind drafted text. Quiet enough that text on it keeps its contrast.
    var tint: Color {
      switch self {
      case .streams: .green.opacity(0.18)
      case .lookup: .blue.opacity(0.18)
      case .table: .orange.opacity(0.18)
      case .memory: .purple.opacity(0.18)
      }
    }
  }

  extension Text {
    /// Words of the app.
    init(_ word: Word) { self.init(verbatim: word()) }
  }

  extension Label where Title == Text, Icon == Image {
    /// Words of the app, with a symbol of the system.
    init(_ word: Word, _ symbol: String) {
      self.init(word(), systemImage: symbol)
    }
  }

  extension View {
    /// Lies over what scrolls under it: on glass where the system has it.
    @ViewBuilder func floating(_ cornerRadius: CGFloat = 24) -> some View {
      #if compiler(>=6.2)
        if #available(iOS 26, *) {
          glassEffect(.regular, in: .rect(cornerRadius: cornerRadius))
        } else {
          background(.regularMaterial, in: RoundedRectangle(cornerRadius: cornerRadius))
        }
      #else
        background(.regularMaterial, in: RoundedRectangle(cornerRadius: cornerRadius))
      #endif
    }
  }
#endif
