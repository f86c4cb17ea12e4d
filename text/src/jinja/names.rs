//! Jinja resolves names before a template runs. A name that a scope assigns without having used it before is undefined
//! from the beginning of that scope, even if the chat has a variable of that name.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::ast::{Arguments, Body, Expr, Name, Statement, Suffix, Target};
use super::parser::names_of;

#[derive(Clone, Copy, PartialEq)]
enum Load {
    Known, // a parameter, or a name of an outer scope or of the chat
    Undefined,
}

#[derive(Clone, Default)]
struct Symbols {
    outside: HashSet<Name>,
    loads: HashMap<Name, Load>,
    stores: HashSet<Name>,
}

impl Symbols {
    fn load(&mut self, name: &Name) {
        if !self.outside.contains(name) {
            self.loads.entry(name.clone()).or_insert(Load::Known);
        }
    }

    fn store(&mut self, name: &Name) {
        self.stores.insert(name.clone());
        let load = if self.outside.contains(name) { Load::Known } else { Load::Undefined };
        self.loads.entry(name.clone()).or_insert(load);
    }

    fn parameter(&mut self, name: &Name) {
        self.stores.insert(name.clone());
        self.loads.insert(name.clone(), Load::Known);
    }

    fn inner(&self) -> Symbols {
        let outside = self.outside.iter().chain(self.loads.keys()).cloned().collect();
        Symbols { outside, ..Default::default() }
    }

    fn target(&mut self, target: &Target) {
        match target {
            Target::Name(name) => self.store(name),
            Target::Tuple(targets) => targets.iter().for_each(|target| self.target(target)),
            Target::Field(name, _) => self.load(name),
        }
    }

    fn expr(&mut self, expr: &Expr) {
        loads(expr, &mut |name| self.load(name));
    }

    fn suffixes(&mut self, suffixes: &[Suffix]) {
        suffixes.iter().for_each(|suffix| suffix_loads(suffix, &mut |name| self.load(name)));
    }

    /// The names of this scope, in source order.
    fn visit(&mut self, statements: &[Statement]) {
        for statement in statements {
            match statement {
                Statement::Print(expr) => self.expr(expr),
                Statement::If(branches, otherwise) => {
                    // elif is a nested `if` inside the first
                    self.expr(&branches[0].0);
                    let first = self.branch(|symbols| symbols.visit(&branches[0].1));
                    let middle = self.branch(|symbols| {
                        for (test, body) in &branches[1..] {
                            symbols.expr(test);
                            let inner = symbols.branch(|symbols| symbols.visit(body));
                            symbols.merge(vec![inner]);
                        }
                    });
                    let last = self.branch(|symbols| symbols.visit(otherwise));
                    self.merge(vec![first, middle, last]);
                }
                Statement::For(node) => self.expr(&node.iterable),
                Statement::Set(target, value) => {
                    self.expr(value);
                    self.target(target);
                }
                Statement::SetBlock(target, ..) => self.target(target),
                Statement::With(values, _) => values.iter().for_each(|(_, value)| self.expr(value)),
                Statement::Filter(filters, _) => self.suffixes(filters),
                Statement::Macro(node) => self.store(&node.name),
                Statement::Call(call, _) => self.expr(call),
                Statement::Text(_) | Statement::Generation(_) | Statement::Break | Statement::Continue => (),
            }
        }
    }

    fn branch(&self, visit: impl FnOnce(&mut Symbols)) -> Symbols {
        let mut symbols = self.clone();
        visit(&mut symbols);
        symbols
    }

    fn merge(&mut self, branches: Vec<Symbols>) {
        let stored: HashSet<Name> = branches.iter().flat_map(|branch| branch.stores.iter().cloned()).collect();
        let stored: Vec<Name> = stored.difference(&self.stores).cloned().collect();
        for branch in branches {
            self.loads.extend(branch.loads);
            self.stores.extend(branch.stores);
        }
        for name in stored {
            self.loads.insert(name, Load::Known);
        }
    }
}

pub fn hide(body: &mut Body) {
    finish(body, Symbols::default(), |_| ());
}

fn finish(body: &mut Body, mut symbols: Symbols, begin: impl FnOnce(&mut Symbols)) {
    begin(&mut symbols);
    symbols.visit(&body.statements);
    let undefined = symbols.loads.iter().filter(|(_, load)| **load == Load::Undefined);
    body.hidden = undefined.map(|(name, _)| name.clone()).collect();
    inside(&mut body.statements, &symbols);
}

