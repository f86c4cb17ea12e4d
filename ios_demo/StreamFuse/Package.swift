// swift-tools-version: 6.0
import Foundation
import PackageDescription

// The core, sessions and the Core ML engine need nothing but Swift. Text (text, written in Rust) and the native
// engine (with ExecuTorch) need libraries, and without them the modules over them are left out. docs/ios.md says more.
//
// An app in debug needs the speed of its loops too: without optimization the core alone would take longer than a pass.
let optimized = CXXSetting.unsafeFlags(["-O2"], .when(configuration: .debug))

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
      exclude: ["text", "core/CMakeLists.txt"],
      cxxSettings: [.headerSearchPath("core"), optimized]),
    .target(
      name: "CTensor", exclude: ["core"], sources: ["tensor.cpp"], cxxSettings: [.headerSearchPath("core"), optimized]),
    .target(name: "StreamFuseCore", dependencies: ["CStreamFuse"]),
    .target(name: "StreamFuseCoreML", dependencies: ["StreamFuseCore", "CTensor"]),
    .testTarget(name: "StreamFuseCoreTests", dependencies: ["StreamFuseCore", "CStreamFuse"]),
    .target(name: "FakePackage", dependencies: ["StreamFuseCoreML"], path: "Tests/FakePackage"),
    .testTarget(name: "StreamFuseCoreMLTests", dependencies: ["StreamFuseCoreML", "FakePackage", "CStreamFuse"]),
  ],
  swiftLanguageModes: [.v6],
  cxxLanguageStandard: .cxx20
)

// Where there is no Core ML, the file that names its types is compiled and run against declarations of it.
#if os(Linux)
  package.targets += [
    .target(name: "FakeCoreML", path: "Tests/Apple/FakeCoreML"),
    .target(
      name: "CoreMLOnLinux", dependencies: ["StreamFuseCore", "CTensor", "FakeCoreML"], path: "Tests/Apple/CoreMLOnLinux",
      swiftSettings: [.define("FAKE_CORE_ML")]),
    .testTarget(name: "CoreMLRunnerTests", dependencies: ["StreamFuseCore", "CoreMLOnLinux", "FakeCoreML"]),
  ]
#endif

// Linux: built libraries, whose folders STREAMFUSE_LIBRARIES names, separated by colons (`make ios`).
let folders = (Context.environment["STREAMFUSE_LIBRARIES"] ?? "").split(separator: ":").map(String.init)
let link: [LinkerSetting] = folders.map { .unsafeFlags(["-L\($0)", "-Xlinker", "-rpath", "-Xlinker", $0]) }

// Apple: text as a framework that ios_demo/tools/frameworks makes, and the engine's sources over ExecuTorch's own
// package. Its branch is named after the version that exports the bundles.
let framework = "Frameworks/CStreamFuseBundle.xcframework"
let onApple = FileManager.default.fileExists(atPath: "\(Context.packageDirectory)/\(framework)")
let executorch = "swiftpm-1.5.1"

/// The operators' arithmetic for one instruction set; the engine asks the processor which it has.
func kernels(_ isa: String, _ flags: [String] = []) -> Target {
  .target(
    name: isa, path: "Sources/Apple/\(isa)", exclude: ["ops", "core"],
    sources: ["lane_kernels.cpp", "product_kernels.cpp"],
    cxxSettings: [
      .headerSearchPath("ops"), .headerSearchPath("core"), .define("STREAMFUSE_ISA", to: isa),
      .unsafeFlags(["-O3"] + flags),
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
      path: "Sources/Apple/CStreamFuseEngine",
      exclude: ["core", "kernels/ops/lane_kernels.cpp", "kernels/ops/product_kernels.cpp"],
      sources: ["kernels/engine", "kernels/ops"],
      cxxSettings: [
        .headerSearchPath("core"), .headerSearchPath("kernels"),
        .define("C10_USING_CUSTOM_GENERATED_MACROS"),  // as ExecuTorch's own targets ask for
      ],
      // Operators and backends register themselves, and nothing names them.
      linkerSettings: [.unsafeFlags(["-Xlinker", "-all_load"])]),
  ]
} else if !folders.isEmpty {
  package.targets += [.systemLibrary(name: "CStreamFuseBundle"), .systemLibrary(name: "CStreamFuseEngine")]
}

if onApple || !folders.isEmpty {
  package.products.append(.library(name: "StreamFuse", targets: ["StreamFuse", "StreamFuseText", "StreamFuseEngine"]))
  package.targets += [
    .target(name: "StreamFuseText", dependencies: ["StreamFuseCore", "CStreamFuseBundle"], linkerSettings: link),
    .target(name: "StreamFuseEngine", dependencies: ["StreamFuseCore", "CStreamFuseEngine"], linkerSettings: link),
    .target(name: "StreamFuse", dependencies: ["StreamFuseText", "StreamFuseEngine", "StreamFuseCoreML"]),
    .testTarget(name: "StreamFuseTests", dependencies: ["StreamFuse"]),
  ]
}

#if os(Linux)
  if !folders.isEmpty {
    package.targets.append(
      .testTarget(name: "CoreMLReplayTests", dependencies: ["StreamFuseText", "CoreMLOnLinux", "FakeCoreML"]))
  }
#endif
