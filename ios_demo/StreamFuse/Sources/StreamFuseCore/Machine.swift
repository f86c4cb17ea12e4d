import Foundation

extension Engine {
  /// What this machine is, and which build of the app runs on it: the part of `device` that engines share.
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
