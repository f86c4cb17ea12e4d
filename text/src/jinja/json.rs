//! tojson: json.dumps with the arguments that transformers allows.

use super::arguments::Given;
use super::python::float;
use super::render::Render;
use super::value::Value;
use super::{fault, Result};
use crate::control_tokens::CUT;

struct Form {
    is_ascii: bool,
    indent: Option<String>,
    between: String,
    after_name: String,
    is_sorted: bool,
}

impl Render {
    pub fn json(&self, value: &Value, given: &Given) -> Result<Value> {
        let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
        let [is_ascii, indent, separators, is_sorted] = given.bind("tojson", names, 0)?;
        let indent = match indent {
            None | Some(Value::None) => None,
            Some(Value::Text(text)) => Some(text.to_string()),
            Some(value) => match value.whole() {
                Some(width) => {
                    let width = usize::try_from(width).unwrap_or(0);
                    self.spend_bytes(width)?;
                    Some(" ".repeat(width))
                }
                None => return fault("tojson: the indent is a whole number or a text"),
            },
        };
        let (between, after_name) = match separators {
            None | Some(Value::None) => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
            Some(Value::List(pair) | Value::Tuple(pair)) => match pair.items.as_slice() {
                [Value::Text(between), Value::Text(after_name)] => (between.to_string(), after_name.to_string()),
                _ => return fault("tojson: separators are two texts"),
            },
            Some(_) => return fault("tojson: separators are two texts"),
        };
        let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
        let form = Form { is_ascii: is_true(is_ascii), indent, between, after_name, is_sorted: is_true(is_sorted) };
        let mut out = String::new();
        self.write_json(value, &form, 0, &mut out)?;
        Ok(Value::text(out))
    }

    fn write_json(&self, value: &Value, form: &Form, depth: usize, out: &mut String) -> Result<()> {
        self.spend(1)?;
        match value {
            Value::None => out.push_str("null"),
            Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Value::Int(value) => out.push_str(&value.to_string()),
            Value::Large(value) => out.push_str(&value.to_string()),
            Value::Float(value) => out.push_str(&match value {
                value if value.is_nan() => "NaN".to_owned(),
                value if value.is_infinite() => if *value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
                value => float(*value),
            }),
            Value::Text(text) | Value::Safe(text) => self.write_json_text(text, form, out)?,
            Value::List(list) | Value::Tuple(list) => {
                out.push('[');
                for (i, item) in list.items.iter().enumerate() {
                    self.before_item(i, form, depth, out)?;
                    self.deeper(|| self.write_json(item, form, depth + 1, out))?;
                }
                self.after_items(list.items.len(), form, depth, out)?;
                out.push(']');
            }
            Value::Dict(dict) => {
                out.push('{');
                let mut items: Vec<&(Value, Value)> = dict.items.values().collect();
                if form.is_sorted {
                    items = self.sorted(items, false, &|a, b| Ok(self.compare(&a.0, &b.0, "<")?.is_lt()))?;
                }
                for (i, (name, value)) in items.into_iter().enumerate() {
                    self.before_item(i, form, depth, out)?;
                    match name {
                        Value::Text(name) => self.write_json_text(name, form, out)?,
                        Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                            out.push('"');
                            self.write_json(name, form, depth, out)?;
                            out.push('"');
                        }
                        _ => return fault(format!("keys must be str, int, float, bool or None, not {}", name.kind())),
                    }
                    self.spend_text(&form.after_name)?;
                    out.push_str(&form.after_name);
                    self.deeper(|| self.write_json(value, form, depth + 1, out))?;
                }
                self.after_items(dict.items.len(), form, depth, out)?;
                out.push('}');
            }
            _ => return fault(format!("Object of type {} is not JSON serializable", value.kind())),
        }
        Ok(())
    }

    fn before_item(&self, i: usize, form: &Form, depth: usize, out: &mut String) -> Result<()> {
        if i > 0 {
            self.spend_text(&form.between)?;
            out.push_str(&form.between);
        }
        self.new_line(form, depth + 1, out)
    }

    fn after_items(&self, count: usize, form: &Form, depth: usize, out: &mut String) -> Result<()> {
        if count > 0 {
            self.new_line(form, depth, out)
        } else {
            Ok(())
        }
    }

    fn new_line(&self, form: &Form, depth: usize, out: &mut String) -> Result<()> {
        if let Some(indent) = &form.indent {
            self.spend_bytes(indent.len().saturating_mul(depth))?;
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
        Ok(())
    }

    fn write_json_text(&self, text: &str, form: &Form, out: &mut String) -> Result<()> {
        self.spend_bytes(6 * text.len())?; // the maximum length of an escape
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                CUT => out.push(c), // for the tokenizer and not for the model
                _ if c < ' ' || (form.is_ascii && c > '~') => {
                    let mut halves = [0; 2];
                    let halves = c.encode_utf16(&mut halves);
                    halves.iter().for_each(|half| out.push_str(&format!("\\u{half:04x}")));
                }
                _ => out.push(c),
            }
        }
        out.push('"');
        Ok(())
    }
}
