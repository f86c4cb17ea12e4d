//! The arguments of a call, bound to parameters as in Python.

use super::ast::Name;
use super::value::Value;
use super::{fault, Result};

#[derive(Clone, Default)]
pub struct Given {
    pub positional: Vec<Value>,
    pub named: Vec<(Name, Value)>,
}

impl Given {
    pub fn of(positional: Vec<Value>) -> Given {
        Given { positional, named: Vec::new() }
    }

    /// One value or None for each parameter; an error if there are too many arguments, or fewer than `least`.
    pub fn bind<const N: usize>(&self, what: &str, names: [&str; N], least: usize) -> Result<[Option<Value>; N]> {
        if self.positional.len() > N {
            return fault(format!("{what} takes at most {N} arguments"));
        }
        let mut found: [Option<Value>; N] = std::array::from_fn(|i| self.positional.get(i).cloned());
        for (name, value) in &self.named {
            match names.iter().position(|known| **known == **name) {
                Some(i) if found[i].is_none() => found[i] = Some(value.clone()),
                Some(_) => return fault(format!("{what} is given '{name}' twice")),
                None => return fault(format!("{what} has no argument '{name}'")),
            }
        }
        match found.iter().take(least).position(Option::is_none) {
            Some(i) => fault(format!("{what} needs the argument '{}'", names[i])),
            None => Ok(found),
        }
    }
}
