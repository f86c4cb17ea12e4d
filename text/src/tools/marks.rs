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

/// Whether an answer that begins with this text is a call without marks; None: more of it decides. Text
/// whose first 64 bytes contain no beginning of a call is none; leading white space does not count.
pub fn is_alone(text: &[u8]) -> Option<bool> {
    const MOST: usize = 64; // bytes
    const BEGINNINGS: [&[u8]; 3] = [b"{\"name\"", b"{\"type\":\"function\"", b"[{\"name\""];
    let text = text.trim_ascii_start();
    let core: Vec<u8> = text.iter().take(MOST).copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    if BEGINNINGS.iter().any(|beginning| core.starts_with(beginning)) {
        return Some(true);
    }
    if text.len() <= MOST && BEGINNINGS.iter().any(|beginning| beginning.starts_with(&core)) {
        None
    } else {
        Some(false)
    }
}

/// What an answer that begins with a text is, where a call needs no mark.
pub enum Alone {
    /// What is written of a call, behind its mark if it has one.
    Call(Vec<u8>),
    /// More of it decides.
    Undecided,
    Text,
}

/// `open` is the mark that a call may begin with.
pub fn alone(written: &[u8], open: &[u8]) -> Alone {
    let text = written.trim_ascii_start();
    if let Some(call) = text.strip_prefix(open) {
        return Alone::Call(call.to_owned());
    }
    match is_alone(text) {
        Some(true) => Alone::Call(text.to_owned()),
        Some(false) if !open.starts_with(text) => Alone::Text,
        _ => Alone::Undecided,
    }
}
