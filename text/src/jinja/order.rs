//! Equality, ordering and dict keys.
//!
//! The cuts in a text are for the tokenizer: values that differ in cuts are equal.

use std::cmp::Ordering;
use std::rc::Rc;

use super::render::Render;
use super::streams::Source;
use super::value::{Key, List, Value, View};
use super::{fault, Result};
use crate::control_tokens::{uncut, CUT};

/// Above this, not every integer can be represented as a float.
pub const MOST_EXACT: u64 = 1 << 53;

impl Render {
    pub fn equal(&self, a: &Value, b: &Value) -> Result<bool> {
        self.spend(1)?;
        if let (Some(a), Some(b)) = (a.whole(), b.whole()) {
            return Ok(a == b);
        }
        if a.number().is_some() && b.number().is_some() {
            return Ok(numbers(a, b)? == Ordering::Equal);
        }
        Ok(match (a, b) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Text(a) | Value::Safe(a), Value::Text(b) | Value::Safe(b)) => {
                self.spend_bytes(a.len().min(b.len()))?;
                uncut(a).eq(uncut(b))
            }
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                self.deeper(|| self.all_equal(&a.items, &b.items))?
            }
            (Value::Dict(a), Value::Dict(b)) => {
                if a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (key, (_, value)) in &a.items {
                    self.spend(1)?;
                    match b.items.get(key) {
                        Some((_, other)) if self.deeper(|| self.equal(value, other))? => (),
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Range(a), Value::Range(b)) => {
                a.length == b.length && (a.length == 0 || (a.start == b.start && (a.length == 1 || a.step == b.step)))
            }
            (Value::Large(a), Value::Large(b)) => a == b,
            (Value::Large(_), Value::Float(_)) | (Value::Float(_), Value::Large(_)) => {
                return fault("a comparison of such numbers is not supported")
            }
            (Value::Function(a), Value::Function(b)) => a == b,
            (Value::Stream(a), Value::Stream(b)) => Rc::ptr_eq(a, b),
            (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
            (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
            (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
            (Value::View(..), Value::View(..)) | (Value::Method(_), Value::Method(_)) => {
                return fault(format!("a comparison of values of the kind {} is not supported", a.kind()))
            }
            _ => false,
        })
    }

    pub fn all_equal(&self, a: &[Value], b: &[Value]) -> Result<bool> {
        if a.len() != b.len() {
            return Ok(false);
        }
        for (a, b) in a.iter().zip(b) {
            if !self.equal(a, b)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub fn compare(&self, a: &Value, b: &Value, sign: &str) -> Result<Ordering> {
        self.spend(1)?;
        if a.number().is_some() && b.number().is_some() {
            return numbers(a, b);
        }
        match (a, b) {
            (Value::Undefined(what), _) | (_, Value::Undefined(what)) => fault(&**what),
            (Value::Text(a), Value::Text(b)) => {
                self.spend_bytes(a.len().min(b.len()))?;
                Ok(uncut(a).cmp(uncut(b)))
            }
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => self.deeper(|| {
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !self.equal(a, b)? {
                        return self.compare(a, b, sign);
                    }
                }
                Ok(a.items.len().cmp(&b.items.len()))
            }),
            _ => fault(format!("'{sign}' not supported between instances of '{}' and '{}'", a.kind(), b.kind())),
        }
    }

    pub fn contains(&self, whole: &Value, part: &Value) -> Result<bool> {
        match whole {
            Value::Text(text) => match part {
                Value::Text(part) => {
                    self.spend_bytes(text.len() + part.len())?;
                    Ok(text.contains(part.trim_matches(CUT)))
                }
                Value::Undefined(what) => fault(&**what),
                _ => fault(format!("'in <string>' requires string as left operand, not {}", part.kind())),
            },
            Value::Dict(dict) | Value::View(dict, View::Keys) => Ok(dict.items.contains_key(&self.key(part)?)),
            Value::Cycler(_) | Value::Joiner(_) | Value::Loop(_) => {
                fault(format!("'in' with a {} is not supported", whole.kind()))
            }
            _ => {
                let mut items: Source = match self.iterate(whole) {
                    Ok(items) => items,
                    Err(_) => return fault(format!("argument of type '{}' is not iterable", whole.kind())),
                };
                while let Some(item) = self.next(&mut items)? {
                    if self.equal(&item, part)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    /// The key under which a dict finds a value.
    pub fn key(&self, value: &Value) -> Result<Key> {
        self.spend(1)?;
        if let Some(whole) = value.whole() {
            return Ok(Key::Int(whole));
        }
        Ok(match value {
            Value::Undefined(_) => Key::Undefined,
            Value::None => Key::None,
            Value::Float(number) if number.fract() == 0.0 && number.abs() < MOST_EXACT as f64 => {
                Key::Int(*number as i64)
            }
            Value::Float(number) if number.is_finite() && number.abs() < MOST_EXACT as f64 => {
                Key::Float(number.to_bits())
            }
            Value::Text(text) => {
                self.spend_text(text)?;
                Key::text(text)
            }
            Value::Tuple(tuple) => self.deeper(|| self.tuple_key(tuple))?,
            Value::List(_) | Value::Dict(_) | Value::View(..) => {
                return fault(format!("unhashable type: '{}'", value.kind()))
            }
            _ => return fault(format!("a {} as the key of a dict is not supported", value.kind())),
        })
    }

    fn tuple_key(&self, tuple: &List) -> Result<Key> {
        Ok(Key::Tuple(tuple.items.iter().map(|item| self.key(item)).collect::<Result<_>>()?))
    }

    /// Stable sorting as in Python, also in reverse.
    pub fn sorted<T>(
        &self,
        mut items: Vec<T>,
        is_reverse: bool,
        less: &dyn Fn(&T, &T) -> Result<bool>,
    ) -> Result<Vec<T>> {
        if items.len() < 2 {
            return Ok(items);
        }
        self.spend(items.len() as u64)?;
        let right = self.sorted(items.split_off(items.len() / 2), is_reverse, less)?;
        let left = self.sorted(items, is_reverse, less)?;
        let mut merged = Vec::with_capacity(left.len() + right.len());
        let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            let takes_right = if is_reverse { less(a, b)? } else { less(b, a)? };
            merged.extend(if takes_right { right.next() } else { left.next() });
        }
        merged.extend(left);
        merged.extend(right);
        Ok(merged)
    }
}

fn numbers(a: &Value, b: &Value) -> Result<Ordering> {
    if let (Some(a), Some(b)) = (a.whole(), b.whole()) {
        return Ok(a.cmp(&b));
    }
    let is_exact = |value: &Value| value.whole().is_none_or(|whole| whole.unsigned_abs() <= MOST_EXACT);
    match (a.number(), b.number()) {
        (Some(x), Some(y)) if is_exact(a) && is_exact(b) => x.partial_cmp(&y),
        _ => None,
    }
    .map_or_else(|| fault("a comparison of such numbers is not supported"), Ok)
}
