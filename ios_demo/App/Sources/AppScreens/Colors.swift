#if canImport(UIKit)
  import AppModel
  import SwiftUI
  import UIKit

  extension Color {
    /// A colour of the app, which follows the dark mode.
    init(_ paint: Paint) {
      self.init(
        uiColor: UIColor { traits in
          let rgb = traits.userInterfaceStyle == .dark ? paint.dark : paint.light
          func part(_ shift: UInt32) -> CGFloat { CGFloat(rgb >> shift & 0xFF) / 255 }
          return UIColor(red: part(16), green: part(8), blue: part(0), alpha: 1)
        })
    }
  }

  extension Text {
    /// Words of the app.
    init(_ word: Word) { self.init(verbatim: word()) }

    /// Text whose drafted parts are coloured and underlined by their source.
    init(runs: [Run]) {
      var whole = AttributedString()
      for run in runs {
        var part = AttributedString(run.text)
        if let look = Mark(run.source)?.look {
          part.foregroundColor = Color(look.paint)
          part.underlineStyle = Text.LineStyle(pattern: look.line.pattern, color: Color(look.paint))
        }
        whole += part
      }
      self.init(whole)
    }
  }

  extension Mark.Line {
    /// SwiftUI's name of it.
    fileprivate var pattern: Text.LineStyle.Pattern {
      switch self {
      case .solid: .solid
      case .dashed: .dash
      case .dotted: .dot
      }
    }
  }
#endif
