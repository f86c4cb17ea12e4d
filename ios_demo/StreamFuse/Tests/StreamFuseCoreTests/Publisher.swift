import Foundation
import Synchronization

#if canImport(Glibc)
  import Glibc
  private let stream = Int32(SOCK_STREAM.rawValue), shutBoth = Int32(SHUT_RDWR)
#else
  import Darwin
  private let stream = SOCK_STREAM, shutBoth = SHUT_RDWR
#endif

/// A server of static files on this machine, with the faults of real ones.
final class Publisher: Sendable {
  struct Request: Equatable {
    let path: String
    let range: String?
  }

  struct Behaviour {
    var files: [String: Data] = [:]
    var requests: [Request] = []
    /// After so many bytes of a file the connection is cut, in one answer each.
    var cuts: [String: [Int]] = [:]
    /// The status of a path's next answers, instead of the file.
    var statuses: [String: [Int]] = [:]
    var hasRanges = true
    /// Sends a path's file with the head of an answer that the system has resumed at this byte.
    var resumedAt: [String: Int] = [:]
    /// Whether the size of a file is sent before it.
    var tellsSize = true
    /// Called when half of a file is sent.
    var halfway: @Sendable (String) -> Void = { _ in }
  }

  private let socket: Int32
  private let port: UInt16
  private let behaviour = Mutex(Behaviour())

  var address: String { "http://127.0.0.1:\(port)/models/catalog.json" }
  var requests: [Request] { behaviour.withLock { $0.requests } }

  init() {
    socket = sys_socket(AF_INET, stream, 0)
    var place = sockaddr_in()
    place.sin_family = sa_family_t(AF_INET)
    place.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
    var size = socklen_t(MemoryLayout<sockaddr_in>.size)
    let socket = self.socket
    port = withUnsafeMutablePointer(to: &place) { pointer in
      pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { generic in
        let isBound = bind(socket, generic, size) == 0 && listen(socket, 16) == 0
        let isKnown = getsockname(socket, generic, &size) == 0
        precondition(isBound && isKnown)
      }
      return UInt16(bigEndian: pointer.pointee.sin_port)
    }
    signal(SIGPIPE, SIG_IGN)
    Thread.detachNewThread { [socket, self] in
      while true {
        let connection = accept(socket, nil, nil)
        if connection < 0 { return }
        Thread.detachNewThread { self.serve(connection) }
      }
    }
  }

  func stop() {
    shutdown(socket, shutBoth)
    close(socket)
  }

  func change(_ edit: (inout Behaviour) -> Void) { behaviour.withLock { edit(&$0) } }

  func ranges(of path: String) -> [String?] { requests.filter { $0.path == path }.map(\.range) }

  /// Publishes bundles of these files under a name each; `edit` may falsify the entries.
  func publish(
    _ bundles: [(name: String, content: [String: Data])], edit: (inout [String: Any]) -> Void = { _ in }
  ) throws {
    let entries = bundles.map { name, content in
      var entry = Self.entry(name, content)
      edit(&entry)
      return entry
    }
    let catalog: [String: Any] = ["catalog_version": 1, "published": "a field of later versions", "bundles": entries]
    let json = try JSONSerialization.data(withJSONObject: catalog)
    change { behaviour in
      behaviour.files["catalog.json"] = json
      for (name, content) in bundles {
        for (path, data) in content { behaviour.files["\(name)/\(path)"] = data }
      }
    }
  }

  static func entry(_ name: String, _ content: [String: Data]) -> [String: Any] {
    [
      "name": name, "title": "The \(name)", "license": "apache-2.0", "context_length": 1024,
      "bytes": content.values.map(\.count).reduce(0, +), "target": "executorch", "backend": "kernels",
      "url": "\(name)/",
      "files": content.mapValues { ["sha256": sha256($0), "bytes": $0.count] as [String: Any] },
    ]
  }

  private func serve(_ connection: Int32) {
    defer { close(connection) }
    var request = Data()
    var buffer = [UInt8](repeating: 0, count: 4096)
    while request.range(of: Data("\r\n\r\n".utf8)) == nil {
      let count = recv(connection, &buffer, buffer.count, 0)
      if count <= 0 { return }
      request += buffer.prefix(count)
    }
    let lines = String(decoding: request, as: UTF8.self).components(separatedBy: "\r\n")
    let target = lines[0].split(separator: " ")[1].dropFirst("/models/".count)
    let path = String(target).removingPercentEncoding ?? ""
    let range = lines.first { $0.lowercased().hasPrefix("range: ") }.map { String($0.dropFirst("range: ".count)) }
    let (content, status, now) = behaviour.withLock { behaviour -> (Data?, Int?, Behaviour) in
      behaviour.requests.append(Request(path: path, range: range))
      let status = behaviour.statuses[path]?.first
      if status != nil { behaviour.statuses[path]?.removeFirst() }
      return (behaviour.files[path], status, behaviour)
    }
    guard let content, status == nil else {
      let elsewhere = "Location: http://example.invalid/\r\n"
      return send(connection, head("\(status ?? 404) No\r\nContent-Length: 0\r\n\(elsewhere)"))
    }
    let from = now.hasRanges ? range.flatMap { Int($0.dropFirst("bytes=".count).dropLast()) } ?? 0 : 0
    if from > 0 && from >= content.count {
      return send(connection, head("416 No\r\nContent-Length: 0\r\n"))
    }
    let first = now.resumedAt[path] ?? from
    let range206 = "206 Part\r\nContent-Range: bytes \(first)-\(content.count - 1)/\(content.count)\r\n"
    let size = now.tellsSize ? "Content-Length: \(content.count - from)\r\n" : ""
    send(connection, head((first > 0 ? range206 : "200 OK\r\n") + size))
    let cut = behaviour.withLock { behaviour -> Int? in
      guard behaviour.cuts[path]?.isEmpty == false else { return nil }
      return behaviour.cuts[path]?.removeFirst()
    }
    let end = cut.map { from + $0 } ?? content.count, middle = (from + end) / 2
    send(connection, content[from..<middle])
    now.halfway(path)
    send(connection, content[middle..<end])
    shutdown(connection, shutBoth)
  }

  private func head(_ lines: String) -> Data { Data("HTTP/1.1 \(lines)Connection: close\r\n\r\n".utf8) }

  private func send(_ connection: Int32, _ data: Data) {
    data.withUnsafeBytes { bytes in
      var sent = 0
      while sent < bytes.count {
        let count = write(connection, bytes.baseAddress! + sent, bytes.count - sent)
        if count <= 0 { return }
        sent += count
      }
    }
  }
}

private func sys_socket(_ domain: Int32, _ kind: Int32, _ of: Int32) -> Int32 { socket(domain, kind, of) }
