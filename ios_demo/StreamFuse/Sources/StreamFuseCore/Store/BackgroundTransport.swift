import Foundation

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// Downloads that the system continues while the app is suspended, or after it has terminated the app to free memory.
///
///     static let transport = BackgroundTransport(identifier: "com.example.app.bundles")  // one per process
///
///     // in the app delegate
///     func application(
///       _ application: UIApplication, handleEventsForBackgroundURLSession identifier: String,
///       completionHandler: @escaping () -> Void
///     ) { Self.transport.handleEvents(completionHandler: completionHandler) }
///
/// `BundleStore` requests one file after another. When a file has arrived, the system wakes the app, and the download
/// goes on: the file's hash is compared and the next file is requested. If the app was terminated, the system launches
/// it again. Then call `BundleStore.download` with the same entry again; it finds the file that has arrived or is still
/// arriving. If the user removes the app from the app switcher, its downloads are cancelled; the next `download`
/// resumes the unfinished file.
///
/// A response is stored in a file first, so the hash of a file is checked only once the file is complete. Calls that
/// request the same bytes at the same time share one response.
public final class BackgroundTransport: BundleTransport {
  private let session: URLSession
  private let answers: StoredAnswers

  #if canImport(Darwin)
    /// A transport over the background session with this identifier. Create only one per identifier and process.
    ///
    /// - Parameters:
    ///   - folder: where responses are stored until `BundleStore` has read them. Default: in the app's caches folder.
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

  /// A transport over a session of any kind, also one that is not a background session.
  init(_ configuration: URLSessionConfiguration, folder: URL) {
    answers = StoredAnswers(folder)
    session = URLSession(configuration: configuration, delegate: answers, delegateQueue: nil)
  }

  /// Pass the handler of `application(_:handleEventsForBackgroundURLSession:completionHandler:)`. It is called on the
  /// main thread once all responses that have arrived are stored and read, at the latest after 20 s.
  public func handleEvents(completionHandler: @escaping @Sendable () -> Void) {
    answers.handleEvents(completionHandler)
  }

  /// Called when the session has delivered all events.
  func deliveredEvents() { answers.deliveredEvents() }

  public func get(
    _ url: URL, from offset: Int64, arriving: @escaping @Sendable (Int64) throws -> Void,
    head: @escaping @Sendable (TransportHead) throws -> Void, body: @escaping @Sendable (Data) throws -> Void
  ) async throws {
    let request = URLRequest(url, from: offset)
    let name = StoredAnswers.name(request)
    let (waiter, events) = answers.wait(for: name)
    defer { answers.leave(name, waiter) }
    do {
      try await withTaskCancellationHandler {
        if await begin(request, name, isWanted: { [answers] in answers.isWaiting(name, waiter) }) {
          for try await count in events {
            do { try arriving(count) } catch {
              answers.refuse(name, waiter)
              throw error
            }
          }
        }
        try Task.checkCancellation()
      } onCancel: {
        end(name, waiter)
      }
    } catch {
      end(name, waiter)
      throw error
    }
    try await answers.give(name, head: head, body: body)
  }

  /// Starts a request, unless an earlier call or process started it. False if its response is already stored.
  func begin(_ request: URLRequest, _ name: String, isWanted: @escaping @Sendable () -> Bool = { true }) async -> Bool {
    await withCheckedContinuation { continuation in
      // This runs on the delegate queue, one call at a time. If two calls begin at once, the second finds the task of
      // the first, and no response is stored in between.
      session.getAllTasks { [self] tasks in
        let isStored = answers.isStored(name)
        let isRunning = tasks.contains { $0.taskDescription == name && $0.state == .running }
        if !isStored && !isRunning && isWanted() { start(request, name) }
        continuation.resume(returning: !isStored)
      }
    }
  }

  private func start(_ request: URLRequest, _ name: String) {
    let task: URLSessionDownloadTask
    #if canImport(Darwin)
      let resumed = answers.resumeData(name).map { session.downloadTask(withResumeData: $0) }
      task = resumed ?? session.downloadTask(with: request)
    #else
      task = session.downloadTask(with: request)
    #endif
    task.taskDescription = name
    task.resume()
  }

  /// Ends a call's wait and, if no other call waits for its request, cancels the request and keeps its resume data if
  /// the system has any.
  private func end(_ name: String, _ waiter: UUID) {
    answers.leave(name, waiter)
    session.getAllTasks { [answers] tasks in
      for task in tasks where task.taskDescription == name && answers.markCancelled(task.taskIdentifier, of: name) {
        #if canImport(Darwin)
          (task as? URLSessionDownloadTask)?.cancel { if let data = $0 { answers.keep(data, for: name) } }
        #else
          task.cancel()
        #endif
      }
    }
  }
}

/// Responses on disk, and the calls that wait for them. The session calls it on its delegate queue.
final class StoredAnswers: NSObject, URLSessionDownloadDelegate, Sendable {
  private typealias Events = AsyncThrowingStream<Int64, any Error>

  private struct State {
    /// The calls for each request.
    var waiting: [String: [UUID: Events.Continuation]] = [:]
    /// Requests whose response was refused by the only call for it.
    var refused: Set<String> = []
    /// Requests whose stored response is being read or has been read.
    var given: Set<String> = []
    /// The tasks that were cancelled because no call waited for them.
    var cancelled: Set<Int> = []
    /// The number of calls that are reading their response.
    var giving = 0
    /// The app delegate's completion handler, until it is called.
    var handler: (@Sendable () -> Void)?
    /// Whether the session has delivered all events.
    var isDelivered = false
  }

