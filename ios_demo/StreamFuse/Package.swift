// swift-tools-version: 6.0
import PackageDescription

// The core, sessions and the Core ML engine need nothing but Swift. Text (core/bundle, written in Rust) and the native
// engine (with ExecuTorch) are libraries that are built before: STREAMFUSE_LIBRARIES names their folders, separated by
// colons (the Makefile does it, see docs/ios.md). Without them the modules over them are left out.
let folders = (Context.environment["STREAMFUSE_LIBRARIES"] ?? "").split(separator: ":").map(String.init)
let link: [LinkerSetting] = folders.map { .unsafeFlags(["-L\($0)", "-Xlinker", "-rpath", "-Xlinker", $0]) }

let package = Package(
  name: "StreamFuse",
  platforms: [.iOS(.v18), .macOS(.v15)],
  products: [
    .library(name: "StreamFuseCore", targets: ["StreamFuseCore"]),
    .library(name: "StreamFuseCoreML", targets: ["StreamFuseCoreML"]),
  ],
  targets: [
    .target(
      name: "CStreamFuse",
      exclude: ["core/bundle", "core/CMakeLists.txt"],
      cxxSettings: [.headerSearchPath("core")]),
    .target(name: "StreamFuseCore", dependencies: ["CStreamFuse"]),
    .target(name: "StreamFuseCoreML", dependencies: ["StreamFuseCore"]),
    .testTarget(name: "StreamFuseCoreTests", dependencies: ["StreamFuseCore", "CStreamFuse"]),
    .target(name: "FakePackage", dependencies: ["StreamFuseCoreML"], path: "Tests/FakePackage"),
    .testTarget(name: "StreamFuseCoreMLTests", dependencies: ["StreamFuseCoreML", "FakePackage", "CStreamFuse"]),
  ],
  swiftLanguageModes: [.v6],
  cxxLanguageStandard: .cxx20
)

if !folders.isEmpty {
  package.products.append(.library(name: "StreamFuse", targets: ["StreamFuse", "StreamFuseText", "StreamFuseEngine"]))
  package.targets += [
    .systemLibrary(name: "CStreamFuseBundle"),
    .systemLibrary(name: "CStreamFuseEngine"),
    .target(name: "StreamFuseText", dependencies: ["StreamFuseCore", "CStreamFuseBundle"], linkerSettings: link),
    .target(name: "StreamFuseEngine", dependencies: ["StreamFuseCore", "CStreamFuseEngine"], linkerSettings: link),
    .target(name: "StreamFuse", dependencies: ["StreamFuseText", "StreamFuseEngine", "StreamFuseCoreML"]),
    .testTarget(name: "StreamFuseTests", dependencies: ["StreamFuse", "FakePackage"]),
  ]
}
