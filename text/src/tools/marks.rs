//! Marks in the bytes of a text, of which tokens bring a part each.

/// What follows a mark, if it is there.
pub fn after_mark(text: &[u8], mark: &str) -> Option<Vec<u8>> {
    let place = text.windows(mark.len().max(1)).position(|window| window == mark.as_bytes())?;
    Some(text[place + mark.len()..].to_owned())
}

/// The end of a text that may be the beginning of a mark of this length.
pub fn end_of(text: &[u8], length: usize) -> Vec<u8> {
    text[text.len().saturating_sub(length.saturating_sub(1))..].to_owned()
}

/// A call without marks is an answer that begins like one: what is written of it, and else what may become one.
pub fn alone(written: &[u8], open: &[u8]) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let text = written.trim_ascii_start();
    if let Some(call) = text.strip_prefix(open) {
        return (Some(call.to_owned()), None);
    }
    const BEGINNING: &[u8] = b"{\"name\"";
    if text.starts_with(BEGINNING) {
        return (Some(text.to_owned()), None);
    }
    let may_be = open.starts_with(text) || BEGINNING.starts_with(text);
    (None, may_be.then(|| written.to_owned()))
}
