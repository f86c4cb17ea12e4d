//! Evaluates the expressions of a running template, and counts the remaining work.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use indexmap::IndexMap;

use super::arguments::Given;
use super::ast::{Arguments, Body, Expr, Literal, Suffix};
use super::scope::{undefined, Scope};
use super::value::{Dict, Function, Key, List, Namespace, Value};
use super::{fault, Fault, Result};

pub struct Render {
    most_steps: u64,
    left: Cell<u64>,
    most_depth: usize,
    depth: Cell<usize>,
    kept: RefCell<Vec<Rc<Scope>>>, // scopes that may form cycles, cleared at the end
    namespaces: RefCell<Vec<Rc<Namespace>>>,
}

impl Render {
    pub fn new(most_steps: u64, most_depth: usize) -> Render {
        let (kept, namespaces) = Default::default();
        Render { most_steps, left: Cell::new(most_steps), most_depth, depth: Cell::new(0), kept, namespaces }
    }

    pub fn template(&self, body: &Body, variables: Vec<(&str, Value)>) -> Result<String> {
        let chat = Rc::new(Scope::default());
        for (name, value) in variables {
            chat.set(&name.into(), value);
        }
        let scope = Scope::inside(&chat, &body.hidden);
        self.keep(&scope);
        let mut out = String::new();
        let result = self.run(&body.statements, &scope, &mut out);
        for namespace in self.namespaces.take() {
            namespace.fields.take();
        }
        for scope in self.kept.take() {
            scope.variables.take();
        }
        result.map(|_| out)
    }

