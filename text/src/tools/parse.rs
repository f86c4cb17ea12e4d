//! Calls as models write them.

use super::braces;
use super::channels::Call;
use super::families::{Family, Form};
use super::python;
use super::reader::MOST_DEPTH;
use super::Tools;
use crate::json::{Json, Object};

/// The calls in a text with its marks; nothing where it is none.
pub fn calls(text: &str, family: &Family, tools: &Tools) -> Option<Vec<Call>> {
    let text = text.trim();
    let text = text.strip_prefix(family.open.trim_end()).unwrap_or(text);
    let text = if family.close.is_empty() { text } else { text.strip_suffix(family.close).unwrap_or(text) };
    let calls = match family.form {
        Form::Json { .. } | Form::JsonAlone => of_json(text)?,
        Form::Braces { quote } => braces::calls(text, quote, tools)?,
        Form::Python { .. } => python::calls(text, tools)?,
        Form::Xml if text.trim_start().starts_with(['{', '[']) => of_json(text)?,
        Form::Xml => of_xml(text, tools)?,
    };
    (!calls.is_empty()).then_some(calls)
}

/// Whether a call that is not finished ends within a text of its own, where a mark is none.
pub fn is_inside_text(call: &str, form: Form) -> bool {
    match form {
        Form::Json { .. } | Form::JsonAlone => is_open(call, &['"']),
        Form::Python { .. } => is_open(call, &['"', '\'']),
        Form::Braces { quote } => call.matches(quote).count() % 2 == 1,
        Form::Xml if call.trim_start().starts_with(['{', '[']) => is_open(call, &['"']),
        Form::Xml => false,
    }
}

fn is_open(text: &str, quotes: &[char]) -> bool {
    let (mut open, mut is_escaped) = (None, false);
    for c in text.chars() {
        match open {
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if c == '\\' => is_escaped = true,
            Some(quote) if c == quote => open = None,
            None if quotes.contains(&c) => open = Some(c),
            _ => (),
        }
    }
    open.is_some()
}

fn of_json(text: &str) -> Option<Vec<Call>> {
    let values = Json::parse_several(text, &[';', ',']).ok()?;
    let flat = values.iter().flat_map(|value| value.list().unwrap_or(std::slice::from_ref(value)));
    flat.map(call_of).collect()
}

/// {"name", "arguments"}, with other names for the arguments, and as text too.
fn call_of(value: &Json) -> Option<Call> {
    let call = value.get("function").filter(|function| function.object().is_some()).unwrap_or(value);
    let name = call.get("name")?.text().filter(|name| !name.is_empty())?;
    let arguments = ["arguments", "parameters"].into_iter().find_map(|key| call.get(key));
    let arguments = match arguments {
        None | Some(Json::Null) => Json::Object(Box::default()),
        Some(Json::Text(text)) => Json::parse_lenient(text).ok()?,
        Some(value) => value.clone(),
    };
    arguments.object()?;
    Some((name.to_owned(), arguments))
}

fn of_xml(text: &str, tools: &Tools) -> Option<Vec<Call>> {
    let (mut calls, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        let called = rest.strip_prefix("<function=")?;
        let name = tools.called(called, ">").or_else(|| Some(called.split_once('>')?.0))?;
        let body = called[name.len()..].trim_start().strip_prefix('>')?;
        let (body, after) = body.split_once("</function>")?;
        let mut arguments = Object::new();
        let mut body = body.trim_start();
        while !body.is_empty() {
            let (key, value) = body.strip_prefix("<parameter=")?.split_once('>')?;
            let (value, after) = value.split_once("</parameter>")?;
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            arguments.insert(key.to_owned(), typed(value, tools.property(name, key)));
            body = after.trim_start();
        }
        calls.push((name.to_owned(), Json::Object(Box::new(arguments))));
        rest = after.trim_start();
    }
    Some(calls)
}

/// A value without quotes: text if it is not JSON, or if the schema allows text but not the type that it reads as.
fn typed(text: &str, schema: Option<&Json>) -> Json {
    let mut types = Vec::new();
    schema.into_iter().for_each(|schema| add_types(schema, &mut types, 0));
    let read = Json::parse_lenient(text.trim()).ok();
    let is_allowed = |value: &Json| type_names(value).iter().any(|name| *name != "string" && types.contains(name));
    read.filter(|value| !types.contains(&"string") || is_allowed(value)).unwrap_or_else(|| Json::Text(text.to_owned()))
}

/// The types that a schema allows, of its alternatives and listed values too.
fn add_types<'a>(schema: &'a Json, types: &mut Vec<&'a str>, depth: usize) {
    if depth > MOST_DEPTH {
        return;
    }
    match schema.get("type") {
        Some(Json::Text(one)) => types.push(one),
        Some(several) => types.extend(several.list().unwrap_or_default().iter().filter_map(Json::text)),
        None => {
            let values = schema.get("enum").and_then(Json::list).unwrap_or_default().iter().chain(schema.get("const"));
            values.flat_map(type_names).for_each(|name| types.push(name));
        }
    }
    let alternatives = ["anyOf", "oneOf"].into_iter().filter_map(|key| schema.get(key)).filter_map(Json::list);
    alternatives.flatten().for_each(|schema| add_types(schema, types, depth + 1));
}

/// The names that a schema has for the type of a value.
fn type_names(value: &Json) -> &'static [&'static str] {
    match value {
        Json::Null => &["null"],
        Json::Bool(_) => &["boolean"],
        Json::Whole(_) => &["integer", "number"],
        Json::Real(_) => &["number"],
        Json::Text(_) => &["string"],
        Json::List(_) => &["array"],
        Json::Object(_) => &["object"],
    }
}
