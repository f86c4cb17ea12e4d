//! jinja2's filters of text and numbers; those of lists are in sequences.rs.

use std::sync::Arc;

use super::arguments::Given;
use super::order::MOST_EXACT;
use super::python::{is_space, lines};
use super::render::Render;
use super::value::Value;
use super::{fault, Result};
use crate::control_tokens::{characters, uncut};

pub const NAMES: [&str; 45] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
    "wordcount",
];

impl Render {
    pub fn filter(&self, name: &str, value: Value, given: &Given) -> Result<Value> {
        self.spend(1)?;
        let none = || given.bind(name, [], 0).map(|_| ());
        match name {
            "tojson" => self.json(&value, given),
            "safe" => {
                none()?;
                Ok(Value::Safe(self.text_of(&value)?))
            }
            "e" | "escape" | "forceescape" => {
                none()?;
                match value {
                    Value::Safe(_) if name != "forceescape" => Ok(value),
                    _ => Ok(Value::Safe(self.escaped(&self.text_of(&value)?)?.into())),
                }
            }
            "string" => {
                none()?;
                if let Value::Safe(_) = value {
                    Ok(value)
                } else {
                    self.text_of(&value).map(Value::Text)
                }
            }
            "default" | "d" => {
                let [default, also_false] = given.bind(name, ["default_value", "boolean"], 0)?;
                let is_missing = value.is_undefined()
                    || (also_false.is_some_and(|also_false| also_false.is_true()) && !value.is_true());
                Ok(if is_missing { default.unwrap_or_else(|| Value::text("")) } else { value })
            }
            "attr" => {
                let [attribute] = given.bind(name, ["name"], 1)?;
                self.only_attribute(&value, &self.needed_text(name, attribute)?)
            }
            "abs" => {
                none()?;
                match &value {
                    Value::Float(number) => Ok(Value::Float(number.abs())),
                    Value::Undefined(what) => fault(&**what),
                    _ => match value.whole().map(i64::checked_abs) {
                        Some(Some(number)) => Ok(Value::Int(number)),
                        _ => fault(format!("bad operand type for abs(): '{}'", value.kind())),
                    },
                }
            }
            "int" => self.int(&value, given),
            "float" => self.float(&value, given),
            "round" => self.round(&value, given),
            _ => match self.filter_of_texts(name, &value, given)? {
                Some(found) => Ok(found),
                None => self.filter_of_lists(name, &value, given),
            },
        }
    }

    /// The text that a filter operates on.
    fn soft_text(&self, name: &str, value: &Value) -> Result<Arc<str>> {
        match value {
            Value::Safe(_) => fault(format!("the filter '{name}' of a safe text is not supported")),
            _ => self.text_of(value),
        }
    }

