import Foundation
import Synchronization

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Requests that the system continues while the app is suspended, and after it has terminated the app to free memory.
///
///     static let transport = BackgroundTransport(identifier: "com.example.app.bundles")  // one per process
///
///     // of the app's delegate
///     func application(
///       _ application: UIApplication, handleEventsForBackgroundURLSession identifier: String,
///       completionHandler: @escaping () -> Void
///     ) { Self.transport.handleEvents(completionHandler: completionHandler) }
///
/// `BundleStore` requests one file after another. When a file has arrived, the system wakes the app, and the download
/// goes on: the file's hash is compared and the next file is requested. If the system has terminated the app, it
/// launches it. Then call `BundleStore.download` with the same entry again, which finds the file that has arrived or is
/// still arriving. A user who removes the app from the app switcher ends its downloads; the next `download` goes on with
/// the unfinished file.
///
/// An answer is stored in a file before its bytes are given, so a file is compared with its hash when it is whole.
public final class BackgroundTransport: BundleTransport {
  private let session: URLSession
  private let answers: StoredAnswers

  #if canImport(Darwin)
    /// Requests of the background session with this identifier, of which a process makes one.
    ///
    /// - Parameters:
    ///   - folder: where answers are stored until they are given. Default: in the app's caches folder.
    ///   - configure: changes the session's configuration, for example `allowsCellularAccess`. By default it is not
    ///     discretionary, because the user waits.
    public convenience init(
      identifier: String, folder: URL? = nil, configure: (URLSessionConfiguration) -> Void = { _ in }
    ) {
      let configuration = URLSessionConfiguration.background(withIdentifier: identifier)
      configuration.isDiscretionary = false
      #if os(iOS)
        configuration.sessionSendsLaunchEvents = true
      #endif
      configure(configuration)
      self.init(configuration, folder: folder ?? URL.cachesDirectory.appending(path: "streamfuse/\(identifier)"))
    }
  #endif

  /// Requests of a session, which need not be a background session.
  init(_ configuration: URLSessionConfiguration, folder: URL) {
    answers = StoredAnswers(folder)
    session = URLSession(configuration: configuration, delegate: answers, delegateQueue: nil)
  }

  /// Pass the handler of `application(_:handleEventsForBackgroundURLSession:completionHandler:)`. It is called on the
  /// main thread when what has arrived is stored and given, at the latest after 20 seconds.
  public func handleEvents(completionHandler: @escaping @Sendable () -> Void) {
    answers.handleEvents(completionHandler)
  }

  /// What the session reports when it has delivered its events.
  func deliveredEvents() { answers.deliveredEvents() }

  public func get(
    _ url: URL, from offset: Int64, arriving: @escaping @Sendable (Int64) throws -> Void,
    head: @escaping @Sendable (TransportHead) throws -> Void, body: @escaping @Sendable (Data) throws -> Void
  ) async throws {
    let request = URLRequest(url, from: offset)
    let name = StoredAnswers.name(request)
    let events = answers.wait(for: name)
    defer { answers.leave(name) }
    do {
      try await withTaskCancellationHandler {
        if await begin(request, name) { for try await count in events { try arriving(count) } }
        try Task.checkCancellation()
      } onCancel: {
        end(name)
      }
    } catch {
      end(name)
      throw error
    }
    try await answers.give(name, head: head, body: body)
  }

  /// Begins a request, unless an earlier call, or process, did. False if its answer is stored already.
  func begin(_ request: URLRequest, _ name: String) async -> Bool {
    if answers.isStored(name) { return false }
    let isRunning = await withCheckedContinuation { continuation in
      session.getAllTasks { tasks in
        continuation.resume(returning: tasks.contains { $0.taskDescription == name && $0.state == .running })
      }
    }
    if isRunning { return true }
    if answers.isStored(name) { return false }  // it arrived meanwhile
    if Task.isCancelled { return true }  // the events are over
    let task: URLSessionDownloadTask
    #if canImport(Darwin)
      let resumed = answers.resumeData(name).map { session.downloadTask(withResumeData: $0) }
      task = resumed ?? session.downloadTask(with: request)
    #else
      task = session.downloadTask(with: request)
    #endif
    task.taskDescription = name
    task.resume()
    return true
  }

  /// Ends a request; what has arrived is kept where the system can continue from it.
  private func end(_ name: String) {
    session.getAllTasks { [answers] tasks in
      for task in tasks where task.taskDescription == name {
        #if canImport(Darwin)
          (task as? URLSessionDownloadTask)?.cancel { if let data = $0 { answers.keep(data, for: name) } }
        #else
          task.cancel()
        #endif
      }
    }
  }
}

/// Answers on the disk, and who waits for them. The session calls it on its queue.
final class StoredAnswers: NSObject, URLSessionDownloadDelegate, Sendable {
  private typealias Events = AsyncThrowingStream<Int64, any Error>

  private struct State {
    var waiting: [String: Events.Continuation] = [:]
    /// How many answers are being given.
    var giving = 0
    /// Of the app's delegate, until it is called.
    var handler: (@Sendable () -> Void)?
    /// Whether the session has delivered all events.
    var isDelivered = false
  }

  private let folder: URL
  private let state = Mutex(State())

