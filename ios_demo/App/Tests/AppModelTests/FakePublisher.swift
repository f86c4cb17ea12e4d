import Foundation
import Synchronization

@testable import StreamFuseCore

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// A publisher's server, without a network.
final class FakePublisher: BundleTransport {
  static let address = "https://models.example/catalog.json"

  struct State {
    var files: [String: Data] = [:]
    /// The status of a path's answers.
    var statuses: [String: Int] = [:]
    /// Holds the answers in their middle.
    var gate: DispatchSemaphore?
  }

  private let state = Mutex(State())

  func change(_ edit: (inout State) -> Void) { state.withLock { edit(&$0) } }

  /// Publishes bundles of these files; `edit` changes their entries.
  func publish(_ bundles: [(name: String, content: [String: Data])], edit: (inout [String: Any]) -> Void = { _ in }) throws {
    let entries = bundles.map { name, content in
      var entry: [String: Any] = [
        "name": name, "title": "The \(name)", "license": "apache-2.0", "context_length": 1024,
        "bytes": content.values.map(\.count).reduce(0, +), "target": "executorch", "backend": "kernels", "url": "\(name)/",
      ]
      entry["files"] = content.mapValues { data in
        ["sha256": sha256(data), "bytes": data.count] as [String: Any]
      }
      edit(&entry)
      return entry
    }
    let json = try JSONSerialization.data(withJSONObject: ["catalog_version": 1, "bundles": entries])
    change { state in
      state.files["/catalog.json"] = json
      for (name, content) in bundles { for (path, data) in content { state.files["/\(name)/\(path)"] = data } }
    }
  }

  func get(
    _ url: URL, from offset: Int64, arriving: @escaping @Sendable (Int64) throws -> Void,
    head: @escaping @Sendable (TransportHead) throws -> Void, body: @escaping @Sendable (Data) throws -> Void
  ) async throws {
    let now = state.withLock { ($0.files[url.path], $0.statuses[url.path], $0.gate) }
    let (content, status, gate) = now
    guard let content, status == nil else {
      return try head(TransportHead(status: status ?? 404, contentLength: nil, contentRange: nil))
    }
    let range = "bytes \(offset)-\(content.count - 1)/\(content.count)", rest = content.dropFirst(Int(offset))
    try head(TransportHead(status: offset > 0 ? 206 : 200, contentLength: Int64(rest.count), contentRange: range))
    guard url.path.hasSuffix("model.pte") else { return try body(rest) }
    try body(rest.prefix(rest.count / 2))
    while let gate, gate.wait(timeout: .now()) == .timedOut { try await Task.sleep(for: .milliseconds(2)) }
    try body(rest.dropFirst(rest.count / 2))
  }
}

/// 64 hexadecimal digits.
private func sha256(_ data: Data) -> String {
  var hash = FileHash()
  hash.update(data)
  return hash.digits()
}

/// These files and a manifest that lists them; another `note` makes it another manifest.
func bundle(_ files: [String: Data], note: String = "") throws -> [String: Data] {
  let listed = files.filter { $0.key != manifestName }.mapValues { data in
    ["sha256": sha256(data), "bytes": data.count] as [String: Any]
  }
  let json = try JSONSerialization.data(withJSONObject: ["note": note, "files": listed], options: [.sortedKeys])
  return files.merging([manifestName: json]) { $1 }
}
