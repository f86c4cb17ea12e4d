//! Calls: functions, macros, and methods of lists and dicts.

use std::cell::Cell;
use std::rc::Rc;

use indexmap::IndexMap;

use super::arguments::Given;
use super::render::Render;
use super::streams::Source;
use super::value::{deeper, Cycler, Dict, Function, Key, Range, Value, View};
use super::{fault, words, Result};

const MOST_RANGE: i64 = 100_000; // the limit of jinja2's sandbox

const LIST: [&str; 3] = ["copy", "count", "index"];
const TUPLE: [&str; 2] = ["count", "index"];
const DICT: [&str; 5] = ["copy", "get", "items", "keys", "values"];

/// Whether a value has a method that a template may call.
pub fn is_method(value: &Value, name: &str) -> bool {
    match value {
        Value::Text(_) => words::NAMES.contains(&name),
        Value::List(_) => LIST.contains(&name),
        Value::Tuple(_) => TUPLE.contains(&name),
        Value::Dict(_) => DICT.contains(&name),
        Value::Cycler(_) => matches!(name, "next" | "reset"),
        _ => false,
    }
}

/// Whether Python has an attribute of this name that templates must not access.
pub fn is_refused(value: &Value, name: &str) -> bool {
    match value {
        Value::Text(_) => words::REFUSED.contains(&name),
        Value::Safe(_) => words::NAMES.contains(&name) || words::REFUSED.contains(&name) || name == "unescape",
        Value::List(_) => {
            matches!(name, "append" | "clear" | "extend" | "insert" | "pop" | "remove" | "reverse" | "sort")
        }
        Value::Dict(_) => matches!(name, "clear" | "fromkeys" | "pop" | "popitem" | "setdefault" | "update"),
        Value::Bool(_) | Value::Int(_) | Value::Large(_) => matches!(
            name,
            "as_integer_ratio"
                | "bit_count"
                | "bit_length"
                | "conjugate"
                | "denominator"
                | "from_bytes"
                | "imag"
                | "numerator"
                | "real"
                | "to_bytes"
        ),
        Value::Float(_) => {
            matches!(name, "as_integer_ratio" | "conjugate" | "fromhex" | "hex" | "imag" | "is_integer" | "real")
        }
        Value::Range(_) => matches!(name, "count" | "index" | "start" | "step" | "stop"),
        Value::View(..) => matches!(name, "isdisjoint" | "mapping"),
        Value::None | Value::Tuple(_) | Value::Namespace(_) | Value::Undefined(_) => false,
        Value::Loop(_) => name.starts_with('_'),
        Value::Stream(_) => matches!(name, "close" | "send" | "throw") || name.starts_with("gi_"),
        _ => true,
    }
}

impl Render {
    pub fn call(&self, function: &Value, given: Given) -> Result<Value> {
        self.spend(1)?;
        match function {
            Value::Function(function) => self.function(*function, given),
            Value::Macro(closure) => self.call_macro(closure, given),
            Value::Loop(state) => self.loop_again(state, &given),
            Value::Method(method) => self.method(&method.0, &method.1, &given),
            Value::Joiner(joiner) => {
                given.bind("joiner", [], 0)?;
                Ok(Value::text(if joiner.1.replace(true) { joiner.0.clone() } else { "".into() }))
            }
            Value::Undefined(what) => fault(&**what),
            _ => fault(format!("'{}' object is not callable", function.kind())),
        }
    }

    fn function(&self, function: Function, mut given: Given) -> Result<Value> {
        match function {
            Function::Range => self.range(&given),
            Function::Dict => Ok(Value::Dict(Dict::new(self.dict_of(given)?)?)),
            Function::Namespace => {
                let mut fields = IndexMap::new();
                for (name, value) in self.dict_of(given)?.into_values() {
                    let Value::Text(name) = name else { return fault("a namespace has attributes with names") };
                    fields.insert(name, value);
                }
                self.namespace(fields)
            }
            Function::Cycler => {
                if given.positional.is_empty() || !given.named.is_empty() {
                    return fault("a cycler needs items, and nothing else");
                }
                let items = std::mem::take(&mut given.positional);
                let depth = deeper(items.iter())?;
                Ok(Value::Cycler(Rc::new(Cycler { items, at: Cell::new(0), depth })))
            }
            Function::Joiner => match given.bind("joiner", ["sep"], 0)? {
                [None] => Ok(Value::Joiner(Rc::new((", ".into(), Cell::new(false))))),
                [Some(Value::Text(text))] => Ok(Value::Joiner(Rc::new((text, Cell::new(false))))),
                _ => fault("a joiner needs a text"),
            },
            Function::RaiseException => match given.bind("raise_exception", ["message"], 1)? {
                [Some(message)] => fault(&*self.text_of(&message)?),
                _ => fault("raise_exception"),
            },
            Function::StrftimeNow => match given.bind("strftime_now", ["format"], 1)? {
                [Some(Value::Text(form))] => super::dates::now(&form).map(Value::text),
                _ => fault("strftime_now needs a text"),
            },
        }
    }

