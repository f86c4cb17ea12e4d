//! call:name{key:value}: the calls of FunctionGemma and Gemma 4. Texts stand between marks and have no escapes.

use super::channels::Call;
use super::reader::{Reader, MOST_DEPTH};
use super::Tools;
use crate::json::Json;

pub fn calls(text: &str, quote: &str, tools: &Tools) -> Option<Vec<Call>> {
    let (mut reader, mut calls) = (Reader { rest: text.trim() }, Vec::new());
    while !reader.rest.is_empty() {
        reader.need("call:")?;
        let name = reader.function(tools, "{")?.to_owned();
        reader.need("{")?;
        calls.push((name, fields(&mut reader, quote, 0)?));
        reader.space();
    }
    Some(calls)
}

fn fields(reader: &mut Reader, quote: &str, depth: usize) -> Option<Json> {
    let field = |reader: &mut Reader| {
        let key = match text(reader, quote) {
            Some(key) => key,
            None => reader.until(&[':', '}', ']', ','])?.to_owned(),
        };
        reader.need(":")?;
        Some((key, value(reader, quote, depth + 1)?))
    };
    reader.items("}", field).map(Json::of_fields)
}

fn text(reader: &mut Reader, quote: &str) -> Option<String> {
    if !reader.eat(quote) {
        return None;
    }
    let (text, rest) = reader.rest.split_once(quote)?;
    reader.rest = rest;
    Some(text.to_owned())
}

fn value(reader: &mut Reader, quote: &str, depth: usize) -> Option<Json> {
    if depth > MOST_DEPTH {
        return None;
    }
    reader.space();
    if reader.rest.starts_with(quote) {
        return text(reader, quote).map(Json::Text);
    }
    if reader.eat("{") {
        return fields(reader, quote, depth);
    }
    if reader.eat("[") {
        return reader.items("]", |reader| value(reader, quote, depth + 1)).map(Json::List);
    }
    let word = reader.until(&[',', '}', ']'])?;
    match word {
        "" => None,
        "None" => Some(Json::Null),
        _ => Some(Json::parse_lenient(word).unwrap_or_else(|_| Json::Text(word.to_owned()))),
    }
}
