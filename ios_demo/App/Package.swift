// swift-tools-version: 6.0
import PackageDescription

// What the app is made of: its behaviour in plain Swift, which is tested on Linux, its screens, and the library behind
// both. The last is there where ../../Package.swift has it: on Apple always, on Linux with STREAMFUSE_LIBRARIES.
#if os(Linux)
  let hasLibraries = !(Context.environment["STREAMFUSE_LIBRARIES"] ?? "").isEmpty
#else
  let hasLibraries = true
#endif
let streamFuse = "StreamFuse"
// Swift 6.0 on Linux: libswiftObservation.so names a function that no library has, and calls it nowhere but at a fatal error.
let link: [LinkerSetting] = [.unsafeFlags(["-Xlinker", "--allow-shlib-undefined"], .when(platforms: [.linux]))]

let package = Package(
  name: "StreamFuseApp",
  platforms: [.iOS(.v18), .macOS(.v15)],
  products: [.library(name: "AppScreens", targets: ["AppScreens"])],
  dependencies: [.package(name: streamFuse, path: "../..")],
  targets: [
    .target(name: "AppModel", dependencies: [.product(name: "StreamFuseCore", package: streamFuse)]),
    .target(name: "AppScreens", dependencies: ["AppModel", .product(name: "StreamFuseCore", package: streamFuse)]),
    .testTarget(name: "AppModelTests", dependencies: ["AppModel"], linkerSettings: link),
  ],
  swiftLanguageModes: [.v6],
  cxxLanguageStandard: .cxx20
)

if hasLibraries {
  package.products.append(.library(name: "AppLibrary", targets: ["AppLibrary"]))
  package.targets += [
    .target(name: "AppLibrary", dependencies: ["AppModel", .product(name: "StreamFuse", package: streamFuse)]),
    .testTarget(name: "AppLibraryTests", dependencies: ["AppLibrary"], linkerSettings: link),
  ]
}

// Where there is no SwiftUI and no file coordination, the app is compiled against declarations of them, which checks its types.
#if os(Linux)
  package.targets.append(.target(name: "FileProviders", path: "Tests/Apple/FileProviders"))
  for target in package.targets where ["AppModel", "AppModelTests"].contains(target.name) {
    target.dependencies.append("FileProviders")
  }
  let apple: [Target] = [
    .target(name: "AppIntents", path: "Tests/Apple/AppIntents"),
    .target(name: "Accessibility", path: "Tests/Apple/Accessibility"),
    .target(name: "UIKit", path: "Tests/Apple/UIKit"),
    .target(name: "UniformTypeIdentifiers", path: "Tests/Apple/UniformTypeIdentifiers"),
    .target(name: "SwiftUI", dependencies: ["UIKit", "UniformTypeIdentifiers"], path: "Tests/Apple/SwiftUI"),
  ]
  package.targets += apple
  let onScreen = apple.filter { $0.name != "AppIntents" }
  package.targets.first { $0.name == "AppScreens" }?.dependencies += onScreen.map { .byName(name: $0.name) }
  if hasLibraries {
    package.targets.append(
      .executableTarget(
        name: "StreamFuseDemo", dependencies: ["AppLibrary", "AppScreens", "AppIntents"], path: "StreamFuseDemo",
        exclude: ["StreamFuseDemo.xcodeproj", "Assets.xcassets", "PrivacyInfo.xcprivacy", "Localizable.xcstrings"],
        linkerSettings: link))
  }
#endif
