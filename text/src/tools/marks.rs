//! Marks in the bytes of a text, of which tokens bring a part each.

use super::families::{Family, Form};

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
/// whose first 80 bytes contain no beginning of a call is none; leading white space does not count.
pub fn is_alone(text: &[u8], form: Form) -> Option<bool> {
    const MOST: usize = 80; // bytes: names of functions have at most 64 for OpenAI
    let text = text.trim_ascii_start();
    let core: Vec<u8> = text.iter().take(MOST).copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let found = if form == Form::PythonAlone { begins_python(&core) } else { begins_json(&core) };
    found.or((text.len() > MOST).then_some(false))
}

fn begins_json(text: &[u8]) -> Option<bool> {
    const BEGINNINGS: [&[u8]; 3] = [b"{\"name\"", b"{\"type\":\"function\"", b"[{\"name\""];
    if BEGINNINGS.iter().any(|beginning| text.starts_with(beginning)) {
        return Some(true);
    }
    let is_open = BEGINNINGS.iter().any(|beginning| beginning.starts_with(text));
    (!is_open).then_some(false)
}

/// A bracket, and a name in front of another one. A name may have any characters but Python's punctuation.
fn begins_python(text: &[u8]) -> Option<bool> {
    let (first, name) = text.split_first()?;
    if *first != b'[' {
        return Some(false);
    }
    let end = name.iter().position(|byte| b"[](){}<>\"',:;=".contains(byte))?;
    Some(end > 0 && name[end] == b'(')
}

/// What an answer that begins with a text is, where a call needs no mark.
pub enum Alone {
    /// What is written of a call, behind its mark if it has one.
    Call(Vec<u8>),
    /// More of it decides.
    Undecided,
    Text,
}

/// A call may begin with a mark of the family all the same.
pub fn alone(written: &[u8], family: &Family) -> Alone {
    let (text, open) = (written.trim_ascii_start(), family.open.as_bytes());
    if let Some(call) = text.strip_prefix(open) {
        return Alone::Call(call.to_owned());
    }
    match is_alone(text, family.form) {
        Some(true) => Alone::Call(text.to_owned()),
        Some(false) if !open.starts_with(text) => Alone::Text,
        _ => Alone::Undecided,
    }
}
