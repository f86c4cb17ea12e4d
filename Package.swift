// swift-tools-version: 6.0
import Foundation
import PackageDescription

// The core and the Core ML engine need nothing but Swift. What opens bundles needs a native library (docs/ios.md):
//
// * Apple: the framework that ios_demo/tools/xcframework builds, or that a release names. It holds the core too.
// * Linux: a built libstreamfuse, in a folder that STREAMFUSE_LIBRARIES names (`make ios`). It holds the core too.
// * STREAMFUSE_SOURCE=1 on Apple, or no STREAMFUSE_LIBRARIES on Linux: none. The core is compiled from source, and the
//   module over the library is left out.
// * Both on Linux: the library, and a core compiled from source, for example with a sanitizer.

/// The published framework of this version; nil: the local build.
let release: (url: String, checksum: String)? = nil

let folders = (Context.environment["STREAMFUSE_LIBRARIES"] ?? "").split(separator: ":").map(String.init)
#if os(Linux)
  let usesFramework = false
  let opensBundles = !folders.isEmpty
  let compilesCore = !opensBundles || Context.environment["STREAMFUSE_SOURCE"] != nil
  // Linux has no Core ML and no FoundationModels. For tests, what names their types is compiled over declarations of them.
  let fakeApple = Context.environment["STREAMFUSE_FAKE_APPLE"] != nil
  let version2: [SwiftSetting] = [.unsafeFlags(["-user-module-version", "2"])]
  // The tests of a debug build take minutes with a core that is not optimized.
  let optimized: [CXXSetting] = [.unsafeFlags(["-O2"], .when(configuration: .debug))]
  let link: [LinkerSetting] =
    folders.map { .unsafeFlags(["-L\($0)", "-Xlinker", "-rpath", "-Xlinker", $0]) }
    + (opensBundles ? [.linkedLibrary("streamfuse")] : [])
  // Only Apple's stores read it.
  let privacy: (exclude: [String], resources: [Resource]) = (["PrivacyInfo.xcprivacy"], [])
  // The store hashes downloads with CryptoKit, which only Apple has. This is a stand-in.
  let cryptoKit: [Target] = [
    .target(name: "CryptoKit", path: "ios_demo/StreamFuse/Tests/Apple/CryptoKit", swiftSettings: [.unsafeFlags(["-O"])])
  ]
#else
  let usesFramework = Context.environment["STREAMFUSE_SOURCE"] == nil
  let opensBundles = usesFramework
  let compilesCore = !usesFramework
  let fakeApple = false
  let version2: [SwiftSetting] = []
  let optimized: [CXXSetting] = []
  let link: [LinkerSetting] = []
  let privacy: (exclude: [String], resources: [Resource]) = ([], [.copy("PrivacyInfo.xcprivacy")])
  let cryptoKit: [Target] = []
#endif

let sources = "ios_demo/StreamFuse/Sources"
let tests = "ios_demo/StreamFuse/Tests"
/// What the framework calls: Core ML, Accelerate and sqlite3 only if it was built with --coreml.
let systemLibraries: [LinkerSetting] =
  ["c++", "sqlite3"].map { .linkedLibrary($0) }
  + ["Accelerate", "CoreFoundation", "CoreML", "Foundation"].map { .linkedFramework($0) }
let coreMLSettings: [SwiftSetting] = fakeApple ? [.define("FAKE_CORE_ML")] : []

/// What has the modules CStreamFuse and, where bundles can be opened, CStreamFuseNative.
let core: Target.Dependency = usesFramework ? "StreamFuseNative" : "CStreamFuse"
let native: [Target.Dependency] = usesFramework ? [core] : [core, "CStreamFuseNative"]

func test(_ name: String, _ dependencies: [Target.Dependency], settings: [SwiftSetting] = []) -> Target {
  .testTarget(name: name, dependencies: dependencies, path: "\(tests)/\(name)", swiftSettings: settings)
}

