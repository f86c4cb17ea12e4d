import Foundation

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// The tasks that request responses to be stored, and the calls that wait for them. The session calls it on its delegate
/// queue.
final class StoredResponses: NSObject, URLSessionDownloadDelegate, Sendable {
  private typealias Events = AsyncThrowingStream<Int64, any Error>

  private struct State {
    /// The events of the calls for each request.
    var waiting: [String: [UUID: Events.Continuation]] = [:]
    /// Requests whose response is not stored when it arrives: it was refused or discarded.
    var refused: Set<String> = []
    /// Requests whose response a call has read or refused, so that it is deleted when the last call for it leaves.
    var unneeded: Set<String> = []
    /// The task of each request that has no response yet.
    var tasks: [String: URLSessionTask] = [:]
    /// The cancelled requests whose resume data the system has not passed yet: how many bytes had arrived, and the
    /// identifier of the task.
    var leaving: [String: (bytes: Int64, task: Int)] = [:]
    /// The number of calls that are reading their response.
    var giving = 0
    /// Responses that this process has stored and no call has begun to read.
    var unread: Set<String> = []
    /// The app delegate's completion handlers, each until it is called.
    var handlers: [UUID: @Sendable () -> Void] = [:]
    /// Whether the session has delivered all events.
    var isDelivered = false

    /// The events of the calls for a request.
    func events(_ name: String) -> [Events.Continuation] { Array(waiting[name, default: [:]].values) }

    /// Whether the task was cancelled and its request was started again.
    func isReplaced(_ task: URLSessionTask, _ name: String) -> Bool {
      tasks[name].map { $0.taskIdentifier != task.taskIdentifier } ?? false
    }
  }

  /// Where the responses are.
  let files: ResponseFiles
  private let state = Locked(State())

  /// Responses in a folder, without those that nobody has requested again for a week.
  init(_ folder: URL) {
    files = ResponseFiles(folder)
    super.init()
    files.sweep()
  }

  /// How many bytes of a file from byte `offset` on are on disk already: those of a stored response, of a running
  /// request, or of one that can be resumed.
  func heldBytes(_ url: URL, from offset: Int64) -> Int64 {
    let name = files.response(url, from: offset)
    if let head = try? files.head(name) {
      return head.isRefusal ? 0 : ResponseFiles.offset(name) + files.bodyBytes(name) - offset
    }
    let arrived = state.withLock { $0.tasks[name]?.countOfBytesReceived ?? $0.leaving[name]?.bytes }
    return arrived ?? files.resumedBytes(name)
  }

  /// Deletes what is stored of a file and cancels its requests, unless a call waits for them. What still arrives of them
  /// is not stored.
  func discard(_ url: URL) {
    let stem = ResponseFiles.stem(url), stored = files.names(url)
    let unwanted = state.withLock { state in
      var tasks: [URLSessionTask] = []
      for name in stored.union(state.tasks.keys).union(state.leaving.keys)
      where name.hasPrefix(stem) && state.waiting[name] == nil {
        state.refused.insert(name)
        state.unread.remove(name)
        files.delete(name)
        if let task = state.tasks.removeValue(forKey: name) { tasks.append(task) }
      }
      return tasks
    }
    for task in unwanted { task.cancel() }
  }

  /// Takes over the tasks that an earlier process started.
  func adopt(_ tasks: [URLSessionTask]) {
    state.withLock {
      for task in tasks where task.state == .running {
        if let name = task.taskDescription { $0.tasks[name] = task }
      }
    }
  }

  /// Adds a call for a request. Unless its response is stored or a task requests it, starts the task that `makeTask`
  /// returns. A stored refusal for which no other call waits may be days old, so it is deleted. The events are the number
  /// of bytes received so far, until the response is stored, the request fails or the call leaves.
  func join(
    _ name: String, _ makeTask: () -> URLSessionTask
  ) -> (call: UUID, events: AsyncThrowingStream<Int64, any Error>) {
    let call = UUID(), events = Events.makeStream(bufferingPolicy: .bufferingNewest(1))
    state.withLock {
      if $0.waiting[name] == nil, let head = try? files.head(name), head.isRefusal {
        files.delete(name)
        $0.unread.remove(name)
      }
      $0.waiting[name, default: [:]][call] = events.continuation
      $0.refused.remove(name)
      if files.isStored(name) { return events.continuation.finish() }
      if $0.tasks[name] != nil { return }
      let task = makeTask()
      task.taskDescription = name
      $0.tasks[name] = task
      task.resume()
    }
    return (call, events.stream)
  }

  /// Ends the wait of a call. `keeps`: it was interrupted and may request the rest later. When the last call for a
  /// request leaves, its task is cancelled. If all calls keep the response, what is stored stays, and so does the task's
  /// resume data if the system has any. Otherwise it is deleted, and a response that completes later is not stored.
  func leave(_ name: String, _ call: UUID, keeps: Bool) {
    let unwanted = state.withLock { state -> URLSessionTask? in
      guard let events = state.waiting[name]?.removeValue(forKey: call) else { return nil }
      events.finish()
      if !keeps { state.unneeded.insert(name) }
      guard state.waiting[name]?.isEmpty == true else { return nil }
      state.waiting[name] = nil
      let task = state.tasks.removeValue(forKey: name)
      if state.unneeded.remove(name) != nil {
        state.unread.remove(name)
        files.delete(name)
        if task != nil { state.refused.insert(name) }
      }
      #if canImport(Darwin)
        if let task = task as? URLSessionDownloadTask {
          let bytes = task.countOfBytesReceived, number = task.taskIdentifier
          state.leaving[name] = (bytes, number)
          Task { self.keep(await task.cancelByProducingResumeData(), bytes: bytes, for: name, leaving: number) }
          return nil
        }
      #endif
      return task
    }
    unwanted?.cancel()
  }

