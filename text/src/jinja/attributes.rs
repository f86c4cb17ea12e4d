//! `value.name`, `value[item]` and `value[from:to:step]`.

use std::ops::Range;
use std::rc::Rc;

use super::methods::{is_method, is_refused};
use super::render::Render;
use super::value::{List, Value};
use super::{fault, Result};
use crate::control_tokens::{characters, uncut, Parts, CUT};

impl Render {
    /// getattr in the sandbox; None if there is no such attribute.
    fn attribute_alone(&self, value: &Value, name: &str) -> Result<Option<Value>> {
        self.spend(1 + name.len() as u64 / 64)?;
        if name.starts_with("__") {
            return fault(format!("access to attribute '{name}' is not safe"));
        }
        match value {
            Value::Undefined(what) => return fault(&**what),
            Value::Namespace(namespace) => return Ok(namespace.fields.borrow().get(name).cloned()),
            Value::Loop(state) => return self.loop_attribute(value, state, name),
            Value::Tuple(group) if group.is_group && name == "grouper" => return Ok(group.items.first().cloned()),
            Value::Tuple(group) if group.is_group && name == "list" => return Ok(group.items.get(1).cloned()),
            Value::Cycler(cycler) if name == "current" => return Ok(Some(cycler.items[cycler.at.get()].clone())),
            _ => (),
        }
        if is_method(value, name) {
            return Ok(Some(Value::Method(Rc::new((value.clone(), name.into())))));
        }
        if is_refused(value, name) {
            return fault(format!("'{name}' of a {} is not for chat templates", value.kind()));
        }
        Ok(None)
    }

    pub fn attribute(&self, value: &Value, name: &str) -> Result<Value> {
        if let Some(found) = self.attribute_alone(value, name)? {
            return Ok(found);
        }
        let found = match value {
            Value::Dict(dict) => dict.get(name).cloned(),
            _ => None,
        };
        Ok(found.unwrap_or_else(|| nothing(value, name)))
    }

    /// The filter `attr`.
    pub fn only_attribute(&self, value: &Value, name: &str) -> Result<Value> {
        Ok(self.attribute_alone(value, name)?.unwrap_or_else(|| nothing(value, name)))
    }

    pub fn item(&self, value: &Value, item: &Value) -> Result<Value> {
        self.spend(1)?;
        let found = match (value, item) {
            (Value::Undefined(what), _) => return fault(&**what),
            (Value::Dict(dict), _) => match item {
                Value::List(_) | Value::Dict(_) => None, // unhashable
                _ => dict.items.get(&self.key(item)?).map(|(_, value)| value.clone()),
            },
            (Value::Text(text), _) if item.whole().is_some() => {
                self.spend_text(text)?;
                let place = at(item.whole().unwrap_or(0), uncut(text).count() as i64);
                place.map(|i| Value::text(Parts::of(text).part(bytes(text, i, 1))))
            }
            (Value::List(list) | Value::Tuple(list), _) if item.whole().is_some() => {
                at(item.whole().unwrap_or(0), list.items.len() as i64).map(|i| list.items[i as usize].clone())
            }
            (Value::Range(range), _) if item.whole().is_some() => {
                at(item.whole().unwrap_or(0), range.length).map(|i| range.at(i))
            }
            (Value::Safe(_), _) => return fault("an item of a safe text is not supported"),
            _ => None,
        };
        match (found, item) {
            (Some(found), _) => Ok(found),
            (None, Value::Text(name)) => self.only_attribute(value, name),
            (None, Value::Safe(_)) => fault("a safe text as the name of an item is not supported"),
            (None, _) => Ok(Value::undefined(format!("{} object has no such element", value.kind()))),
        }
    }

    pub fn slice(&self, value: &Value, parts: [Value; 3]) -> Result<Value> {
        let length = match value {
            Value::Text(text) => {
                self.spend_text(text)?;
                uncut(text).count()
            }
            Value::List(list) | Value::Tuple(list) => list.items.len(),
            Value::Undefined(what) => return fault(&**what),
            _ => return fault(format!("a slice of a {} is not supported", value.kind())),
        } as i64;
        let indices = indices(&parts, length)?;
        self.spend(1 + indices.2 as u64 / if matches!(value, Value::Text(_)) { 16 } else { 1 })?;
        let (start, step, count) = indices;
        let places = (0..count).map(|i| start + step * i);
        Ok(match value {
            Value::Text(text) if step == 1 => Value::text(Parts::of(text).part(bytes(text, start, count))),
            Value::Text(text) => {
                self.spend_bytes(16 * text.len())?;
                let characters: Vec<&str> = characters(text).collect();
                let edge = if text.contains(CUT) { CUT.to_string() } else { String::new() };
                let part: String = places.map(|i| characters[i as usize]).collect();
                Value::text(if part.is_empty() { part } else { [edge.as_str(), &part, &edge].concat() })
            }
            Value::List(list) => Value::List(List::new(places.map(|i| list.items[i as usize].clone()).collect())?),
            Value::Tuple(list) => Value::Tuple(List::new(places.map(|i| list.items[i as usize].clone()).collect())?),
            _ => Value::None,
        })
    }
}

/// The bytes of `count` characters from `start` on.
fn bytes(text: &str, start: i64, count: i64) -> Range<usize> {
    let mut lengths = characters(text).map(str::len);
    let first = lengths.by_ref().take(start as usize).sum::<usize>();
    first..first + lengths.take(count as usize).sum::<usize>()
}

fn nothing(value: &Value, name: &str) -> Value {
    let name: String = name.chars().take(100).collect();
    Value::undefined(format!("'{} object' has no attribute '{name}'", value.kind()))
}

fn at(index: i64, length: i64) -> Option<i64> {
    let index = if index < 0 { index.checked_add(length)? } else { index };
    (0..length).contains(&index).then_some(index)
}

/// slice.indices: the start, the step, and the number of items.
fn indices(parts: &[Value; 3], length: i64) -> Result<(i64, i64, i64)> {
    let part = |value: &Value| match value {
        Value::None => Ok(None),
        Value::Undefined(what) => fault(&**what),
        _ => match value.whole() {
            Some(whole) => Ok(Some(whole)),
            None => fault("slice indices must be integers or None"),
        },
    };
    let step = part(&parts[2])?.unwrap_or(1).clamp(-(1 << 40), 1 << 40);
    if step == 0 {
        return fault("slice step cannot be zero");
    }
    let (least, most) = if step < 0 { (-1, length - 1) } else { (0, length) };
    let place = |value: Option<i64>, default: i64| match value {
        None => default,
        Some(index) if index < 0 => index.saturating_add(length).clamp(least, most),
        Some(index) => index.clamp(least, most),
    };
    let start = place(part(&parts[0])?, if step < 0 { most } else { least });
    let stop = place(part(&parts[1])?, if step < 0 { least } else { most });
    let count = if step < 0 { (start - stop - step - 1) / -step } else { (stop - start + step - 1) / step };
    Ok((start, step, count.max(0)))
}
