//! name(key=value): calls in Python's syntax, with literals as arguments.

use super::channels::Call;
use super::reader::{Reader, MOST_DEPTH};
use super::Tools;
use crate::json::Json;

/// One call after another, or a list; `print(...)` around a call is dropped.
pub fn calls(text: &str, tools: &Tools) -> Option<Vec<Call>> {
    let mut reader = Reader { rest: text.trim() };
    let mut calls = Vec::new();
    if reader.eat("[") {
        calls = reader.items("]", |reader| call(reader, tools, 0))?;
        reader.space();
    }
    while !reader.rest.is_empty() {
        calls.push(call(&mut reader, tools, 0)?);
        reader.space();
    }
    Some(calls)
}

fn call(reader: &mut Reader, tools: &Tools, depth: usize) -> Option<Call> {
    if depth > MOST_DEPTH {
        return None;
    }
    let name = reader.function(tools, "(")?;
    reader.need("(")?;
    if name == "print" {
        let inner = call(reader, tools, depth + 1)?;
        reader.need(")")?;
        return Some(inner);
    }
    let argument = |reader: &mut Reader| {
        let key = reader.name()?.to_owned();
        reader.need("=")?;
        Some((key, value(reader, 0)?))
    };
    Some((name.to_owned(), Json::of_fields(reader.items(")", argument)?)))
}

fn value(reader: &mut Reader, depth: usize) -> Option<Json> {
    if depth > MOST_DEPTH {
        return None;
    }
    reader.space();
    if let Some(quote) = reader.rest.chars().next().filter(|c| matches!(c, '"' | '\'')) {
        return text(reader, quote).map(Json::Text);
    }
    if reader.eat("[") {
        return reader.items("]", |reader| value(reader, depth + 1)).map(Json::List);
    }
    if reader.eat("(") {
        return reader.items(")", |reader| value(reader, depth + 1)).map(Json::List);
    }
    if reader.eat("{") {
        let field = |reader: &mut Reader| {
            reader.space();
            let quote = reader.rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
            let key = text(reader, quote)?;
            reader.need(":")?;
            Some((key, value(reader, depth + 1)?))
        };
        return reader.items("}", field).map(Json::of_fields);
    }
    match reader.until(&[',', ')', ']', '}'])? {
        "None" | "null" => Some(Json::Null),
        "True" => Some(Json::Bool(true)),
        "False" => Some(Json::Bool(false)),
        word => Json::parse_lenient(&word.replace('_', "")).ok(),
    }
}

/// A text in quotes, which come next.
fn text(reader: &mut Reader, quote: char) -> Option<String> {
    let delimiter = String::from_iter([quote; 3]);
    let delimiter = if reader.rest.starts_with(&delimiter) { delimiter } else { quote.to_string() };
    reader.rest = &reader.rest[delimiter.len()..];
    let mut letters = reader.rest.char_indices();
    let mut text = String::new();
    while let Some((place, c)) = letters.next() {
        match c {
            '\\' => {
                let (_, escaped) = letters.next()?;
                match escaped {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    '0' => text.push('\0'),
                    'x' | 'u' | 'U' => {
                        let digits = match escaped {
                            'x' => 2,
                            'u' => 4,
                            _ => 8,
                        };
                        let code: String = letters.by_ref().take(digits).map(|(_, digit)| digit).collect();
                        let code = u32::from_str_radix(&code, 16).ok().filter(|_| code.len() == digits)?;
                        text.push(char::from_u32(code)?);
                    }
                    '\n' => (),
                    '\\' | '\'' | '"' => text.push(escaped),
                    other => text.extend(['\\', other]),
                }
            }
            _ if reader.rest[place..].starts_with(&delimiter) => {
                reader.rest = &reader.rest[place + delimiter.len()..];
                return Some(text);
            }
            _ => text.push(c),
        }
    }
    None
}
