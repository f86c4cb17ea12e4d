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
/// A response is stored in a file first, so the hash of a file is checked only once the file is complete, and the
/// largest file needs twice its size. Calls that request the same bytes at the same time share one response.
public final class BackgroundTransport: BundleTransport {
  private let session: URLSession
  private let responses: StoredResponses
  /// Finds the tasks that an earlier process started.
  private let adopting: Task<Void, Never>

  #if canImport(Darwin)
    /// A transport over the background session with this identifier. Create only one per identifier and process.
    ///
    /// - Parameters:
    ///   - folder: where responses are stored until `BundleStore` has read them. Default: in the app's caches folder.
    ///   - configure: changes the session's configuration, for example `allowsCellularAccess`. By default
    ///     `isDiscretionary` is false, because the user waits. The system treats requests of an app in the background as
    ///     discretionary regardless.
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
  convenience init(_ configuration: URLSessionConfiguration, folder: URL) {
    let responses = StoredResponses(folder)
    self.init(URLSession(configuration: configuration, delegate: responses, delegateQueue: nil), responses)
  }

  /// A transport over a session whose delegate is `responses`.
  init(_ session: URLSession, _ responses: StoredResponses) {
    self.session = session
    self.responses = responses
    adopting = Task {
      await withCheckedContinuation { continuation in
        // This runs on the delegate queue, so no task of the list ends meanwhile.
        session.getAllTasks { tasks in
          responses.adopt(tasks)
          continuation.resume()
        }
      }
    }
  }

  /// Pass the handler of `application(_:handleEventsForBackgroundURLSession:completionHandler:)`. It is called on the
  /// main thread once all responses that have arrived are stored and read, at the latest after 20 s.
  public func handleEvents(completionHandler: @escaping () -> Void) {
    nonisolated(unsafe) let handler = completionHandler  // UIKit does not declare it as Sendable
    responses.handleEvents { handler() }
  }

  /// Called when the session has delivered all events.
  func deliveredEvents() { responses.deliveredEvents() }

  public func get(
    _ url: URL, from offset: Int64, arriving: @escaping @Sendable (Int64) throws -> Void,
    head: @escaping @Sendable (TransportHead) throws -> Void, body: @escaping @Sendable (Data) throws -> Void
  ) async throws {
    await adopting.value
    let name = responses.files.response(url, from: offset)
    try await responses.left(name)
    try Task.checkCancellation()
    let (call, events) = responses.join(name) { task(URLRequest(url, from: ResponseFiles.offset(name)), name) }
    var keeps = true
    defer { responses.leave(name, call, keeps: keeps) }
    for try await count in events {
      do {
        try arriving(count)
      } catch {
        keeps = false
        throw error
      }
    }
    try Task.checkCancellation()  // which ends the events too
    do {
      try await responses.give(name, from: offset, head: head, body: body)
      keeps = false
    } catch {
      keeps = error is CancellationError
      throw error
    }
  }

  public func storageBytes(_ url: URL, from offset: Int64, of bytes: Int64) async -> Int64 {
    await adopting.value
    return max(0, bytes - responses.heldBytes(url, from: offset))
  }

  public func heldBytes(_ url: URL, from offset: Int64) async -> Int64 {
    await adopting.value
    return responses.heldBytes(url, from: offset)
  }

  public func discard(_ url: URL) async {
    await adopting.value
    responses.discard(url)
  }

  /// A task for a request, which resumes an earlier one if the system has kept its resume data.
  private func task(_ request: URLRequest, _ name: String) -> URLSessionDownloadTask {
    #if canImport(Darwin)
      if let data = responses.files.resumeData(name) { return session.downloadTask(withResumeData: data) }
    #endif
    return session.downloadTask(with: request)
  }
}
