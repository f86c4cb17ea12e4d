// swift-tools-version: 6.0
import PackageDescription

let package = Package(
  name: "StreamFuse",
  platforms: [.iOS(.v18), .macOS(.v15)],
  products: [
    .library(name: "StreamFuseCore", targets: ["StreamFuseCore"])
  ],
  targets: [
    .target(
      name: "CStreamFuse",
      exclude: ["core/bundle", "core/CMakeLists.txt"],
      cxxSettings: [.headerSearchPath("core")]),
    .target(name: "StreamFuseCore", dependencies: ["CStreamFuse"]),
    .testTarget(name: "StreamFuseCoreTests", dependencies: ["StreamFuseCore", "CStreamFuse"]),
  ],
  swiftLanguageModes: [.v6],
  cxxLanguageStandard: .cxx20
)
