//! Executes the statements of a template, and calls macros.

use std::rc::Rc;
use std::sync::Arc;

use indexmap::IndexMap;

use super::arguments::Given;
use super::ast::{Body, Expr, For, Macro, Statement, Suffix, Target};
use super::loops::Loop;
use super::render::Render;
use super::scope::Scope;
use super::value::{Closure, Dict, List, Value};
use super::{fault, Result};

#[derive(PartialEq)]
pub enum Flow {
    On,
    Break,
    Continue,
}

impl Render {
    pub fn run(&self, statements: &[Statement], scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        self.deeper(|| {
            for statement in statements {
                self.spend(1)?;
                let flow = self.statement(statement, scope, out)?;
                if flow != Flow::On {
                    return Ok(flow);
                }
            }
            Ok(Flow::On)
        })
    }

    fn inside(&self, body: &Body, outside: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        let scope = Scope::inside(outside, &body.hidden);
        let flow = self.run(&body.statements, &scope, out);
        scope.is_over.set(true);
        flow
    }

    fn statement(&self, statement: &Statement, scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        match statement {
            Statement::Text(text) => {
                self.spend_text(text)?;
                out.push_str(text);
            }
            Statement::Print(expr) => self.write(&self.eval(expr, scope)?, out)?,
            Statement::If(branches, otherwise) => {
                for (test, body) in branches {
                    if self.eval(test, scope)?.is_true() {
                        return self.run(body, scope, out);
                    }
                }
                return self.run(otherwise, scope, out);
            }
            Statement::For(code) => {
                let items = self.eval(&code.iterable, scope)?;
                self.run_loop(code, &items, scope, 0, out)?;
            }
            Statement::Set(target, value) => {
                let value = self.eval(value, scope)?;
                self.assign(target, value, scope)?;
            }
            Statement::SetBlock(target, filters, body) => {
                let (flow, value) = self.filtered(filters, body, scope)?;
                let Some(value) = value else { return Ok(flow) };
                self.assign(target, value, scope)?;
            }
            Statement::With(values, body) => {
                let inner = Scope::inside(scope, &body.hidden);
                for (target, value) in values {
                    self.assign(target, self.eval(value, scope)?, &inner)?;
                }
                let flow = self.run(&body.statements, &inner, out);
                inner.is_over.set(true);
                return flow;
            }
            Statement::Filter(filters, body) => {
                let (flow, value) = self.filtered(filters, body, scope)?;
                let Some(value) = value else { return Ok(flow) };
                self.write_text(&value, out)?;
            }
            Statement::Macro(code) => scope.set(&code.name, self.closure(code, scope)),
            Statement::Call(call, code) => {
                let caller = self.closure(code, scope);
                let value = self.call_with(call, caller, scope)?;
                self.write_text(&value, out)?;
            }
            Statement::Generation(body) => {
                let mut text = String::new();
                self.inside(body, scope, &mut text)?;
                self.write_text(&Value::text(text), out)?;
            }
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    /// The output of a block, through the filters after its tag; None if it breaks out of a loop or continues one.
    fn filtered(&self, filters: &[Suffix], body: &Body, outside: &Rc<Scope>) -> Result<(Flow, Option<Value>)> {
        let (mut text, scope) = (String::new(), Scope::inside(outside, &body.hidden));
        let flow = self.run(&body.statements, &scope, &mut text)?;
        let value = match flow {
            Flow::On => Some(self.suffixes(Value::text(text), filters, &scope)?),
            _ => None,
        };
        scope.is_over.set(true);
        Ok((flow, value))
    }

    fn write_text(&self, value: &Value, out: &mut String) -> Result<()> {
        match value {
            Value::Text(_) | Value::Safe(_) => self.write(value, out),
            _ => fault(format!("a block writes a text, and not a {}", value.kind())),
        }
    }

    fn call_with(&self, call: &Expr, caller: Value, scope: &Rc<Scope>) -> Result<Value> {
        let Expr::Suffixes(base, suffixes) = call else { return fault("a call is expected") };
        let Some((Suffix::Call(arguments), before)) = suffixes.split_last() else {
            return fault("a call is expected");
        };
        let function = self.eval(base, scope)?;
        let function = self.suffixes(function, before, scope)?;
        let mut given = self.given(arguments, scope)?;
        given.named.push(("caller".into(), caller));
        self.deeper(|| self.call(&function, given))
    }

    pub fn assign(&self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<()> {
        match target {
            Target::Name(name) => scope.set(name, value),
            Target::Field(name, field) => {
                let Some(Value::Namespace(namespace)) = scope.get(name) else {
                    return fault("cannot assign attribute on non-namespace object");
                };
                if field.starts_with('_') {
                    return fault(format!("a namespace cannot have the attribute '{field}'"));
                }
                let before = namespace.fields.borrow_mut().insert(field.clone(), value);
                drop(before);
            }
            Target::Tuple(targets) => {
                let mut items = self.iterate(&value)?;
                let mut found = Vec::with_capacity(targets.len());
                while found.len() <= targets.len() {
                    match self.next(&mut items)? {
                        Some(item) => found.push(item),
                        None => break,
                    }
                }
                if found.len() != targets.len() {
                    return fault(format!("{} values to unpack are expected", targets.len()));
                }
                for (target, item) in targets.iter().zip(found) {
                    self.assign(target, item, scope)?;
                }
            }
        }
        Ok(())
    }

    pub fn run_loop(
        &self,
        code: &Arc<For>,
        items: &Value,
        scope: &Rc<Scope>,
        level: usize,
        out: &mut String,
    ) -> Result<()> {
        self.keep(scope);
        let state = Rc::new(Loop::new(code, scope, items, self.iterate(items)?, level));
        let mut is_completed = false;
        while let Some(item) = self.step(&state)? {
            let inner = Scope::inside(scope, &code.body.hidden);
            inner.set(&"loop".into(), Value::Loop(state.clone()));
            self.assign(&code.target, item, &inner)?;
            let flow = self.run(&code.body.statements, &inner, out)?;
            inner.is_over.set(true);
            match flow {
                Flow::On => is_completed = true,
                Flow::Continue => (),
                Flow::Break => break,
            }
        }
        if !is_completed {
            self.inside(&code.otherwise, scope, out)?;
        }
        Ok(())
    }

    fn closure(&self, code: &Arc<Macro>, scope: &Rc<Scope>) -> Value {
        self.keep(scope);
        Value::Macro(Rc::new(Closure { code: code.clone(), scope: scope.clone() }))
    }

    pub fn call_macro(&self, closure: &Closure, given: Given) -> Result<Value> {
        let (code, mut named) = (&closure.code, given.named);
        if closure.scope.is_over() {
            return fault(format!("a call of '{}' after its loop or block is not supported", code.name));
        }
        self.spend((code.parameters.len() + given.positional.len() + named.len()) as u64)?;
        // each parameter is searched for among the named arguments
        self.spend((code.parameters.len() * named.len() / 16) as u64)?;
        let scope = Scope::inside(&closure.scope, &code.body.hidden);
        let mut positional = given.positional.into_iter();
        let take = |named: &mut Vec<(Arc<str>, Value)>, name: &str| {
            named.iter().position(|(known, _)| **known == *name).map(|i| named.remove(i).1)
        };
        let mut found = Vec::new();
        for name in &code.parameters {
            let value = match positional.next() {
                Some(value) => Some(value),
                None => take(&mut named, name),
            };
            found.push(value);
        }
        let mut caller = None;
        if code.caller {
            let value = take(&mut named, "caller").filter(|value| !matches!(value, Value::None));
            caller = Some(value.unwrap_or_else(|| Value::undefined("No caller defined")));
        }
        if !named.is_empty() && !code.kwargs {
            return fault(format!("macro '{}' takes no keyword argument '{}'", code.name, named[0].0));
        }
        let rest: Vec<Value> = positional.collect();
        if !rest.is_empty() && !code.varargs {
            return fault(format!("macro '{}' takes not more than {} argument(s)", code.name, code.parameters.len()));
        }
        // Defaults may refer to parameters, but not to missing ones.
        let first_default = code.parameters.len() - code.defaults.len();
        for (name, value) in code.parameters.iter().zip(&found) {
            let missing = || Value::undefined(format!("parameter '{name}' was not provided"));
            scope.set(name, value.clone().unwrap_or_else(missing));
        }
        if let Some(caller) = caller {
            scope.set(&"caller".into(), caller);
        }
        if code.kwargs {
            let mut items = IndexMap::new();
            for (name, value) in named {
                self.put(&mut items, Value::Text(name), value)?;
            }
            scope.set(&"kwargs".into(), Value::Dict(Dict::new(items)?));
        }
        if code.varargs {
            scope.set(&"varargs".into(), Value::Tuple(List::new(rest)?));
        }
        for (i, name) in code.parameters.iter().enumerate().skip(first_default) {
            if found[i].is_none() {
                scope.set(name, self.eval(&code.defaults[i - first_default], &scope)?);
            }
        }
        let mut text = String::new();
        self.run(&code.body.statements, &scope, &mut text)?;
        Ok(Value::text(text))
    }
}
