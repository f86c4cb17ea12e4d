import StreamFuseCore

/// Who proposed each part of a text that was drawn from Markdown: `drawn` is the text of `runs` without its marks.
public func sources(of drawn: String, in runs: [Run]) -> [Run] {
  let longestMark = 400  // the address of a link
  let written = runs.flatMap { run in run.text.map { (character: $0, source: run.source) } }
  var next = 0
  var source = Source.model
  var found: [Run] = []
  for character in drawn {
    if let place = written[next...].prefix(longestMark).firstIndex(where: { $0.character == character }) {
      source = written[place].source
      next = place + 1
    }
    found.append(String(character), source)
  }
  return found
}