    /// Charges work before it is done.
    pub fn spend(&self, steps: u64) -> Result<()> {
        match self.left.get().checked_sub(steps) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.left.set(0);
                Err(Fault::MoreSteps { than: self.most_steps })
            }
        }
    }

    pub fn spend_bytes(&self, bytes: usize) -> Result<()> {
        self.spend(bytes as u64 / 64)
    }

    pub fn spend_text(&self, text: &str) -> Result<()> {
        self.spend_bytes(text.len())
    }

    pub fn deeper<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.depth.get() >= self.most_depth {
            return fault(format!("it calls itself, or is nested, deeper than {}", self.most_depth));
        }
        self.depth.set(self.depth.get() + 1);
        let result = work();
        self.depth.set(self.depth.get() - 1);
        result
    }

    pub fn keep(&self, scope: &Rc<Scope>) {
        if !scope.is_kept.replace(true) {
            self.kept.borrow_mut().push(scope.clone());
        }
    }

    pub fn namespace(&self, fields: IndexMap<std::sync::Arc<str>, Value>) -> Result<Value> {
        if let Some(name) = fields.keys().find(|name| name.starts_with('_')) {
            return fault(format!("a namespace cannot have the attribute '{name}'"));
        }
        let namespace = Rc::new(Namespace { fields: RefCell::new(fields) });
        self.namespaces.borrow_mut().push(namespace.clone());
        Ok(Value::Namespace(namespace))
    }

    pub fn eval(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        self.spend(1)?;
        self.deeper(|| self.eval_deeper(expr, scope))
    }

    fn eval_deeper(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        Ok(match expr {
            Expr::Literal(literal) => match literal {
                Literal::None => Value::None,
                Literal::Bool(value) => Value::Bool(*value),
                Literal::Int(value) => Value::Int(*value),
                Literal::Float(value) => Value::Float(*value),
                Literal::Text(text) => Value::Text(text.clone()),
            },
            Expr::Name(name) => scope.get(name).or_else(|| global(name)).unwrap_or_else(|| undefined(name)),
            Expr::List(items) => Value::List(List::new(self.eval_all(items, scope)?)?),
            Expr::Tuple(items) => Value::Tuple(List::new(self.eval_all(items, scope)?)?),
            Expr::Dict(items) => self.eval_dict(items, scope)?,
            Expr::If(parts, otherwise) => {
                let [test, value] = &**parts;
                match otherwise {
                    _ if self.eval(test, scope)?.is_true() => self.eval(value, scope)?,
                    Some(otherwise) => self.eval(otherwise, scope)?,
                    None => Value::undefined("the inline if-expression evaluated to false and no else was defined"),
                }
            }
            Expr::And(operands) => self.eval_until(operands, false, scope)?,
            Expr::Or(operands) => self.eval_until(operands, true, scope)?,
            Expr::Not(inner) => Value::Bool(!self.eval(inner, scope)?.is_true()),
            Expr::Compare(first, rest) => {
                let mut left = self.eval(first, scope)?;
                for (comparison, operand) in rest {
                    let right = self.eval(operand, scope)?;
                    if !self.is_so(*comparison, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Value::Bool(true)
            }
            Expr::Operators(first, rest) => {
                let mut left = self.eval(first, scope)?;
                for (operator, operand) in rest {
                    let right = self.eval(operand, scope)?;
                    left = self.operate(*operator, &left, &right)?;
                }
                left
            }
            Expr::Concat(parts) => {
                let values = self.eval_all(parts, scope)?;
                let mut out = String::new();
                for value in &values {
                    self.write(value, &mut out)?;
                }
                Value::text(out)
            }
            Expr::Negative(inner) => match self.eval(inner, scope)? {
                Value::Float(value) => Value::Float(-value),
                value => match value.whole().map(i64::checked_neg) {
                    Some(Some(value)) => Value::Int(value),
                    _ => return fault(format!("bad operand type for unary -: '{}'", value.kind())),
                },
            },
            Expr::Positive(inner) => match self.eval(inner, scope)? {
                Value::Float(value) => Value::Float(value),
                value => match value.whole() {
                    Some(value) => Value::Int(value),
                    _ => return fault(format!("bad operand type for unary +: '{}'", value.kind())),
                },
            },
            Expr::Suffixes(base, suffixes) => {
                let value = self.eval(base, scope)?;
                self.suffixes(value, suffixes, scope)?
            }
        })
    }

    pub fn eval_all(&self, items: &[Expr], scope: &Rc<Scope>) -> Result<Vec<Value>> {
        items.iter().map(|item| self.eval(item, scope)).collect()
    }

    fn eval_until(&self, operands: &[Expr], end: bool, scope: &Rc<Scope>) -> Result<Value> {
        let mut value = Value::None;
        for operand in operands {
            value = self.eval(operand, scope)?;
            if value.is_true() == end {
                break;
            }
        }
        Ok(value)
    }

    fn eval_dict(&self, items: &[(Expr, Expr)], scope: &Rc<Scope>) -> Result<Value> {
        let mut found: IndexMap<Key, (Value, Value)> = IndexMap::new();
        for (name, value) in items {
            let (name, value) = (self.eval(name, scope)?, self.eval(value, scope)?);
            self.put(&mut found, name, value)?;
        }
        Ok(Value::Dict(Dict::new(found)?))
    }

    /// dict[name] = value; an equal existing key is kept.
    pub fn put(&self, items: &mut IndexMap<Key, (Value, Value)>, name: Value, value: Value) -> Result<()> {
        match items.entry(self.key(&name)?) {
            indexmap::map::Entry::Occupied(mut place) => place.get_mut().1 = value,
            indexmap::map::Entry::Vacant(place) => {
                place.insert((name, value));
            }
        }
        Ok(())
    }

    pub fn suffixes(&self, mut value: Value, suffixes: &[Suffix], scope: &Rc<Scope>) -> Result<Value> {
        for suffix in suffixes {
            self.spend(1)?;
            value = self.suffix(value, suffix, scope)?;
        }
        Ok(value)
    }

    pub fn suffix(&self, value: Value, suffix: &Suffix, scope: &Rc<Scope>) -> Result<Value> {
        match suffix {
            Suffix::Attribute(name) => self.attribute(&value, name),
            Suffix::Item(item) => self.item(&value, &self.eval(item, scope)?),
            Suffix::Slice(parts) => {
                let part = |i: usize| parts[i].as_ref().map_or(Ok(Value::None), |part| self.eval(part, scope));
                self.slice(&value, [part(0)?, part(1)?, part(2)?])
            }
            Suffix::Call(arguments) => self.deeper(|| self.call(&value, self.given(arguments, scope)?)),
            Suffix::Filter(name, arguments) => self.deeper(|| self.filter(name, value, &self.given(arguments, scope)?)),
            Suffix::Test { name, arguments, negated } => {
                let given = self.given(arguments, scope)?;
                Ok(Value::Bool(self.deeper(|| self.test(name, &value, &given))? != *negated))
            }
        }
    }

    pub fn given(&self, arguments: &Arguments, scope: &Rc<Scope>) -> Result<Given> {
        let mut given = Given::of(self.eval_all(&arguments.positional, scope)?);
        for (name, value) in &arguments.named {
            given.named.push((name.clone(), self.eval(value, scope)?));
        }
        if let Some(rest) = &arguments.rest {
            let rest = self.eval(rest, scope)?;
            given.positional.extend(self.collect(&rest)?);
        }
        if let Some(rest) = &arguments.named_rest {
            let Value::Dict(dict) = self.eval(rest, scope)? else {
                return fault("what follows ** must be a dict");
            };
            self.spend(dict.items.len() as u64)?;
            for (name, value) in dict.items.values() {
                match name {
                    Value::Text(name) if !given.named.iter().any(|(known, _)| known == name) => {
                        given.named.push((name.clone(), value.clone()))
                    }
                    _ => return fault("what follows ** must have names that are texts, each given once"),
                }
                self.spend(given.named.len() as u64)?;
            }
        }
        Ok(given)
    }
}

fn global(name: &str) -> Option<Value> {
    Some(Value::Function(match name {
        "range" => Function::Range,
        "dict" => Function::Dict,
        "namespace" => Function::Namespace,
        "cycler" => Function::Cycler,
        "joiner" => Function::Joiner,
        "raise_exception" => Function::RaiseException,
        "strftime_now" => Function::StrftimeNow,
        _ => return None,
    }))
}
