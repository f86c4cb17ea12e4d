//! Calls as models write them.

use super::braces;
use super::channels::Call;
use super::families::{Family, Form, ARGS};
use super::python;
use super::Tools;
use crate::json::{in_range, Json, Object};

/// Schemas that are read for the types of an argument.
const MOST_SCHEMAS: usize = 256;

const PYTHON_QUOTES: [&str; 4] = ["\"\"\"", "'''", "\"", "'"];

/// The calls in a text with its marks; nothing where it is none.
pub fn calls(text: &str, family: &Family, tools: &Tools) -> Option<Vec<Call>> {
    let text = text.trim();
    let text = text.strip_prefix(family.open.trim_end()).unwrap_or(text);
    let text = if family.close.is_empty() { text } else { text.strip_suffix(family.close).unwrap_or(text) };
    let calls = match family.form {
        Form::Json { .. } | Form::JsonAlone | Form::Actions => of_json(&in_range(text))?,
        Form::Braces { quote } => braces::calls(text, quote, tools)?,
        Form::Python { .. } | Form::PythonAlone => python::calls(code(text), tools)?,
        Form::Args => of_args(&in_range(text), family.open)?,
        Form::Xml if text.trim_start().starts_with(['{', '[']) => of_json(&in_range(text))?,
        Form::Xml => of_xml(text, tools)?,
    };
    (!calls.is_empty()).then_some(calls)
}

/// Whether a call that is not finished ends within a text of its own, where a mark is none.
pub fn is_inside_text(call: &str, form: Form) -> bool {
    match form {
        Form::Json { .. } | Form::JsonAlone | Form::Actions | Form::Args => is_open(call, &["\""]),
        Form::Python { .. } | Form::PythonAlone => is_open(call, &PYTHON_QUOTES),
        Form::Braces { quote } => call.matches(quote).count() % 2 == 1,
        Form::Xml if call.trim_start().starts_with(['{', '[']) => is_open(call, &["\""]),
        Form::Xml => false,
    }
}

/// The last byte of a call that is not JSON.
pub fn last_of_call(family: &Family) -> Option<u8> {
    if family.form == Form::PythonAlone {
        Some(b']')
    } else {
        family.close.bytes().last()
    }
}

/// Whether a call that is not JSON ends in this text, which begins with the arguments.
pub fn is_closed(arguments: &str, family: &Family) -> bool {
    if family.form != Form::PythonAlone {
        let mut marks = arguments.match_indices(family.close);
        return marks.any(|(place, _)| !is_inside_text(&arguments[..place], family.form));
    }
    let mut open = 2; // brackets: that of the list, and that of the call
    let mut is_closed = false;
    scan(arguments, &PYTHON_QUOTES, |c| {
        match c {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open -= 1,
            _ => (),
        }
        is_closed |= open == 0;
    });
    is_closed
}

fn is_open(text: &str, quotes: &[&str]) -> bool {
    scan(text, quotes, |_| ())
}

/// Whether a text ends between quotes, of which longer ones come first. `outside` gets what is not between quotes.
fn scan(mut text: &str, quotes: &[&str], mut outside: impl FnMut(char)) -> bool {
    let mut open: Option<&str> = None;
    while let Some(c) = text.chars().next() {
        let quote = quotes.iter().copied().filter(|quote| open.is_none_or(|open| open == *quote));
        let found = quote.into_iter().find(|quote| text.starts_with(*quote));
        let mut size = c.len_utf8();
        if let Some(quote) = found {
            open = if open.is_none() { Some(quote) } else { None };
            size = quote.len();
        } else if c == '\\' && open.is_some() {
            size += text[size..].chars().next().map_or(0, char::len_utf8);
        } else if open.is_none() {
            outside(c);
        }
        text = &text[size..];
    }
    open.is_some()
}

/// Code without the marks of a block of Markdown around it.
fn code(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix("```python").and_then(|code| code.strip_suffix("```")).unwrap_or(text)
}

fn of_json(text: &str) -> Option<Vec<Call>> {
    let values = Json::parse_several(text, &[';', ',']).ok()?;
    let flat = values.iter().flat_map(|value| value.list().unwrap_or(std::slice::from_ref(value)));
    flat.map(call_of).collect()
}

