// swift-tools-version: 6.0
import Foundation
import PackageDescription

// The core and the Core ML engine need nothing but Swift. What opens bundles (native/, over text/ in Rust and the native
// engine over ExecuTorch) needs libraries, and without them the module over it is left out (docs/ios.md).
//
// An app in debug needs the speed of its loops too: without optimization the core alone would take longer than a pass.
let optimized = CXXSetting.unsafeFlags(["-O2"], .when(configuration: .debug))

let sources = "ios_demo/StreamFuse/Sources"
let tests = "ios_demo/StreamFuse/Tests"

func swift(_ name: String, _ dependencies: [Target.Dependency] = [], settings: [SwiftSetting] = [], link: [LinkerSetting] = [])
  -> Target
{
  .target(
    name: name, dependencies: dependencies, path: "\(sources)/\(name)", swiftSettings: settings, linkerSettings: link)
}
func test(_ name: String, _ dependencies: [Target.Dependency], settings: [SwiftSetting] = []) -> Target {
  .testTarget(name: name, dependencies: dependencies, path: "\(tests)/\(name)", swiftSettings: settings)
}

// Linux has no Core ML. For tests, the file that names its types is compiled and run over declarations of them.
#if os(Linux)
  let fakeCoreML = Context.environment["STREAMFUSE_FAKE_CORE_ML"] != nil
#else
  let fakeCoreML = false
#endif
let coreMLSettings: [SwiftSetting] = fakeCoreML ? [.define("FAKE_CORE_ML")] : []

let package = Package(
  name: "StreamFuse",
  platforms: [.iOS(.v18), .macOS(.v15)],
  products: [
    .library(name: "StreamFuseCore", targets: ["StreamFuseCore"]),
    .library(name: "StreamFuseCoreML", targets: ["StreamFuseCoreML"]),
  ],
  targets: [
    .target(
      name: "CStreamFuse", path: "core", exclude: ["CMakeLists.txt", "tests"], publicHeadersPath: ".", cxxSettings: [optimized]),
    .target(
      name: "CTensor", path: "\(sources)/CTensor",
      cxxSettings: [.headerSearchPath("../../../../core"), optimized]),
    swift("StreamFuseCore", ["CStreamFuse"]),
    swift(
      "StreamFuseCoreML", ["StreamFuseCore", "CTensor"] + (fakeCoreML ? ["FakeCoreML"] : []),
      settings: coreMLSettings),
    .target(name: "Arithmetic", dependencies: ["StreamFuseCore", "CStreamFuse"], path: "\(tests)/Arithmetic"),
    test("StreamFuseCoreTests", ["StreamFuseCore", "CStreamFuse", "Arithmetic"]),
    .target(name: "FakePackage", dependencies: ["StreamFuseCoreML"], path: "\(tests)/FakePackage"),
    test("StreamFuseCoreMLTests", ["StreamFuseCoreML", "FakePackage", "CStreamFuse"], settings: coreMLSettings),
  ],
  swiftLanguageModes: [.v6],
  cxxLanguageStandard: .cxx20
)

if fakeCoreML {
  package.targets += [
    .target(name: "FakeCoreML", path: "\(tests)/Apple/FakeCoreML"),
    test("CoreMLRunnerTests", ["StreamFuseCore", "StreamFuseCoreML", "FakeCoreML"]),
  ]
}

// Linux: built libraries, whose folders STREAMFUSE_LIBRARIES names, separated by colons (`make ios`).
let folders = (Context.environment["STREAMFUSE_LIBRARIES"] ?? "").split(separator: ":").map(String.init)
let link: [LinkerSetting] = folders.map { .unsafeFlags(["-L\($0)", "-Xlinker", "-rpath", "-Xlinker", $0]) }

// Apple: native/ from its sources, text/ as a framework that ios_demo/tools/frameworks makes, and the engine's sources over ExecuTorch's own
// package. Its branch is named after the version that exports the bundles.
let framework = "ios_demo/StreamFuse/Frameworks/CStreamFuseBundle.xcframework"
let onApple = FileManager.default.fileExists(atPath: "\(Context.packageDirectory)/\(framework)")
let executorch = "swiftpm-1.5.1"

/// The operators' arithmetic for one instruction set; the engine asks the processor which it has.
func kernels(_ isa: String, _ flags: [String] = []) -> Target {
  .target(
    name: isa, path: "\(sources)/Apple/\(isa)",
    cxxSettings: [
      .headerSearchPath("../../../../../core"), .define("STREAMFUSE_ISA", to: isa), .unsafeFlags(["-O3"] + flags),
    ])
}

if onApple {
  package.dependencies.append(.package(url: "https://github.com/pytorch/executorch.git", branch: executorch))
  package.targets += [
    .binaryTarget(name: "CStreamFuseBundle", path: framework),
    kernels("neon"),
    kernels("neon_dot", ["-march=armv8.2-a+dotprod"]),
    kernels("neon_i8mm", ["-march=armv8.2-a+dotprod+i8mm"]),
    .target(
      name: "CStreamFuseEngine",
      dependencies: ["CStreamFuse", "neon", "neon_dot", "neon_i8mm"]
        + ["executorch", "executorch_dump", "backend_coreml", "backend_xnnpack", "kernels_optimized"].map {
          .product(name: $0, package: "executorch")
        },
      path: "kernels",
      exclude: [
        "CMakeLists.txt", "apple", "arm", "tests", "tools", "ops/lane_kernels.cpp", "ops/product_kernels.cpp",
      ],
      publicHeadersPath: "engine",
      cxxSettings: [
        .headerSearchPath("../core"), .headerSearchPath("."),
        .define("C10_USING_CUSTOM_GENERATED_MACROS"),  // as ExecuTorch's own targets ask for
      ],
      // Operators and backends register themselves, and nothing names them.
      linkerSettings: [.unsafeFlags(["-Xlinker", "-all_load"])]),
    .target(
      name: "CStreamFuseNative", dependencies: ["CStreamFuse", "CStreamFuseBundle", "CStreamFuseEngine"], path: "native",
      publicHeadersPath: ".",
      cxxSettings: [.headerSearchPath("../core"), .headerSearchPath("../text"), .headerSearchPath("../kernels/engine")]),
  ]
} else if !folders.isEmpty {
  package.targets.append(.systemLibrary(name: "CStreamFuseNative", path: "\(sources)/CStreamFuseNative"))
}

if onApple || !folders.isEmpty {
  package.products.append(.library(name: "StreamFuse", targets: ["StreamFuse"]))
  package.targets += [
    swift("StreamFuse", ["StreamFuseCore", "StreamFuseCoreML", "CStreamFuse", "CStreamFuseNative"], link: link),
    test("StreamFuseTests", ["StreamFuse", "CStreamFuse", "Arithmetic"]),
  ]
  if fakeCoreML {
    package.targets.append(test("CoreMLReplayTests", ["StreamFuse", "StreamFuseCoreML", "FakeCoreML"]))
  }
}
