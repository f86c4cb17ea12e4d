//! `loop`, the special variable of a loop.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::arguments::Given;
use super::ast::For;
use super::render::Render;
use super::scope::Scope;
use super::streams::Source;
use super::value::Value;
use super::{fault, Result};

pub struct Loop {
    pub code: Arc<For>,
    pub scope: Rc<Scope>, // the enclosing scope
    pub depth: usize,     // of the iterated value
    level: usize,         // of recursive loops
    source: RefCell<Source>,
    index: Cell<i64>, // of the current item, from 0
    previous: RefCell<Option<Value>>,
    current: RefCell<Option<Value>>,
    peeked: RefCell<Option<Option<Value>>>,
    length: Cell<Option<i64>>,
    is_tested: Cell<bool>, // whether all remaining items have passed the loop's filter
    changed: RefCell<Option<Vec<Value>>>,
}

impl Loop {
    pub fn new(code: &Arc<For>, scope: &Rc<Scope>, items: &Value, source: Source, level: usize) -> Loop {
        let is_sized = code.test.is_none() && !matches!(items, Value::Stream(_));
        let length = match items {
            _ if !is_sized => None,
            Value::List(list) | Value::Tuple(list) => Some(list.items.len() as i64),
            Value::Dict(dict) | Value::View(dict, _) => Some(dict.items.len() as i64),
            Value::Range(range) => Some(range.length),
            Value::Undefined(_) => Some(0),
            _ => None,
        };
        Loop {
            code: code.clone(),
            scope: scope.clone(),
            depth: items.depth(),
            level,
            source: RefCell::new(source),
            index: Cell::new(-1),
            previous: RefCell::default(),
            current: RefCell::default(),
            peeked: RefCell::default(),
            length: Cell::new(length),
            is_tested: Cell::default(),
            changed: RefCell::default(),
        }
    }
}

impl Render {
    /// The next item that passes the loop's filter.
    fn next_passing(&self, state: &Loop) -> Result<Option<Value>> {
        let Ok(mut source) = state.source.try_borrow_mut() else {
            return fault("generator already executing");
        };
        loop {
            let Some(item) = self.next(&mut source)? else { return Ok(None) };
            let test = match &state.code.test {
                Some(test) if !state.is_tested.get() => test,
                _ => return Ok(Some(item)),
            };
            let scope = Scope::inside(&state.scope, &[]);
            self.assign(&state.code.target, item.clone(), &scope)?;
            if self.eval(test, &scope)?.is_true() {
                return Ok(Some(item));
            }
        }
    }

    fn peek(&self, state: &Loop) -> Result<Option<Value>> {
        if let Some(peeked) = &*state.peeked.borrow() {
            return Ok(peeked.clone());
        }
        let next = self.next_passing(state)?;
        *state.peeked.borrow_mut() = Some(next.clone());
        Ok(next)
    }

    pub fn step(&self, state: &Loop) -> Result<Option<Value>> {
        let peeked = state.peeked.take();
        let next = match peeked {
            Some(peeked) => peeked,
            None => self.next_passing(state)?,
        };
        if let Some(item) = &next {
            state.index.set(state.index.get() + 1);
            let before = state.current.replace(Some(item.clone()));
            state.previous.replace(before);
        }
        Ok(next)
    }

    fn length_of(&self, state: &Loop) -> Result<i64> {
        if let Some(length) = state.length.get() {
            return Ok(length);
        }
        let mut rest: Vec<Value> = self.peek(state)?.into_iter().collect();
        state.peeked.take();
        while let Some(item) = self.next_passing(state)? {
            rest.push(item);
        }
        let length = state.index.get() + 1 + rest.len() as i64;
        let mut rest = rest.into_iter();
        *state.peeked.borrow_mut() = Some(rest.next());
        *state.source.borrow_mut() = Source::Owned(rest);
        state.is_tested.set(true);
        state.length.set(Some(length));
        Ok(length)
    }

    pub fn loop_attribute(&self, value: &Value, state: &Rc<Loop>, name: &str) -> Result<Option<Value>> {
        let index = state.index.get();
        Ok(Some(match name {
            "index" => Value::Int(index + 1),
            "index0" => Value::Int(index),
            "revindex" => Value::Int(self.length_of(state)? - index),
            "revindex0" => Value::Int(self.length_of(state)? - index - 1),
            "length" => Value::Int(self.length_of(state)?),
            "first" => Value::Bool(index == 0),
            "last" => Value::Bool(self.peek(state)?.is_none()),
            "depth" => Value::Int(state.level as i64 + 1),
            "depth0" => Value::Int(state.level as i64),
            "previtem" if index == 0 => Value::undefined("there is no previous item"),
            "previtem" => state.previous.borrow().clone().unwrap_or(Value::None),
            "nextitem" => self.peek(state)?.unwrap_or_else(|| Value::undefined("there is no next item")),
            "cycle" | "changed" => Value::Method(Rc::new((value.clone(), name.into()))),
            _ => return Ok(None),
        }))
    }

    pub fn loop_method(&self, state: &Loop, name: &str, given: &Given) -> Result<Value> {
        if !given.named.is_empty() {
            return fault(format!("loop.{name} takes no named arguments"));
        }
        let items = &given.positional;
        if name == "cycle" {
            if items.is_empty() {
                return fault("no items for cycling given");
            }
            return Ok(items[state.index.get() as usize % items.len()].clone());
        }
        let is_same = match &*state.changed.borrow() {
            Some(before) => self.all_equal(before, items)?,
            None => false,
        };
        if !is_same {
            *state.changed.borrow_mut() = Some(items.clone());
        }
        Ok(Value::Bool(!is_same))
    }

    /// `loop(items)` in a recursive loop.
    pub fn loop_again(&self, state: &Loop, given: &Given) -> Result<Value> {
        if !state.code.recursive {
            return fault("the loop must have the 'recursive' marker to be called");
        }
        if state.scope.is_over() {
            return fault("a call of a loop after the block around it is not supported");
        }
        let [items] = given.bind("loop", ["iterable"], 1)?;
        let mut out = String::new();
        let items = items.unwrap_or(Value::None);
        self.deeper(|| self.run_loop(&state.code, &items, &state.scope, state.level + 1, &mut out))?;
        Ok(Value::text(out))
    }
}
