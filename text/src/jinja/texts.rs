//! str(value) and repr(value).

use std::fmt::Write;
use std::sync::Arc;

use super::python::{float, write_repr};
use super::render::Render;
use super::value::Value;
use super::{fault, Result};

impl Render {
    /// str(value), which is also the output of a template for it.
    pub fn text_of(&self, value: &Value) -> Result<Arc<str>> {
        if let Value::Text(text) | Value::Safe(text) = value {
            return Ok(text.clone());
        }
        let mut out = String::new();
        self.write(value, &mut out)?;
        Ok(out.into())
    }

    pub fn write(&self, value: &Value, out: &mut String) -> Result<()> {
        match value {
            Value::Undefined(_) => Ok(()),
            Value::Text(text) | Value::Safe(text) => {
                self.spend_text(text)?;
                out.push_str(text);
                Ok(())
            }
            _ => self.write_repr(value, out),
        }
    }

    pub fn write_repr(&self, value: &Value, out: &mut String) -> Result<()> {
        self.spend(1)?;
        match value {
            Value::Undefined(_) => out.push_str("Undefined"),
            Value::None => out.push_str("None"),
            Value::Bool(value) => out.push_str(if *value { "True" } else { "False" }),
            Value::Int(value) => out.push_str(&value.to_string()),
            Value::Large(value) => out.push_str(&value.to_string()),
            Value::Float(value) => out.push_str(&float(*value)),
            Value::Text(text) => {
                self.spend_bytes(4 * text.len())?; // the maximum length of an escape
                write_repr(text, out);
            }
            Value::List(list) => self.write_items("[", list.items.iter(), "]", out)?,
            Value::Tuple(list) if list.items.len() == 1 => self.write_items("(", list.items.iter(), ",)", out)?,
            Value::Tuple(list) => self.write_items("(", list.items.iter(), ")", out)?,
            Value::Dict(dict) => {
                out.push('{');
                for (i, (name, value)) in dict.items.values().enumerate() {
                    out.push_str(if i > 0 { ", " } else { "" });
                    self.deeper(|| self.write_repr(name, out))?;
                    out.push_str(": ");
                    self.deeper(|| self.write_repr(value, out))?;
                }
                out.push('}');
            }
            Value::View(dict, view) => {
                let items: Vec<Value> =
                    dict.items.values().map(|(name, value)| Value::view_item(name, value, *view)).collect();
                self.spend(items.len() as u64)?;
                out.push_str(value.kind());
                self.write_items("([", items.iter(), "])", out)?;
            }
            Value::Range(range) => {
                let _ = write!(out, "range({}, {}", range.start, range.stop);
                let _ = if range.step == 1 { write!(out, ")") } else { write!(out, ", {})", range.step) };
            }
            _ => return fault(format!("a {} cannot be written", value.kind())),
        }
        Ok(())
    }

    fn write_items<'a>(
        &self,
        begin: &str,
        items: impl Iterator<Item = &'a Value>,
        end: &str,
        out: &mut String,
    ) -> Result<()> {
        out.push_str(begin);
        for (i, item) in items.enumerate() {
            out.push_str(if i > 0 { ", " } else { "" });
            self.deeper(|| self.write_repr(item, out))?;
        }
        out.push_str(end);
        Ok(())
    }
}
