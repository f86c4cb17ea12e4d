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

/// Whether a text ends with the beginning of a mark.
pub fn may_begin(text: &[u8], mark: &str) -> bool {
    (1..mark.len()).any(|length| text.ends_with(&mark.as_bytes()[..length]))
}

/// Whether an answer that begins with this text is a call without marks; None: more of it decides.
pub fn is_alone(text: &[u8]) -> Option<bool> {
    const BEGINNINGS: [&[u8]; 3] = [b"{\"name\"", b"{\"type\":\"function\"", b"[{\"name\""];
    let core: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    if BEGINNINGS.iter().any(|beginning| core.starts_with(beginning)) {
        return Some(true);
    }
    if BEGINNINGS.iter().any(|beginning| beginning.starts_with(&core)) {
        None
    } else {
        Some(false)
    }
}

/// What is written of a call, with the mark `open` or without, and else what may become one.
pub fn alone(written: &[u8], open: &[u8]) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let text = written.trim_ascii_start();
    if let Some(call) = text.strip_prefix(open) {
        return (Some(call.to_owned()), None);
    }
    match is_alone(text) {
        Some(true) => (Some(text.to_owned()), None),
        None => (None, Some(written.to_owned())),
        Some(false) => (None, open.starts_with(text).then(|| written.to_owned())),
    }
}
