//! The chat template, in the environment of Hugging Face transformers (text_io.py). It is untrusted: its work,
//! its output and its depth are bounded.

use chrono::Local;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, Kwargs, Serde, ValueKind};
use minijinja::{context, AutoEscape, Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::chat::Message;
use crate::error::{bad_argument, bad_file, one_line, Result};

/// An instruction or 64 bytes of text each: a fraction of a second, and 64 MB at most.
const FUEL: u64 = 1_000_000;
const MOST_DEPTH: usize = 200;
/// A loop can put a list into a list as often as there is fuel, and what is nested is written and freed by functions
/// that call themselves. Memory of a stack costs nothing until it is used.
const STACK_BYTES: usize = 256 << 20;
const MOST_JSON_DEPTH: usize = 100;
const NAME: &str = "chat_template";

pub struct Template {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

impl Template {
    pub fn new(source: String, bos_token: String, eos_token: String) -> Result<Template> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the delimiters are the usual ones"));
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MOST_DEPTH);
        environment.set_debug(false);
        environment.set_unknown_method_callback(method);
        environment.add_filter("tojson", tojson);
        environment.add_filter("trim", |text: String, characters: Option<String>| strip(&text, characters, true, true));
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        match stacker::grow(STACK_BYTES, || environment.add_template_owned(NAME, source)) {
            Ok(()) => Ok(Template { environment, bos_token, eos_token }),
            Err(error) => Err(bad_file(format!("the chat template is not valid Jinja ({})", one_line(&error)))),
        }
    }

    /// The chat up to where its answer begins.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let variables = || {
            context! {
                messages => Serde(messages),
                add_generation_prompt => true,
                tools => (),
                documents => (),
                bos_token => self.bos_token.as_str(),
                eos_token => self.eos_token.as_str(),
            }
        };
        let render = || self.environment.get_template(NAME)?.render(variables());
        stacker::grow(STACK_BYTES, render).map_err(|error| {
            let reason = match (error.kind(), error.detail()) {
                (ErrorKind::OutOfFuel, _) => "it works without end".to_owned(),
                (_, Some(detail)) => one_line(&detail), // what raise_exception was given, alone
                (kind, None) => kind.to_string(),
            };
            bad_argument(format!("the chat template refuses these messages ({reason})"))
        })
    }
}

fn raise_exception(message: String) -> std::result::Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(form: &str) -> std::result::Result<String, Error> {
    use std::fmt::Write;
    let mut text = String::new();
    write!(text, "{}", Local::now().naive_local().format(form))
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, format!("strftime_now cannot write {form:?}")))?;
    Ok(text)
}

/// Python's methods; those that depend on what white space is go by Python's own idea of it.
fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> std::result::Result<Value, Error> {
    if let (Some(text), ValueKind::String) = (value.as_str(), value.kind()) {
        match (name, arguments) {
            ("strip" | "lstrip" | "rstrip", _) => {
                let (characters,): (Option<String>,) = from_args(arguments)?;
                return Ok(strip(text, characters, name != "rstrip", name != "lstrip").into());
            }
            ("split", []) => return Ok(text.split(is_space).filter(|word| !word.is_empty()).collect()),
            ("splitlines", []) => return Ok(lines(text).into_iter().collect()),
            _ => (),
        }
    }
    unknown_method_callback(state, value, name, arguments)
}

fn strip(text: &str, characters: Option<String>, left: bool, right: bool) -> String {
    let goes = |c: char| characters.as_ref().map_or_else(|| is_space(c), |characters| characters.contains(c));
    let text = if left { text.trim_start_matches(goes) } else { text };
    if right { text.trim_end_matches(goes) } else { text }.to_owned()
}

/// str.isspace: four separators more than Unicode's property.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// str.splitlines
fn lines(text: &str) -> Vec<&str> {
    let ends = ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    let (mut found, mut tail) = (Vec::new(), text);
    while let Some(end) = tail.find(ends) {
        found.push(&tail[..end]);
        let length =
            if tail[end..].starts_with("\r\n") { 2 } else { tail[end..].chars().next().map_or(0, char::len_utf8) };
        tail = &tail[end + length..];
    }
    if !tail.is_empty() {
        found.push(tail);
    }
    found
}

/// json.dumps(value, ensure_ascii=False, indent=indent)
fn tojson(value: &Value, indent: Option<Value>, named: Kwargs) -> std::result::Result<String, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => named.get::<Option<Value>>("indent")?,
    };
    named.assert_all_used()?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        Some(indent) => Some(usize::try_from(indent)?.min(16)),
        None => None,
    };
    let mut out = String::new();
    write_json(value, indent, 0, &mut out)?;
    Ok(out)
}

fn write_json(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) -> std::result::Result<(), Error> {
    let refused = |what: &str| Err(Error::new(ErrorKind::InvalidOperation, format!("tojson cannot write {what}")));
    if depth > MOST_JSON_DEPTH {
        return refused("what is nested so deep");
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&value.to_string()),
        ValueKind::String => write_text(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            write_items(value, indent, depth, ['[', ']'], out, |item, out| write_json(item, indent, depth + 1, out))?
        }
        ValueKind::Map => write_items(value, indent, depth, ['{', '}'], out, |name, out| {
            write_text(&name.to_string(), out);
            out.push_str(": ");
            write_json(&value.get_item(name)?, indent, depth + 1, out)
        })?,
        other => return refused(&other.to_string()),
    }
    Ok(())
}

fn write_items(
    value: &Value,
    indent: Option<usize>,
    depth: usize,
    brackets: [char; 2],
    out: &mut String,
    mut write: impl FnMut(&Value, &mut String) -> std::result::Result<(), Error>,
) -> std::result::Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = indent {
            out.push('\n');
            out.push_str(&" ".repeat(indent * depth));
        }
    };
    out.push(brackets[0]);
    let mut any = false;
    for item in value.try_iter()? {
        if any {
            out.push_str(if indent.is_some() { "," } else { ", " });
        }
        new_line(out, depth + 1);
        write(&item, out)?;
        any = true;
    }
    if any {
        new_line(out, depth);
    }
    out.push(brackets[1]);
    Ok(())
}

fn write_text(text: &str, out: &mut String) {
    out.push_str(&serde_json::to_string(text).expect("a text is always JSON")); // the escapes of json.dumps
}
