//! Python's values that can occur in a chat template.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use indexmap::IndexMap;

use super::ast::{Macro, Name};
use super::loops::Loop;
use super::scope::Scope;
use super::streams::Stream;
use super::{fault, Result};
use crate::control_tokens::CUT;

/// Limit for lists in lists, since functions over them are recursive.
pub const MOST_DEPTH: usize = 100;

#[derive(Clone)]
pub enum Value {
    Undefined(Arc<str>), // the error message if it is used
    None,
    Bool(bool),
    Int(i64),
    Large(u64), // an integer of JSON beyond i64: it can be written, but not be computed with
    Float(f64),
    Text(Arc<str>),
    Safe(Arc<str>), // jinja2's Markup
    List(Rc<List>),
    Tuple(Rc<List>),
    Dict(Rc<Dict>),
    View(Rc<Dict>, View),
    Range(Rc<Range>),
    Stream(Rc<Stream>), // Python's generators: read once
    Namespace(Rc<Namespace>),
    Macro(Rc<Closure>),
    Loop(Rc<Loop>),
    Method(Rc<(Value, Name)>),
    Function(Function),
    Cycler(Rc<Cycler>),
    Joiner(Rc<(Arc<str>, Cell<bool>)>),
}

#[derive(Clone, Copy, PartialEq)]
pub enum View {
    Keys,
    Values,
    Items,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Function {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    RaiseException,
    StrftimeNow,
}

pub struct List {
    pub items: Vec<Value>,
    pub depth: usize,
    pub is_group: bool, // an item of groupby, whose two items have the names `grouper` and `list`
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Key {
    Undefined,
    None,
    Int(i64), // also for booleans and integral floats, which are equal in Python
    Float(u64),
    Text(Arc<str>),
    Tuple(Vec<Key>),
}

impl Key {
    /// A name is the same with and without cuts.
    pub fn text(text: &Arc<str>) -> Key {
        Key::Text(if text.contains(CUT) { text.replace(CUT, "").into() } else { text.clone() })
    }
}

#[derive(Default)]
pub struct Dict {
    pub items: IndexMap<Key, (Value, Value)>,
    pub depth: usize,
}

pub struct Range {
    pub start: i64,
    pub stop: i64,
    pub step: i64,
    pub length: i64,
}

impl Range {
    pub fn at(&self, index: i64) -> Value {
        Value::Int(self.start + self.step * index)
    }
}

pub struct Namespace {
    pub fields: RefCell<IndexMap<Arc<str>, Value>>,
}

pub struct Closure {
    pub code: Arc<Macro>,
    pub scope: Rc<Scope>,
}

pub struct Cycler {
    pub items: Vec<Value>,
    pub at: Cell<usize>,
    pub depth: usize,
}

impl Value {
    pub fn text(text: impl Into<Arc<str>>) -> Value {
        Value::Text(text.into())
    }

    pub fn list(items: Vec<Value>) -> Result<Value> {
        List::new(items).map(Value::List)
    }

    /// A dict with distinct names.
    pub fn dict(fields: Vec<(Arc<str>, Value)>) -> Result<Value> {
        let item = |(name, value): (Arc<str>, Value)| (Key::text(&name), (Value::Text(name), value));
        Dict::new(fields.into_iter().map(item).collect()).map(Value::Dict)
    }

    pub fn undefined(what: impl Into<Arc<str>>) -> Value {
        Value::Undefined(what.into())
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    /// type(value).__name__
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::Large(_) => "int",
            Value::Float(_) => "float",
            Value::Text(_) => "str",
            Value::Safe(_) => "Markup",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::View(_, View::Keys) => "dict_keys",
            Value::View(_, View::Values) => "dict_values",
            Value::View(_, View::Items) => "dict_items",
            Value::Range(_) => "range",
            Value::Stream(_) => "generator",
            Value::Namespace(_) => "Namespace",
            Value::Macro(_) => "Macro",
            Value::Loop(_) => "LoopContext",
            Value::Method(_) => "builtin_function_or_method",
            Value::Function(_) => "function",
            Value::Cycler(_) => "Cycler",
            Value::Joiner(_) => "Joiner",
        }
    }

    pub fn depth(&self) -> usize {
        match self {
            Value::List(list) | Value::Tuple(list) => list.depth,
            Value::Dict(dict) | Value::View(dict, _) => dict.depth,
            Value::Stream(stream) => stream.depth,
            Value::Loop(state) => state.depth,
            Value::Method(method) => method.0.depth() + 1,
            Value::Cycler(cycler) => cycler.depth,
            _ => 0,
        }
    }

    pub fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Text(text) | Value::Safe(text) => !text.is_empty(),
            Value::List(list) | Value::Tuple(list) => !list.items.is_empty(),
            Value::Dict(dict) | Value::View(dict, _) => !dict.items.is_empty(),
            Value::Range(range) => range.length > 0,
            _ => true,
        }
    }

    /// A number that Python's arithmetic treats as an integer.
    pub fn whole(&self) -> Option<i64> {
        match self {
            Value::Bool(value) => Some(i64::from(*value)),
            Value::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub fn number(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            _ => self.whole().map(|value| value as f64),
        }
    }

    pub fn view_item(name: &Value, value: &Value, view: View) -> Value {
        match view {
            View::Keys => name.clone(),
            View::Values => value.clone(),
            View::Items => Value::Tuple(Rc::new(List {
                items: vec![name.clone(), value.clone()],
                depth: 1 + name.depth().max(value.depth()),
                is_group: false,
            })),
        }
    }
}

impl List {
    pub fn new(items: Vec<Value>) -> Result<Rc<List>> {
        let depth = deeper(items.iter())?;
        Ok(Rc::new(List { items, depth, is_group: false }))
    }
}

impl Dict {
    pub fn new(items: IndexMap<Key, (Value, Value)>) -> Result<Rc<Dict>> {
        let depth = deeper(items.values().flat_map(|(name, value)| [name, value]))?;
        Ok(Rc::new(Dict { items, depth }))
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.items.get(&Key::Text(name.into())).map(|(_, value)| value)
    }
}

pub fn deeper<'a>(values: impl Iterator<Item = &'a Value>) -> Result<usize> {
    let depth = 1 + values.map(Value::depth).max().unwrap_or(0);
    if depth > MOST_DEPTH {
        return fault(format!("a value is nested deeper than {MOST_DEPTH}"));
    }
    Ok(depth)
}
