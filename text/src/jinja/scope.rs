//! The variables of a scope and its enclosing scopes.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::ast::Name;
use super::value::Value;

#[derive(Default)]
pub struct Scope {
    pub variables: RefCell<HashMap<Name, Value>>,
    pub outside: Option<Rc<Scope>>,
    pub is_kept: Cell<bool>,
    pub is_over: Cell<bool>, // its statements have finished
}

impl Scope {
    pub fn inside(outside: &Rc<Scope>, hidden: &[Name]) -> Rc<Scope> {
        let hide = |name: &Name| (name.clone(), undefined(name));
        let hidden = hidden.iter().map(hide).collect();
        Rc::new(Scope { variables: RefCell::new(hidden), outside: Some(outside.clone()), ..Scope::default() })
    }

    pub fn get(&self, name: &str) -> Option<Value> {
        let mut scope = self;
        loop {
            if let Some(value) = scope.variables.borrow().get(name) {
                return Some(value.clone());
            }
            scope = scope.outside.as_deref()?;
        }
    }

    /// A macro reads the variables of a finished scope in the state in which jinja2 left them.
    pub fn is_over(&self) -> bool {
        let mut scope = Some(self);
        while let Some(inner) = scope {
            if inner.is_over.get() {
                return true;
            }
            scope = inner.outside.as_deref();
        }
        false
    }

    pub fn set(&self, name: &Name, value: Value) {
        self.variables.borrow_mut().insert(name.clone(), value);
    }
}

pub fn undefined(name: &str) -> Value {
    Value::undefined(format!("'{name}' is undefined"))
}
