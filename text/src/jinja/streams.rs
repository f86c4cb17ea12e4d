//! Iteration. Python's lazy filters run when their items are requested, and so do these.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::arguments::Given;
use super::render::Render;
use super::value::{Dict, List, Range, Value, View, MOST_DEPTH};
use super::{fault, Result};
use crate::control_tokens::characters;

pub struct Stream {
    source: RefCell<Source>,
    pub depth: usize,
}

pub enum Source {
    Empty,
    List(Rc<List>, usize),
    Owned(std::vec::IntoIter<Value>),
    Text(Arc<str>, usize),
    View(Rc<Dict>, View, usize),
    Range(Rc<Range>, i64),
    Backwards(Value, usize),
    Stream(Rc<Stream>),
    Map(Box<Source>, Getter),
    Filter(Box<Source>, Arc<str>, Given),
    Select { source: Box<Source>, attribute: Option<Getter>, test: Option<(Arc<str>, Given)>, negated: bool },
}

/// jinja2's make_attrgetter: parts separated by dots, applied in order.
#[derive(Clone)]
pub struct Getter {
    pub parts: Vec<Value>,
    pub default: Option<Value>,
}

impl Stream {
    pub fn value(source: Source, depth: usize) -> Result<Value> {
        if depth >= MOST_DEPTH {
            return fault(format!("a value is nested deeper than {MOST_DEPTH}"));
        }
        Ok(Value::Stream(Rc::new(Stream { source: RefCell::new(source), depth: depth + 1 })))
    }

    pub fn of(items: Vec<Value>) -> Result<Value> {
        let depth = items.iter().map(Value::depth).max().unwrap_or(0);
        Stream::value(Source::Owned(items.into_iter()), depth)
    }
}

impl Render {
    /// iter(value)
    pub fn iterate(&self, value: &Value) -> Result<Source> {
        Ok(match value {
            Value::Undefined(_) => Source::Empty,
            Value::List(list) | Value::Tuple(list) => Source::List(list.clone(), 0),
            Value::Text(text) => Source::Text(text.clone(), 0),
            Value::Dict(dict) => Source::View(dict.clone(), View::Keys, 0),
            Value::View(dict, view) => Source::View(dict.clone(), *view, 0),
            Value::Range(range) => Source::Range(range.clone(), 0),
            Value::Stream(stream) => Source::Stream(stream.clone()),
            Value::Loop(_) | Value::Safe(_) => {
                return fault(format!("a loop over a {} is not supported", value.kind()))
            }
            _ => return fault(format!("'{}' object is not iterable", value.kind())),
        })
    }

    pub fn next(&self, source: &mut Source) -> Result<Option<Value>> {
        self.spend(1)?;
        let item = match source {
            Source::Empty => None,
            Source::List(list, at) => {
                *at += 1;
                list.items.get(*at - 1).cloned()
            }
            Source::Owned(items) => items.next(),
            Source::Text(text, at) => {
                let next = characters(&text[*at..]).next();
                *at += next.map_or(0, str::len);
                next.map(Value::text)
            }
            Source::View(dict, view, at) => {
                *at += 1;
                dict.items.get_index(*at - 1).map(|(_, (name, value))| Value::view_item(name, value, *view))
            }
            Source::Range(range, at) => {
                *at += 1;
                (*at <= range.length).then(|| range.at(*at - 1))
            }
            Source::Backwards(value, left) => {
                *left = match *left {
                    0 => return Ok(None),
                    left => left - 1,
                };
                match value {
                    Value::List(list) | Value::Tuple(list) => list.items.get(*left).cloned(),
                    Value::Range(range) => Some(range.at(*left as i64)),
                    Value::Dict(dict) => dict.items.get_index(*left).map(|(_, (name, _))| name.clone()),
                    Value::View(dict, view) => {
                        dict.items.get_index(*left).map(|(_, (name, value))| Value::view_item(name, value, *view))
                    }
                    _ => None,
                }
            }
            Source::Stream(stream) => return self.next_of(stream),
            Source::Map(source, getter) => match self.next_deeper(source)? {
                Some(item) => Some(self.get(getter, &item)?),
                None => None,
            },
            Source::Filter(source, name, given) => match self.next_deeper(source)? {
                Some(item) => Some(self.filter(name, item, given)?),
                None => None,
            },
            Source::Select { source, attribute, test, negated } => loop {
                let Some(item) = self.next_deeper(source)? else { break None };
                self.spend(1)?;
                let tested = match attribute {
                    Some(getter) => self.get(getter, &item)?,
                    None => item.clone(),
                };
                let is_fine = match test {
                    Some((name, given)) => self.test(name, &tested, given)?,
                    None => tested.is_true(),
                };
                if is_fine != *negated {
                    break Some(item);
                }
            },
        };
        Ok(item)
    }

    fn next_deeper(&self, source: &mut Source) -> Result<Option<Value>> {
        self.deeper(|| self.next(source))
    }

    fn next_of(&self, stream: &Stream) -> Result<Option<Value>> {
        match stream.source.try_borrow_mut() {
            Ok(mut source) => self.deeper(|| self.next(&mut source)),
            Err(_) => fault("generator already executing"),
        }
    }

    pub fn collect(&self, value: &Value) -> Result<Vec<Value>> {
        self.rest(&mut self.iterate(value)?)
    }

    pub fn rest(&self, source: &mut Source) -> Result<Vec<Value>> {
        let mut found = Vec::new();
        while let Some(item) = self.next(source)? {
            found.push(item);
        }
        Ok(found)
    }

    pub fn get(&self, getter: &Getter, item: &Value) -> Result<Value> {
        let mut item = item.clone();
        for part in &getter.parts {
            item = self.item(&item, part)?;
            if let (true, Some(default)) = (item.is_undefined(), &getter.default) {
                item = default.clone();
            }
        }
        Ok(item)
    }

    /// The attribute argument of a filter: a number, or names and numbers separated by dots.
    pub fn getter(&self, attribute: Option<&Value>, default: Option<Value>) -> Result<Getter> {
        let default = default.filter(|value| !matches!(value, Value::None));
        let parts = match attribute {
            None | Some(Value::None) => Vec::new(),
            Some(Value::Text(text)) => {
                self.spend_text(text)?;
                let part = |part: &str| match part.parse() {
                    Ok(number) if part.bytes().all(|c| c.is_ascii_digit()) => Value::Int(number),
                    _ => Value::text(part),
                };
                text.split('.').map(part).collect()
            }
            Some(Value::Int(number)) => vec![Value::Int(*number)],
            Some(other) => return fault(format!("an attribute cannot be a {}", other.kind())),
        };
        Ok(Getter { parts, default })
    }
}