  private let folder: URL
  private let state = Locked(State())

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

  /// The file name of a request's response: a hash of its URL and range.
  static func name(_ request: URLRequest) -> String {
    var hash = FileHash()
    hash.update(Data("\(request.url?.absoluteString ?? "") \(request.value(forHTTPHeaderField: "Range") ?? "")".utf8))
    return hash.digits()
  }

  private func events(_ name: String) -> [Events.Continuation] {
    state.withLock { Array($0.waiting[name, default: [:]].values) }
  }
  private func place(_ name: String, _ kind: String) -> URL { folder.appending(path: "\(name).\(kind)") }
  private func remove(_ name: String, _ kind: String) { try? FileManager.default.removeItem(at: place(name, kind)) }

  /// Whether a response is stored completely; its head is written last.
  func isStored(_ name: String) -> Bool { fileSize(place(name, "head")) != nil }

  /// The number of bytes that a request has received so far, until it ends or the call leaves.
  func wait(for name: String) -> (id: UUID, events: AsyncThrowingStream<Int64, any Error>) {
    let id = UUID(), events = Events.makeStream(bufferingPolicy: .bufferingNewest(1))
    state.withLock {
      $0.waiting[name, default: [:]][id] = events.continuation
      $0.refused.remove(name)
    }
    return (id, events.stream)
  }

  func isWaiting(_ name: String, _ id: UUID) -> Bool { state.withLock { $0.waiting[name]?[id] != nil } }

  /// Ends the wait of a call. A response that was read is deleted when the last call for it leaves.
  func leave(_ name: String, _ id: UUID) {
    state.withLock {
      guard let events = $0.waiting[name]?.removeValue(forKey: id) else { return }
      events.finish()
      guard $0.waiting[name]?.isEmpty == true else { return }
      $0.waiting[name] = nil
      if $0.given.remove(name) != nil { delete(name) }
    }
  }

  /// Marks a request's task as cancelled, so that later calls do not mistake its end for that of their own task.
  /// False if a call waits for the request.
  func markCancelled(_ task: Int, of name: String) -> Bool {
    state.withLock {
      if $0.waiting[name] != nil { return false }
      $0.cancelled.insert(task)
      return true
    }
  }

  /// Deletes the response to a request, unless another call waits for it. A response that completes later is not
  /// stored.
  func refuse(_ name: String, _ id: UUID) {
    state.withLock {
      guard $0.waiting[name]?.keys.contains(where: { $0 != id }) != true else { return }
      $0.refused.insert(name)
      delete(name)
    }
  }

  private func delete(_ name: String) { for kind in ["head", "body"] { remove(name, kind) } }

  /// Passes a stored response to `head` and `body`. It is deleted when the last call for it leaves.
  func give(
    _ name: String, head: @escaping @Sendable (TransportHead) throws -> Void,
    body: @escaping @Sendable (Data) throws -> Void
  ) async throws {
    state.withLock {
      $0.giving += 1
      $0.given.insert(name)
    }
    defer {
      state.withLock { $0.giving -= 1 }
      // The store requests the next file in a moment, for which the app must not be suspended.
      DispatchQueue.global().asyncAfter(deadline: .now() + 1) { self.callHandler() }
    }
    try await FileWorker().run {
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

  /// Resume data of a request that ended early; deleted, because it is valid for one attempt.
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
    // Gives waiting calls the time to start reading.
    DispatchQueue.global().asyncAfter(deadline: .now() + 1) { self.callHandler() }
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse,
    newRequest request: URLRequest, completionHandler: @escaping @Sendable (URLRequest?) -> Void
  ) {
    completionHandler(request.url.map(isAllowed) == true ? request : nil)  // background sessions do not call this
  }

  func urlSession(
    _ session: URLSession, downloadTask: URLSessionDownloadTask, didWriteData bytesWritten: Int64,
    totalBytesWritten: Int64, totalBytesExpectedToWrite: Int64
  ) {
    guard let name = downloadTask.taskDescription else { return }
    for events in events(name) { events.yield(totalBytesWritten) }
  }

  func urlSession(_ session: URLSession, downloadTask: URLSessionDownloadTask, didFinishDownloadingTo location: URL) {
    guard let name = downloadTask.taskDescription, let response = downloadTask.response as? HTTPURLResponse else {
      return
    }
    var head = TransportHead(response)
    if response.url.map(isAllowed) != true { head = TransportHead(status: 302, contentLength: nil, contentRange: nil) }
    do {
      let encoded = try JSONEncoder().encode(head)
      try state.withLock {
        if $0.refused.contains(name) { return }
        remove(name, "body")
        try FileManager.default.moveItem(at: location, to: place(name, "body"))
        try encoded.write(to: place(name, "head"), options: .atomic)
      }
    } catch {
      for events in events(name) { events.finish(throwing: error) }
    }
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    guard let name = task.taskDescription else { return }
    #if canImport(Darwin)
      if let data = (error as? NSError)?.userInfo[NSURLSessionDownloadTaskResumeData] as? Data { keep(data, for: name) }
    #endif
    if state.withLock({ $0.cancelled.remove(task.taskIdentifier) }) != nil { return }
    for events in events(name) { events.finish(throwing: error) }
  }
}