fn inside(statements: &mut [Statement], symbols: &Symbols) {
    const ALONE: &str = "the parser's tree is not shared yet";
    for statement in statements {
        match statement {
            Statement::If(branches, otherwise) => {
                branches.iter_mut().for_each(|(_, body)| inside(body, symbols));
                inside(otherwise, symbols);
            }
            Statement::For(node) => {
                let node = Arc::get_mut(node).expect(ALONE);
                let names: Vec<Name> = names_of(&node.target).into_iter().cloned().collect();
                finish(&mut node.body, symbols.inner(), |symbols| {
                    symbols.parameter(&"loop".into());
                    names.iter().for_each(|name| symbols.parameter(name));
                });
                finish(&mut node.otherwise, symbols.inner(), |_| ());
            }
            Statement::SetBlock(_, _, body) | Statement::Generation(body) => finish(body, symbols.inner(), |_| ()),
            Statement::With(values, body) => finish(body, symbols.inner(), |symbols| {
                values.iter().flat_map(|(target, _)| names_of(target)).for_each(|name| symbols.parameter(name));
            }),
            Statement::Filter(filters, body) => {
                let filters: &[Suffix] = filters;
                finish(body, symbols.inner(), |symbols| symbols.suffixes(filters));
            }
            Statement::Macro(node) | Statement::Call(_, node) => {
                let node = Arc::get_mut(node).expect(ALONE);
                let (parameters, defaults) = (&node.parameters, &node.defaults);
                finish(&mut node.body, symbols.inner(), |symbols| {
                    parameters.iter().for_each(|name| symbols.parameter(name));
                    ["caller", "varargs", "kwargs"].iter().for_each(|&name| symbols.parameter(&name.into()));
                    defaults.iter().for_each(|value| symbols.expr(value));
                });
            }
            _ => (),
        }
    }
}

fn loads(expr: &Expr, found: &mut dyn FnMut(&Name)) {
    match expr {
        Expr::Literal(_) => (),
        Expr::Name(name) => found(name),
        Expr::List(items) | Expr::Tuple(items) | Expr::And(items) | Expr::Or(items) | Expr::Concat(items) => {
            items.iter().for_each(|item| loads(item, found))
        }
        Expr::Dict(items) => items.iter().for_each(|(name, value)| {
            loads(name, found);
            loads(value, found);
        }),
        Expr::If(parts, otherwise) => {
            parts.iter().for_each(|part| loads(part, found));
            otherwise.iter().for_each(|part| loads(part, found));
        }
        Expr::Not(inner) | Expr::Negative(inner) | Expr::Positive(inner) => loads(inner, found),
        Expr::Compare(first, rest) => {
            loads(first, found);
            rest.iter().for_each(|(_, operand)| loads(operand, found));
        }
        Expr::Operators(first, rest) => {
            loads(first, found);
            rest.iter().for_each(|(_, operand)| loads(operand, found));
        }
        Expr::Suffixes(base, suffixes) => {
            loads(base, found);
            suffixes.iter().for_each(|suffix| suffix_loads(suffix, found));
        }
    }
}

fn suffix_loads(suffix: &Suffix, found: &mut dyn FnMut(&Name)) {
    let of_arguments = |arguments: &Arguments, found: &mut dyn FnMut(&Name)| {
        let named = arguments.named.iter().map(|(_, value)| value);
        let rest = arguments.rest.iter().chain(&arguments.named_rest).map(|rest| &**rest);
        arguments.positional.iter().chain(named).chain(rest).for_each(|value| loads(value, found));
    };
    match suffix {
        Suffix::Attribute(_) => (),
        Suffix::Item(item) => loads(item, found),
        Suffix::Slice(parts) => parts.iter().flatten().for_each(|part| loads(part, found)),
        Suffix::Call(arguments) | Suffix::Filter(_, arguments) | Suffix::Test { arguments, .. } => {
            of_arguments(arguments, found)
        }
    }
}

/// Whether a macro's body uses a variable, also in nested scopes.
pub fn is_used(wanted: &str, body: &Body) -> bool {
    let mut is_found = false;
    walk(&body.statements, &mut |name| is_found |= &**name == wanted);
    is_found
}

fn walk(statements: &[Statement], found: &mut dyn FnMut(&Name)) {
    for statement in statements {
        match statement {
            Statement::Text(_) | Statement::Break | Statement::Continue => (),
            Statement::Print(expr) | Statement::Set(_, expr) => loads(expr, found),
            Statement::If(branches, otherwise) => {
                for (test, body) in branches {
                    loads(test, found);
                    walk(body, found);
                }
                walk(otherwise, found);
            }
            Statement::For(node) => {
                loads(&node.iterable, found);
                node.test.iter().for_each(|test| loads(test, found));
                walk(&node.body.statements, found);
                walk(&node.otherwise.statements, found);
            }
            Statement::SetBlock(_, filters, body) | Statement::Filter(filters, body) => {
                filters.iter().for_each(|filter| suffix_loads(filter, found));
                walk(&body.statements, found);
            }
            Statement::With(values, body) => {
                values.iter().for_each(|(_, value)| loads(value, found));
                walk(&body.statements, found);
            }
            Statement::Generation(body) => walk(&body.statements, found),
            Statement::Macro(node) => walk(&node.body.statements, found),
            Statement::Call(call, node) => {
                loads(call, found);
                walk(&node.body.statements, found);
            }
        }
    }
}