  /// Waits until a request that was cancelled a moment ago can be resumed, if there is one. After 5 s it starts anew: for
  /// a task that had just ended, the system may pass nothing.
  func left(_ name: String) async throws {
    for _ in 0..<100 {
      guard state.withLock({ $0.leaving[name] != nil }) else { return }
      try await Task.sleep(for: .milliseconds(50))
    }
    state.withLock { $0.leaving[name] = nil }
  }

  /// Passes a stored response, from byte `offset` of the file on, to `head` and `body`.
  func give(
    _ name: String, from offset: Int64, head: @escaping @Sendable (TransportHead) throws -> Void,
    body: @escaping @Sendable (Data) throws -> Void
  ) async throws {
    state.withLock {
      $0.giving += 1
      $0.unread.remove(name)
    }
    defer {
      state.withLock { $0.giving -= 1 }
      // The store requests the next file in a moment, for which the app must not be suspended.
      DispatchQueue.global().asyncAfter(deadline: .now() + 1) { self.callHandlers() }
    }
    try await FileWorker().run { try files.read(name, from: offset, head: head, body: body) }
  }

  /// Keeps the resume data of a request that ended early, for which so many bytes had arrived, unless its response was
  /// refused; nil: the system has none. `leaving`: the cancelled task, which nobody waits for any more if it comes late.
  func keep(_ data: Data?, bytes: Int64, for name: String, leaving task: Int? = nil) {
    state.withLock { state in
      if let task {
        guard state.leaving[name]?.task == task else { return }
        state.leaving[name] = nil
      }
      guard let data, !state.refused.contains(name) else { return }
      files.keep(data, bytes: bytes, for: name)
    }
  }

  /// Calls a completion handler once all responses that have arrived are stored and read, at the latest after so many
  /// seconds.
  func handleEvents(within seconds: TimeInterval = 20, _ handler: @escaping @Sendable () -> Void) {
    let wake = UUID()
    state.withLock { $0.handlers[wake] = handler }
    callHandlers()
    DispatchQueue.global().asyncAfter(deadline: .now() + seconds) { self.callHandlers(late: wake) }
  }

  /// Calls all handlers if nothing is left to do, and the `late` one in any case.
  private func callHandlers(late: UUID? = nil) {
    let due = state.withLock { state -> [@Sendable () -> Void] in
      if state.isDelivered && state.giving == 0 && state.unread.isEmpty {
        defer { (state.handlers, state.isDelivered) = ([:], false) }
        return Array(state.handlers.values)
      }
      guard let late, let handler = state.handlers.removeValue(forKey: late) else { return [] }
      state.unread.removeAll()  // nobody has come for them
      return [handler]
    }
    for handler in due { DispatchQueue.main.async { handler() } }
  }

  func urlSessionDidFinishEvents(forBackgroundURLSession session: URLSession) { deliveredEvents() }

  /// The session has delivered all events for which it woke the app.
  func deliveredEvents() {
    state.withLock { $0.isDelivered = true }
    // Gives waiting calls the time to start reading.
    DispatchQueue.global().asyncAfter(deadline: .now() + 1) { self.callHandlers() }
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
    for events in state.withLock({ $0.events(name) }) { events.yield(totalBytesWritten) }
  }

  func urlSession(_ session: URLSession, downloadTask: URLSessionDownloadTask, didFinishDownloadingTo location: URL) {
    guard let name = downloadTask.taskDescription, let response = downloadTask.response as? HTTPURLResponse else {
      return
    }
    let isForeign = response.url.map(isAllowed) != true
    let head =
      isForeign
      ? TransportHead(status: 302, contentLength: nil, contentRange: nil)
      : TransportHead(response).whole(from: ResponseFiles.offset(name), bytes: fileSize(location) ?? 0)
    state.withLock { state in
      if state.refused.contains(name) || state.isReplaced(downloadTask, name) { return }
      state.tasks[name] = nil  // it has ended, also if the response cannot be stored
      do {
        try files.store(name, head, body: location)
        state.unread.insert(name)
      } catch {
        for events in state.events(name) { events.finish(throwing: error) }
      }
    }
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    guard let name = task.taskDescription else { return }
    // The calls are those of this moment: one that joins later starts a task of its own.
    let ended = state.withLock { state -> [Events.Continuation]? in
      if state.isReplaced(task, name) || state.leaving[name]?.task == task.taskIdentifier { return nil }
      state.tasks[name] = nil
      return state.events(name)
    }
    guard let ended else { return }
    #if canImport(Darwin)
      if let data = (error as? NSError)?.userInfo[NSURLSessionDownloadTaskResumeData] as? Data {
        keep(data, bytes: task.countOfBytesReceived, for: name)
      }
    #endif
    for events in ended { events.finish(throwing: error) }
  }
}
