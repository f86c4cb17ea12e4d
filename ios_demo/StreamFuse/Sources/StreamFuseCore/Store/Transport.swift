import Foundation

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// The head of a server's response.
public struct TransportHead: Sendable, Codable {
  /// The HTTP status, for example 200 or 206.
  public let status: Int
  /// The field `Content-Length`, in bytes; nil if it is missing.
  public let contentLength: Int64?
  /// The field `Content-Range`; nil if it is missing.
  public let contentRange: String?

  /// A head.
  public init(status: Int, contentLength: Int64?, contentRange: String?) {
    self.status = status
    self.contentLength = contentLength
    self.contentRange = contentRange
  }
}

/// Makes the requests of a `BundleStore`: `URLSessionTransport`, `BackgroundTransport`, or one of your own.
public protocol BundleTransport: Sendable {
  /// Requests a file from byte `offset` on. Calls `head` with the head of the response and then `body` with its bytes
  /// in blocks, never two calls at once, and returns after the last one. Throws the error of a call that throws, and if
  /// the task is cancelled.
  ///
  /// A transport that stores the whole response before it calls `head` reports the number of bytes received so far to
  /// `arriving`.
  func get(
    _ url: URL, from offset: Int64, arriving: @escaping @Sendable (Int64) throws -> Void,
    head: @escaping @Sendable (TransportHead) throws -> Void, body: @escaping @Sendable (Data) throws -> Void
  ) async throws

  /// How much free space such a request needs for itself, if its response has `bytes` bytes: by default none. A
  /// transport that stores the whole response returns the number of bytes that it has not stored yet.
  func storageBytes(_ url: URL, from offset: Int64, of bytes: Int64) async -> Int64

  /// How many bytes of the response to such a request, which no call has been given, the transport has: by default none.
  func heldBytes(_ url: URL, from offset: Int64) async -> Int64

  /// Deletes what the transport has of a file and ends its requests, unless a call waits for them. Nothing by default.
  func discard(_ url: URL) async
}

extension BundleTransport {
  public func storageBytes(_ url: URL, from offset: Int64, of bytes: Int64) async -> Int64 { 0 }

  public func heldBytes(_ url: URL, from offset: Int64) async -> Int64 { 0 }

  public func discard(_ url: URL) async {}
}

/// HTTP by `URLSession`, while the app runs. It follows redirects to HTTPS addresses only.
public struct URLSessionTransport: BundleTransport {
  private let configuration: @Sendable () -> URLSessionConfiguration

  /// `configuration` is called for each request, for example for one with `allowsCellularAccess` off. The default
  /// stores neither answers nor cookies, and gives up when the server is silent for 20 seconds.
  public init(configuration: @escaping @Sendable () -> URLSessionConfiguration = Self.standard) {
    self.configuration = configuration
  }

  /// The default.
  public static func standard() -> URLSessionConfiguration {
    let configuration = URLSessionConfiguration.ephemeral
    configuration.urlCache = nil
    configuration.timeoutIntervalForRequest = 20
    return configuration
  }

  public func get(
    _ url: URL, from offset: Int64, arriving: @escaping @Sendable (Int64) throws -> Void,
    head: @escaping @Sendable (TransportHead) throws -> Void, body: @escaping @Sendable (Data) throws -> Void
  ) async throws {
    let request = URLRequest(url, from: offset)
    let answer = Answering(head: head, body: body)
    let session = URLSession(configuration: configuration(), delegate: answer, delegateQueue: nil)
    defer { session.finishTasksAndInvalidate() }
    let task = session.dataTask(with: request)
    try await withTaskCancellationHandler {
      try await withCheckedThrowingContinuation { continuation in
        answer.begin(continuation)
        task.resume()
      }
    } onCancel: {
      task.cancel()
    }
  }
}

extension URLRequest {
  /// A request for a file from byte `offset` on.
  init(_ url: URL, from offset: Int64) {
    self.init(url: url)
    setValue("identity", forHTTPHeaderField: "Accept-Encoding")  // hashes are of the bytes as they are
    if offset > 0 { setValue("bytes=\(offset)-", forHTTPHeaderField: "Range") }
  }
}