let package = Package(
  name: "StreamFuse",
  platforms: [.iOS(.v18), .macOS(.v15)],
  products: [
    .library(name: "StreamFuseCore", targets: ["StreamFuseCore"]),
    .library(name: "StreamFuseCoreML", targets: ["StreamFuseCoreML"]),
    .library(name: "StreamFuseFoundationModels", targets: ["StreamFuseFoundationModels"]),
  ],
  targets: [
    .target(
      name: "CTensor", path: "\(sources)/CTensor",
      cxxSettings: [.headerSearchPath("../../../../core")] + optimized),
    .target(
      name: "StreamFuseCore", dependencies: [core] + cryptoKit.map { .byName(name: $0.name) },
      path: "\(sources)/StreamFuseCore", exclude: privacy.exclude, resources: privacy.resources,
      linkerSettings: usesFramework ? systemLibraries : link),
    .target(
      name: "StreamFuseCoreML",
      dependencies: ["StreamFuseCore", core, "CTensor"] + (fakeApple ? ["FakeCoreML"] : []),
      path: "\(sources)/StreamFuseCoreML", swiftSettings: coreMLSettings),
    .target(
      name: "StreamFuseFoundationModels", dependencies: ["StreamFuseCore"] + (fakeApple ? ["FoundationModels"] : []),
      path: "\(sources)/StreamFuseFoundationModels"),
    .target(name: "Arithmetic", dependencies: ["StreamFuseCore", core], path: "\(tests)/Arithmetic"),
    test("StreamFuseCoreTests", ["StreamFuseCore", core, "Arithmetic"]),
    .target(name: "FakePackage", dependencies: ["StreamFuseCoreML"], path: "\(tests)/FakePackage"),
    test("StreamFuseCoreMLTests", ["StreamFuseCoreML", "FakePackage", core], settings: coreMLSettings),
  ],
  swiftLanguageModes: [.v6],
  cxxLanguageStandard: .cxx20
)

if usesFramework {
  let name = "StreamFuseNative"
  package.targets.append(
    release.map { .binaryTarget(name: name, url: $0.url, checksum: $0.checksum) }
      ?? .binaryTarget(name: name, path: "build/apple-package/StreamFuseNative.xcframework"))
} else {
  // Where the library holds the core, this target is for its headers; the package manager wants a source file in it.
  package.targets.append(
    .target(
      name: "CStreamFuse", path: "core", exclude: ["CMakeLists.txt", "tests"],
      sources: compilesCore ? nil : ["tree.cpp"], publicHeadersPath: ".", cxxSettings: optimized))
}

package.targets += cryptoKit

if fakeApple {
  package.targets += [
    .target(name: "FakeCoreML", path: "\(tests)/Apple/FakeCoreML"),
    test("CoreMLRunnerTests", ["StreamFuseCore", "StreamFuseCoreML", "FakeCoreML"]),
    .target(
      name: "FoundationModels", path: "\(tests)/Apple/FoundationModels",
      swiftSettings: version2),
    test("FoundationModelsTests", ["StreamFuseCore", "StreamFuseFoundationModels", "FoundationModels", "Arithmetic"]),
  ]
}

if opensBundles {
  package.products.append(.library(name: "StreamFuse", targets: ["StreamFuse"]))
  package.targets += [
    .target(
      name: "StreamFuse", dependencies: ["StreamFuseCore", "StreamFuseCoreML"] + native, path: "\(sources)/StreamFuse"),
    test("StreamFuseTests", ["StreamFuse", core, "Arithmetic"]),
  ]
  if !usesFramework {
    package.targets.append(.systemLibrary(name: "CStreamFuseNative", path: "\(sources)/CStreamFuseNative"))
  }
  if fakeApple {
    package.targets.append(test("CoreMLReplayTests", ["StreamFuse", "StreamFuseCoreML", "FakeCoreML"]))
    package.targets.append(
      test("FoundationModelsBundleTests", ["StreamFuse", "StreamFuseFoundationModels", "FoundationModels"]))
  }
}