    fn filter_of_texts(&self, name: &str, value: &Value, given: &Given) -> Result<Option<Value>> {
        if !matches!(
            name,
            "upper"
                | "lower"
                | "capitalize"
                | "title"
                | "trim"
                | "center"
                | "format"
                | "replace"
                | "indent"
                | "wordcount"
        ) {
            return Ok(None);
        }
        if name == "indent" && !matches!(value, Value::Text(_)) {
            return self.needed_text(name, Some(value.clone())).map(|_| None);
        }
        let text = if name == "replace" { self.text_of(value)? } else { self.soft_text(name, value)? };
        self.spend(1 + text.len() as u64 / 64)?;
        let none = || given.bind(name, [], 0).map(|_| ());
        Ok(Some(match name {
            "upper" | "lower" | "capitalize" => {
                none()?;
                self.cased(&text, name)?
            }
            "title" => {
                none()?;
                self.titles(&text)?
            }
            "trim" => {
                let [characters] = given.bind(name, ["chars"], 0)?;
                let characters = self.optional_text(name, characters)?;
                self.strip(&text, characters.as_deref(), true, true)?
            }
            "center" => {
                let [width] = given.bind(name, ["width"], 0)?;
                self.pad(&text, self.optional_whole(name, width)?.unwrap_or(80), ' ', name)?
            }
            "format" => {
                if !given.named.is_empty() && !given.positional.is_empty() {
                    return fault("can't handle positional and keyword arguments at the same time");
                }
                let values = if given.named.is_empty() {
                    Value::Tuple(super::value::List::new(given.positional.clone())?)
                } else {
                    let mut items = indexmap::IndexMap::new();
                    for (name, value) in &given.named {
                        self.put(&mut items, Value::Text(name.clone()), value.clone())?;
                    }
                    Value::Dict(super::value::Dict::new(items)?)
                };
                Value::text(self.percent(&text, &values)?)
            }
            "replace" => {
                let [old, new, count] = given.bind(name, ["old", "new", "count"], 2)?;
                let count = self.optional_whole(name, count.filter(|count| !matches!(count, Value::None)))?;
                let part = |value: Option<Value>| self.text_of(&value.unwrap_or(Value::None));
                self.replace(&text, &part(old)?, &part(new)?, count.unwrap_or(-1))?
            }
            "indent" => self.indent(&text, given)?,
            _ => {
                none()?;
                let text: String = uncut(&text).collect();
                if !text.is_ascii() {
                    return fault("wordcount of a text that is not ASCII is not supported");
                }
                let words = text.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
                Value::Int(words.filter(|word| !word.is_empty()).count() as i64)
            }
        }))
    }

    pub fn escaped(&self, text: &str) -> Result<String> {
        self.spend_bytes(5 * text.len())?;
        let mut out = String::new();
        for c in text.chars() {
            match c {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                '"' => out.push_str("&#34;"),
                '\'' => out.push_str("&#39;"),
                _ => out.push(c),
            }
        }
        Ok(out)
    }

