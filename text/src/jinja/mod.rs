//! Jinja for chat templates: the subset that Hugging Face transformers renders with jinja2's sandbox. A template is
//! untrusted: work is charged to a budget before it is done, and output that would differ from Python's is an error.

mod arguments;
mod ast;
mod attributes;
mod dates;
mod expressions;
mod filters;
mod format;
mod json;
mod lexer;
mod loops;
mod methods;
mod names;
mod operators;
mod order;
mod parser;
mod python;
mod render;
mod scope;
mod sequences;
mod statements;
mod streams;
mod tests;
mod texts;
mod value;
mod words;

use std::fmt;

use crate::stack;
use ast::Body;
pub use python::{float, is_space};
use render::Render;
pub use value::Value;

/// One step is an executed node, an item, or 64 bytes of text. A long chat has more of them than a short one.
const MOST_STEPS: u64 = 1_000_000;
const MOST_STEPS_OF_BYTE: u64 = 64; // more for each byte that a template is given
/// Nesting of calls, tags and brackets while a template runs. STACK_BYTES is sufficient for it.
const MOST_DEPTH: usize = 400;
const STACK_BYTES: usize = 8 << 20;
const MOST_BYTES: usize = 1 << 20; // of a template

#[derive(Debug)]
pub enum Fault {
    Refusal(String),
    MoreSteps { than: u64 },
}

pub type Result<T> = std::result::Result<T, Fault>;

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Fault::Refusal(reason) => write!(out, "{reason}"),
            Fault::MoreSteps { than } => write!(out, "it needs more than {than} steps"),
        }
    }
}

fn fault<T>(what: impl Into<String>) -> Result<T> {
    Err(Fault::Refusal(what.into()))
}

pub struct Program {
    body: Body,
}

impl Program {
    pub fn new(source: &str) -> Result<Program> {
        if source.len() > MOST_BYTES {
            return fault(format!("it is longer than {MOST_BYTES} bytes"));
        }
        Ok(Program { body: on_a_stack(|| parser::parse(source))? })
    }

    /// The rendered text, with the variables of a chat given as (name, value), of `bytes` in all.
    pub fn render<'a>(
        &self,
        bytes: usize,
        variables: impl FnOnce() -> Result<Vec<(&'a str, Value)>> + Send,
    ) -> Result<String> {
        let most_steps = MOST_STEPS + MOST_STEPS_OF_BYTE * bytes as u64;
        on_a_stack(|| Render::new(most_steps, MOST_DEPTH).template(&self.body, variables()?))
    }
}

fn on_a_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    stack::on_a_stack("chat template", STACK_BYTES, work).unwrap_or_else(fault)
}