/// {"name", "arguments"}, with other names for the arguments, and as text too.
fn call_of(value: &Json) -> Option<Call> {
    let call = value.get("function").filter(|function| function.object().is_some()).unwrap_or(value);
    let name = ["name", "tool_name"].into_iter().find_map(|key| call.get(key))?;
    let name = name.text().filter(|name| !name.is_empty())?;
    let arguments = ["arguments", "parameters"].into_iter().find_map(|key| call.get(key));
    let arguments = match arguments {
        None | Some(Json::Null) => Json::Object(Box::default()),
        Some(Json::Text(text)) => Json::parse_lenient(text).ok()?,
        Some(value) => value.clone(),
    };
    arguments.object()?;
    Some((name.to_owned(), arguments))
}

/// name[ARGS]{...}, with an id in front of the arguments in some generations; `open` stands before each call but the first.
fn of_args(text: &str, open: &str) -> Option<Vec<Call>> {
    let (mut calls, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        let (called, after) = rest.split_once(ARGS)?;
        let name = called.split("[CALL_ID]").next().map(str::trim).filter(|name| !name.is_empty())?;
        let (arguments, after) = Json::parse_first(after)?.ok()?;
        arguments.object()?;
        calls.push((name.to_owned(), arguments));
        let after = after.trim_start();
        rest = after.strip_prefix(open).unwrap_or(after).trim_start();
    }
    Some(calls)
}

fn of_xml(text: &str, tools: &Tools) -> Option<Vec<Call>> {
    let (mut calls, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        let called = rest.strip_prefix("<function=")?;
        let name = tools.called(called, ">").or_else(|| Some(called.split_once('>')?.0))?;
        let body = called[name.len()..].trim_start().strip_prefix('>')?;
        let (body, after) = body.split_once("</function>")?;
        let schema = tools.parameters(name);
        let properties = schema.and_then(|schema| schema.get("properties"));
        let mut arguments = Object::new();
        let mut body = body.trim_start();
        while !body.is_empty() {
            let (key, value) = body.strip_prefix("<parameter=")?.split_once('>')?;
            let (value, after) = value.split_once("</parameter>")?;
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            arguments.insert(key.to_owned(), typed(value, properties.and_then(|all| all.get(key)), schema));
            body = after.trim_start();
        }
        calls.push((name.to_owned(), Json::Object(Box::new(arguments))));
        rest = after.trim_start();
    }
    Some(calls)
}

/// A value without quotes: text if it is not JSON, or if the schema allows text but not the type that it reads as.
/// Templates write earlier calls with Python's `True`, `False` and `None`, and models copy that.
fn typed(text: &str, schema: Option<&Json>, root: Option<&Json>) -> Json {
    let mut types = Vec::new();
    schema.into_iter().for_each(|schema| add_types(schema, root, &mut types, &mut { MOST_SCHEMAS }));
    let read = match text.trim() {
        "True" => Some(Json::Bool(true)),
        "False" => Some(Json::Bool(false)),
        "None" => Some(Json::Null),
        text => Json::parse_lenient(text).ok(),
    };
    let is_allowed = |value: &Json| type_names(value).iter().any(|name| *name != "string" && types.contains(name));
    read.filter(|value| !types.contains(&"string") || is_allowed(value)).unwrap_or_else(|| Json::Text(text.to_owned()))
}

/// The types that a schema allows, of its alternatives and listed values too. References lead to places in `root`.
/// `left` bounds how many schemas are read, which may refer to themselves.
fn add_types<'a>(schema: &'a Json, root: Option<&'a Json>, types: &mut Vec<&'a str>, left: &mut usize) {
    if *left == 0 {
        return;
    }
    *left -= 1;
    let target = schema.get("$ref").and_then(Json::text).and_then(|target| target.strip_prefix("#"));
    let found = target.and_then(|target| target.split('/').skip(1).try_fold(root?, |place, name| place.get(name)));
    found.into_iter().for_each(|found| add_types(found, root, types, left));
    match schema.get("type") {
        Some(Json::Text(one)) => types.push(one),
        Some(several) => types.extend(several.list().unwrap_or_default().iter().filter_map(Json::text)),
        None => {
            let values = schema.get("enum").and_then(Json::list).unwrap_or_default().iter().chain(schema.get("const"));
            values.flat_map(type_names).for_each(|name| types.push(name));
        }
    }
    let alternatives = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|key| schema.get(key)).filter_map(Json::list);
    alternatives.flatten().for_each(|schema| add_types(schema, root, types, left));
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
