import Foundation

#if os(iOS)
  import os
#endif

extension Engine {
  /// Identifies this machine and the build of the app: the part of `device` that all engines share.
  public static var machine: String {
    var name = utsname()
    uname(&name)
    let model = withUnsafeBytes(of: &name.machine) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
    let process = ProcessInfo.processInfo
    // A new build may have another engine; the executable's date changes with it.
    let executable = Bundle.main.executableURL
    let built = try? executable?.resourceValues(forKeys: [.contentModificationDateKey]).contentModificationDate
    let stamp = built.map { String(Int($0.timeIntervalSince1970)) } ?? "unknown"
    return "\(model), \(process.operatingSystemVersionString), \(process.activeProcessorCount) cores, build \(stamp)"
  }
}

/// Bytes that the system lets this process allocate beyond its present memory; nil if unknown.
package func availableMemory() -> Int? {
  #if os(iOS)
    let bytes = os_proc_available_memory()
    return bytes > 0 ? bytes : nil
  #else
    return nil
  #endif
}