    fn range(&self, given: &Given) -> Result<Value> {
        let [first, second, step] = given.bind("range", ["start", "stop", "step"], 1)?;
        if !given.named.is_empty() {
            return fault("range() takes no keyword arguments");
        }
        let whole = |value: Option<Value>, default: i64| match value {
            None => Ok(default),
            Some(Value::Undefined(what)) => fault(&*what),
            Some(value) => match value.whole() {
                Some(whole) => Ok(whole),
                None => fault(format!("'{}' object cannot be interpreted as an integer", value.kind())),
            },
        };
        let (start, stop) = match second {
            None => (0, whole(first, 0)?),
            second => (whole(first, 0)?, whole(second, 0)?),
        };
        let step = whole(step, 1)?;
        if step == 0 {
            return fault("range() arg 3 must not be zero");
        }
        let (start, stop, step) = (i128::from(start), i128::from(stop), i128::from(step));
        let length = if step > 0 { (stop - start + step - 1) / step } else { (start - stop - step - 1) / -step };
        if length > i128::from(MOST_RANGE) {
            return fault(format!("a range is longer than {MOST_RANGE}"));
        }
        let (start, stop, step, length) = (start as i64, stop as i64, step as i64, length.max(0) as i64);
        if start.checked_add(step.saturating_mul(length)).is_none() {
            return fault("a number has more than 64 bits");
        }
        Ok(Value::Range(Rc::new(Range { start, stop, step, length })))
    }

    /// dict(items, **named)
    fn dict_of(&self, given: Given) -> Result<IndexMap<Key, (Value, Value)>> {
        let mut found = IndexMap::new();
        match given.positional.as_slice() {
            [] => (),
            [Value::Dict(dict)] => {
                self.spend(dict.items.len() as u64)?;
                found = dict.items.clone();
            }
            [Value::Undefined(what)] => return fault(&**what),
            [pairs] => {
                for pair in self.collect(pairs)? {
                    match self.collect(&pair)?.as_slice() {
                        [name, value] => self.put(&mut found, name.clone(), value.clone())?,
                        _ => return fault("a dict is made of pairs"),
                    }
                }
            }
            _ => return fault("dict takes at most 1 argument"),
        }
        for (name, value) in given.named {
            self.put(&mut found, Value::Text(name), value)?;
        }
        Ok(found)
    }

    fn method(&self, value: &Value, name: &str, given: &Given) -> Result<Value> {
        let unnamed =
            || if given.named.is_empty() { Ok(()) } else { fault(format!("{name} takes no named arguments")) };
        match value {
            Value::Text(text) => self.word(text, name, given),
            Value::Loop(state) => self.loop_method(state, name, given),
            Value::Cycler(cycler) => {
                given.bind(name, [], 0)?;
                let at = cycler.at.get();
                let next = name == "next";
                cycler.at.set(if next { (at + 1) % cycler.items.len() } else { 0 });
                Ok(if next { cycler.items[at].clone() } else { Value::None })
            }
            Value::Dict(dict) => {
                unnamed()?;
                match name {
                    "get" => {
                        let [wanted, default] = given.bind("get", ["key", "default"], 1)?;
                        let found = dict.items.get(&self.key(&wanted.unwrap_or(Value::None))?);
                        Ok(found.map(|(_, value)| value.clone()).or(default).unwrap_or(Value::None))
                    }
                    _ => {
                        given.bind(name, [], 0)?;
                        Ok(match name {
                            "keys" => Value::View(dict.clone(), View::Keys),
                            "values" => Value::View(dict.clone(), View::Values),
                            "items" => Value::View(dict.clone(), View::Items),
                            _ => Value::Dict(dict.clone()), // a copy, since neither may change
                        })
                    }
                }
            }
            Value::List(list) | Value::Tuple(list) => {
                unnamed()?;
                if name == "copy" {
                    given.bind(name, [], 0)?;
                    return Ok(value.clone());
                }
                let [wanted] = given.bind(name, ["value"], 1)?;
                let wanted = wanted.unwrap_or(Value::None);
                let mut count = 0;
                let mut items = Source::List(list.clone(), 0);
                let mut at = 0;
                while let Some(item) = self.next(&mut items)? {
                    if self.equal(&item, &wanted)? {
                        if name == "index" {
                            return Ok(Value::Int(at));
                        }
                        count += 1;
                    }
                    at += 1;
                }
                if name == "index" {
                    fault("the value is not in the list")
                } else {
                    Ok(Value::Int(count))
                }
            }
            _ => fault(format!("'{name}' of a {} is not for chat templates", value.kind())),
        }
    }
}
