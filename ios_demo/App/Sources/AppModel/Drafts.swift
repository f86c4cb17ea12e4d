import StreamFuseCore

/// The sources of `drawn`, the text of `runs` without its Markdown markup. Each character is matched with the next
/// equal one in `runs`.
public func sources(of drawn: String, in runs: [Run]) -> [Run] {
  let longestMarkup = 400  // characters, for the address of a link
  let written = runs.flatMap { run in run.text.map { (character: $0, source: run.source) } }
  var next = 0
  var source = Source.model
  var found: [Run] = []
  for character in drawn {
    if let place = written[next...].prefix(longestMarkup).firstIndex(where: { $0.character == character }) {
      source = written[place].source
      next = place + 1
    }
    found.append(String(character), source)
  }
  return found
}