  init(_ folder: URL) {
    self.folder = folder
    super.init()
    try? FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    let oldest = Date(timeIntervalSinceNow: -7 * 86_400)
    for name in (try? FileManager.default.contentsOfDirectory(atPath: folder.path)) ?? [] {
      let file = folder.appending(path: name)
      let date = (try? FileManager.default.attributesOfItem(atPath: file.path))?[.modificationDate] as? Date
      if let date, date < oldest { try? FileManager.default.removeItem(at: file) }
    }
  }

  /// The name of a request's answer.
  static func name(_ request: URLRequest) -> String {
    var hash = FileHash()
    hash.update(Data("\(request.url?.absoluteString ?? "") \(request.value(forHTTPHeaderField: "Range") ?? "")".utf8))
    return hash.digits()
  }

  private func place(_ name: String, _ kind: String) -> URL { folder.appending(path: "\(name).\(kind)") }
  private func remove(_ name: String, _ kind: String) { try? FileManager.default.removeItem(at: place(name, kind)) }

  /// Whether an answer is here; its head is written last.
  func isStored(_ name: String) -> Bool { fileSize(place(name, "head")) != nil }

  /// The events of a request: bytes that have arrived, and its end.
  func wait(for name: String) -> AsyncThrowingStream<Int64, any Error> {
    let events = Events.makeStream(bufferingPolicy: .bufferingNewest(1))
    state.withLock {
      $0.waiting[name]?.finish(throwing: CancellationError())
      $0.waiting[name] = events.continuation
    }
    return events.stream
  }

  func leave(_ name: String) { state.withLock { $0.waiting[name] = nil } }

  /// Gives a stored answer and deletes it.
  func give(
    _ name: String, head: @escaping @Sendable (TransportHead) throws -> Void,
    body: @escaping @Sendable (Data) throws -> Void
  ) async throws {
    state.withLock { $0.giving += 1 }
    defer {
      state.withLock { $0.giving -= 1 }
      // The store requests the next file in a moment, for which the app must not be suspended.
      DispatchQueue.global().asyncAfter(deadline: .now() + 1) { self.callHandler() }
    }
    try await FileWorker().run {
      defer { for kind in ["head", "body"] { remove(name, kind) } }
      try head(JSONDecoder().decode(TransportHead.self, from: Data(contentsOf: place(name, "head"))))
      let file = try FileHandle(forReadingFrom: place(name, "body"))
      defer { try? file.close() }
      while let block = try file.read(upToCount: 1 << 20), !block.isEmpty {
        try Task.checkCancellation()
        try body(block)
      }
    }
  }

  func keep(_ data: Data, for name: String) { try? data.write(to: place(name, "resume")) }

  /// What the system needs to continue a request that ended early; it is for one attempt.
  func resumeData(_ name: String) -> Data? {
    defer { remove(name, "resume") }
    return try? Data(contentsOf: place(name, "resume"))
  }

  func handleEvents(_ handler: @escaping @Sendable () -> Void) {
    state.withLock { $0.handler = handler }
    callHandler()
    DispatchQueue.global().asyncAfter(deadline: .now() + 20) { self.callHandler(isLate: true) }
  }

  private func callHandler(isLate: Bool = false) {
    let handler = state.withLock { state -> (@Sendable () -> Void)? in
      guard isLate || state.isDelivered && state.giving == 0 else { return nil }
      defer { (state.handler, state.isDelivered) = (nil, false) }
      return state.handler
    }
    if let handler { DispatchQueue.main.async { handler() } }
  }

  func urlSessionDidFinishEvents(forBackgroundURLSession session: URLSession) { deliveredEvents() }

  /// The session has delivered all events for which it woke the app.
  func deliveredEvents() {
    state.withLock { $0.isDelivered = true }
    // Who waits for what has arrived needs a moment to begin with it.
    DispatchQueue.global().asyncAfter(deadline: .now() + 1) { self.callHandler() }
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest, completionHandler: @escaping @Sendable (URLRequest?) -> Void
  ) {
    completionHandler(request.url.map(isAllowed) == true ? request : nil)  // a background session does not ask
  }

  func urlSession(
    _ session: URLSession, downloadTask: URLSessionDownloadTask, didWriteData bytesWritten: Int64,
    totalBytesWritten: Int64, totalBytesExpectedToWrite: Int64
  ) {
    guard let name = downloadTask.taskDescription else { return }
    _ = state.withLock { $0.waiting[name] }?.yield(totalBytesWritten)
  }

  func urlSession(_ session: URLSession, downloadTask: URLSessionDownloadTask, didFinishDownloadingTo location: URL) {
    guard let name = downloadTask.taskDescription, let response = downloadTask.response as? HTTPURLResponse else {
      return
    }
    var head = TransportHead(response)
    if response.url.map(isAllowed) != true { head = TransportHead(status: 302, contentLength: nil, contentRange: nil) }
    do {
      remove(name, "body")
      try FileManager.default.moveItem(at: location, to: place(name, "body"))
      try JSONEncoder().encode(head).write(to: place(name, "head"), options: .atomic)
    } catch {
      state.withLock { $0.waiting[name] }?.finish(throwing: error)
    }
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    guard let name = task.taskDescription else { return }
    #if canImport(Darwin)
      if let data = (error as? NSError)?.userInfo[NSURLSessionDownloadTaskResumeData] as? Data { keep(data, for: name) }
    #endif
    let waiting = state.withLock { $0.waiting[name] }
    if let error { waiting?.finish(throwing: error) } else { waiting?.finish() }
  }
}