extension TransportHead {
  /// The head of an HTTP response.
  init(_ response: HTTPURLResponse) {
    self.init(
      status: response.statusCode,
      contentLength: response.value(forHTTPHeaderField: "Content-Length").flatMap(Int64.init),
      contentRange: response.value(forHTTPHeaderField: "Content-Range"))
  }

  /// The head of a file of `bytes` bytes that was requested from byte `offset` on. If the system has resumed the request,
  /// the file has what arrived before too, but this head is that of the last response, which began later.
  func whole(from offset: Int64, bytes: Int64) -> TransportHead {
    guard status == 206, let range = (contentRange ?? "").wholeMatch(of: /bytes (\d+)-(\d+)\/(\d+|\*)/),
      let first = Int64(range.1), let last = Int64(range.2), first > offset, last - offset == bytes - 1
    else { return self }
    if offset == 0 { return TransportHead(status: 200, contentLength: Int64(range.3) ?? bytes, contentRange: nil) }
    return TransportHead(status: 206, contentLength: bytes, contentRange: "bytes \(offset)-\(last)/\(range.3)")
  }

  /// The head of the last `bytes` bytes of a response with this head, which are those of the file from byte `offset` on.
  func rest(from offset: Int64, bytes: Int64) -> TransportHead {
    let size = status == 200 ? contentLength.map { "\($0)" } : contentRange?.split(separator: "/").last.map { "\($0)" }
    let range = "bytes \(offset)-\(offset + bytes - 1)/\(size ?? "*")"
    return TransportHead(status: 206, contentLength: bytes, contentRange: range)
  }
}

/// What one request calls, one call after another, on the session's queue.
final class Answering: NSObject, URLSessionDataDelegate, Sendable {
  private struct State {
    var continuation: CheckedContinuation<Void, any Error>?
    var failure: (any Error)?
    /// How the request has ended; nil while it has not.
    var end: Result<Void, any Error>?
  }

  private let head: @Sendable (TransportHead) throws -> Void
  private let body: @Sendable (Data) throws -> Void
  private let state = Locked(State())

  init(head: @escaping @Sendable (TransportHead) throws -> Void, body: @escaping @Sendable (Data) throws -> Void) {
    self.head = head
    self.body = body
  }

  /// Resumes `continuation` when the request has ended, which it may have already if its task was cancelled.
  func begin(_ continuation: CheckedContinuation<Void, any Error>) {
    let end = state.withLock { state -> Result<Void, any Error>? in
      if state.end == nil { state.continuation = continuation }
      return state.end
    }
    if let end { continuation.resume(with: end) }
  }

  /// Runs `work` unless an earlier call failed; false where that failed or this does.
  private func goOn(_ work: () throws -> Void) -> Bool {
    if state.withLock({ $0.failure != nil }) { return false }
    do {
      try work()
      return true
    } catch {
      state.withLock { $0.failure = error }
      return false
    }
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest, completionHandler: @escaping @Sendable (URLRequest?) -> Void
  ) {
    completionHandler(request.url.map(isAllowed) == true ? request : nil)  // nil: the redirect is the answer
  }

  func urlSession(
    _ session: URLSession, dataTask: URLSessionDataTask, didReceive response: URLResponse,
    completionHandler: @escaping @Sendable (URLSession.ResponseDisposition) -> Void
  ) {
    let isWanted = goOn {
      guard let response = response as? HTTPURLResponse else { throw URLError(.badServerResponse) }
      try head(TransportHead(response))
    }
    completionHandler(isWanted ? .allow : .cancel)
  }

  func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
    if !goOn({ try body(data) }) { dataTask.cancel() }
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    let (continuation, end) = state.withLock { state in
      let end: Result<Void, any Error> = if let failure = state.failure ?? error { .failure(failure) } else { .success(()) }
      state.end = end
      defer { state.continuation = nil }
      return (state.continuation, end)
    }
    continuation?.resume(with: end)
  }
}