    /// Words start after spaces, dashes and opening brackets.
    fn titles(&self, text: &str) -> Result<Value> {
        self.spend_bytes(4 * text.len())?;
        let is_mark = |c: char| is_space(c) || "-({[<".contains(c);
        let (mut out, mut rest) = (String::new(), text);
        while let Some(first) = rest.chars().next() {
            let end = rest.find(|c: char| is_mark(c) != is_mark(first)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            let (first, tail) = word.split_at(characters(word).next().map_or(0, str::len));
            out.push_str(&first.to_uppercase());
            out.push_str(&tail.to_lowercase());
            rest = after;
        }
        Ok(Value::text(out))
    }

    fn indent(&self, text: &str, given: &Given) -> Result<Value> {
        let [width, first, blank] = given.bind("indent", ["width", "first", "blank"], 0)?;
        let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
        let (first, blank) = (is_true(first), is_true(blank));
        let indent: Arc<str> = match width {
            Some(Value::Text(text)) => text,
            width => {
                let width = usize::try_from(self.optional_whole("indent", width)?.unwrap_or(4)).unwrap_or(0);
                self.spend_bytes(width)?;
                " ".repeat(width).into()
            }
        };
        let ended = format!("{text}\n");
        let lines = lines(&ended);
        self.spend(lines.len() as u64)?;
        self.spend_bytes(text.len().saturating_add(lines.len().saturating_mul(indent.len())))?;
        let mut out = String::new();
        for (i, line) in lines.iter().enumerate() {
            if i > 0 {
                out.push('\n');
            }
            if if i == 0 { first } else { blank || !line.is_empty() } {
                out.push_str(&indent);
            }
            out.push_str(line);
        }
        Ok(Value::text(out))
    }

    fn int(&self, value: &Value, given: &Given) -> Result<Value> {
        let [default, base] = given.bind("int", ["default", "base"], 0)?;
        let base = self.optional_whole("int", base)?.unwrap_or(10);
        let default = || Ok(default.clone().unwrap_or(Value::Int(0)));
        match value {
            Value::Undefined(what) => fault(&**what),
            Value::Float(number) if !number.is_finite() => fault("cannot convert such a float to an integer"),
            Value::Float(number) if number.abs() >= MOST_EXACT as f64 => fault("a number is too large for this"),
            Value::Float(number) => Ok(Value::Int(number.trunc() as i64)),
            Value::Large(_) => Ok(value.clone()),
            Value::Text(text) => {
                self.spend_text(text)?;
                let text = &*uncut(text).collect::<String>();
                if base != 10 || !text.is_ascii() {
                    return fault("int of a text in another base, or that is not ASCII, is not supported");
                }
                if let Some(digits) = digits(text) {
                    return match digits.parse() {
                        Ok(number) => Ok(Value::Int(number)),
                        Err(_) => fault("a number has more than 64 bits"),
                    };
                }
                match real(text) {
                    Some(number) if number.abs() < MOST_EXACT as f64 => Ok(Value::Int(number.trunc() as i64)),
                    Some(number) if number.is_nan() => default(),
                    Some(_) => fault("a number is too large for this"),
                    None => default(),
                }
            }
            Value::Safe(_) => fault("int of a safe text is not supported"),
            _ => value.whole().map(Value::Int).map_or_else(default, Ok),
        }
    }

    fn float(&self, value: &Value, given: &Given) -> Result<Value> {
        let [default] = given.bind("float", ["default"], 0)?;
        let found = match value {
            Value::Undefined(what) => return fault(&**what),
            Value::Float(number) => Some(*number),
            Value::Large(_) => return fault("a number is too large for this"),
            Value::Text(text) => {
                self.spend_text(text)?;
                let text = uncut(text).collect::<String>();
                if !text.is_ascii() {
                    return fault("float of such a text is not supported");
                }
                real(&text)
            }
            Value::Safe(_) => return fault("float of such a text is not supported"),
            _ => match value.whole() {
                Some(whole) if whole.unsigned_abs() > MOST_EXACT => return fault("a number is too large for this"),
                whole => whole.map(|whole| whole as f64),
            },
        };
        Ok(found.map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
    }

    fn round(&self, value: &Value, given: &Given) -> Result<Value> {
        let [precision, method] = given.bind("round", ["precision", "method"], 0)?;
        let precision = self.optional_whole("round", precision)?.unwrap_or(0);
        let method = self.optional_text("round", method)?.unwrap_or_else(|| "common".into());
        let number = match value {
            Value::Undefined(what) => return fault(&**what),
            _ => value.number(),
        };
        let (Some(number), 0..=15) = (number, precision) else {
            return fault("round of such a value, or to such a precision, is not supported");
        };
        if value.whole().is_some_and(|whole| whole.unsigned_abs() > MOST_EXACT) || !number.is_finite() {
            return fault("round of such a number is not supported");
        }
        let factor = 10_f64.powi(precision as i32);
        Ok(match &*method {
            "common" => match value.whole() {
                Some(whole) => Value::Int(whole),
                None => {
                    let digits = format!("{number:.0$}", precision as usize);
                    Value::Float(digits.parse().unwrap_or(number))
                }
            },
            // Python's ceil and floor return an integer, which the division converts back to a float.
            "ceil" | "floor" if value.whole().is_some() => Value::Float(number),
            "ceil" => Value::Float((number * factor).ceil() / factor + 0.0),
            "floor" => Value::Float((number * factor).floor() / factor + 0.0),
            _ => return fault("method must be common, ceil or floor"),
        })
    }
}

/// The digits that Python's int() accepts, without surrounding characters.
fn digits(text: &str) -> Option<String> {
    let text = text.trim_matches(is_space);
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (if text.starts_with('-') { "-" } else { "" }, rest),
        None => ("", text),
    };
    let fine = digits.split('_').all(|part| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit()));
    fine.then(|| format!("{sign}{}", digits.replace('_', "")))
}

/// A number that Python's float() accepts.
fn real(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let bytes = text.as_bytes();
    let is_between_digits =
        |i: usize| i > 0 && bytes[i - 1].is_ascii_digit() && bytes.get(i + 1).is_some_and(u8::is_ascii_digit);
    if !text.bytes().enumerate().all(|(i, c)| c != b'_' || is_between_digits(i)) {
        return None;
    }
    text.replace('_', "").parse().ok()
}
