//! Lark grammars: a schema in `%json` is checked and compact as one that stands alone, and an attribute that the core
//! cannot follow is refused.

use serde_json::{Deserializer, Value};

use super::schema;
use crate::error::{bad_grammar, Result};

const JSON: &str = "%json";
const TEMPERATURE: &str = "temperature"; // of a rule

/// The grammar with each of its schemas prepared.
pub fn prepared(text: &str) -> Result<String> {
    let (mut made, mut rest) = (String::new(), text);
    while !rest.is_empty() {
        let (mut size, mut replaced) = (word(rest), None);
        let wrong = |reason: &str| {
            let line = 1 + text[..text.len() - rest.len()].matches('\n').count();
            bad_grammar(format!("the grammar: line {line}: {reason}"))
        };
        if rest.strip_prefix(TEMPERATURE).is_some_and(|after| after.trim_start().starts_with('=')) {
            return Err(wrong("the attribute temperature is not supported; a text has one temperature"));
        }
        if let Some(after) = rest.strip_prefix(JSON) {
            let mut values = Deserializer::from_str(after).into_iter::<Value>();
            if let Some(Ok(value)) = values.next() {
                size = JSON.len() + values.byte_offset();
                let value = schema::prepared(&value).map_err(|error| wrong(&error.sentence))?;
                replaced = Some(format!("{JSON} {value}"));
            }
        }
        made.push_str(replaced.as_deref().unwrap_or(&rest[..size]));
        rest = &rest[size..];
    }
    Ok(made)
}

/// Bytes of the text, regular expression, comment or character that a rest of a grammar begins with.
fn word(rest: &str) -> usize {
    let line = || rest.find('\n').unwrap_or(rest.len());
    match rest.as_bytes() {
        [b'/', b'/', ..] | [b'#', ..] => line(),
        [mark @ (b'"' | b'/'), ..] => quoted(rest, *mark).unwrap_or(1),
        _ => rest.chars().next().map_or(0, char::len_utf8),
    }
}

/// Up to the mark that closes it on the same line.
fn quoted(rest: &str, mark: u8) -> Option<usize> {
    let (mut bytes, mut is_escaped) = (rest.bytes().enumerate().skip(1), false);
    let end = bytes.find(|&(_, byte)| {
        let ends = (byte == mark && !is_escaped) || byte == b'\n';
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    });
    end.filter(|&(_, byte)| byte == mark).map(|(place, _)| place + 1)
}
