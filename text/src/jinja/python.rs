//! Python's string representations and character classes.

use crate::control_tokens::CUT;

/// str.isspace, which includes four separators that Unicode's property does not.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// str.splitlines
pub fn lines(text: &str) -> Vec<&str> {
    let ends = ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    let (mut found, mut tail) = (Vec::new(), text);
    while let Some(end) = tail.find(ends) {
        found.push(&tail[..end]);
        let length =
            if tail[end..].starts_with("\r\n") { 2 } else { tail[end..].chars().next().map_or(0, char::len_utf8) };
        tail = &tail[end + length..];
    }
    if !tail.trim_matches(CUT).is_empty() {
        found.push(tail);
    }
    found
}

/// repr of a float
pub fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}"); // the shortest digits that read back the same
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// repr of a str
pub fn write_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if c == quote => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ if c == CUT || is_printable(c) => out.push(c),
            '\0'..='\u{ff}' => out.push_str(&format!("\\x{:02x}", c as u32)),
            '\u{100}'..='\u{ffff}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            _ => out.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    out.push(quote);
}

fn is_printable(c: char) -> bool {
    // Rust escapes unprintable characters, and combining marks at the beginning of a string.
    !['a', c].iter().collect::<String>().escape_debug().to_string().contains('\\')
}

/// The title case of a letter; None if it depends on tables that Rust does not have.
pub fn title(c: char) -> Option<char> {
    let mut upper = c.to_uppercase();
    let (first, more) = (upper.next()?, upper.next());
    let is_special = matches!(c, '\u{1c4}'..='\u{1cc}' | '\u{1f1}'..='\u{1f3}' | '\u{10d0}'..='\u{10ff}')
        || ('\u{1f80}'..='\u{1fff}').contains(&c);
    (more.is_none() && !is_special).then_some(first)
}
