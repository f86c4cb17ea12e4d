import AppLibrary
import AppScreens
import SwiftUI

/// The app: its screens over the library.
@main
struct StreamFuseDemoApp: App {
  var body: some Scene { DemoScene(library: InstalledLibrary()) }
}
