//! Tools: functions that a model may call.

pub mod around;
mod braces;
pub mod channels;
pub mod constraint;
pub mod either;
pub mod families;
mod grammar;
mod marks;
mod parse;
pub mod plain;
mod python;
mod reader;
pub mod results;

use std::collections::HashSet;

use crate::error::{bad_argument, Result};
use crate::json::{quoted, Json};

/// Functions in the form of OpenAI: {"type": "function", "function": {"name", "description", "parameters"}}.
#[derive(Clone, Default)]
pub struct Tools {
    list: Option<Vec<Json>>, // None, never an empty list: templates such as Llama 3's ask whether there is one
    strict: HashSet<String>, // functions with "strict": true, which models were not trained to read
}

impl Tools {
    /// A JSON list of tools, or of functions alone: {"name", "description", "parameters"}.
    pub fn parse(json: &str) -> Result<Tools> {
        let value = Json::parse_given(json).map_err(|error| bad_argument(format!("tools: not JSON ({error})")))?;
        let items = value.list().ok_or_else(|| bad_argument("tools must be a JSON list"))?;
        let (mut list, mut names, mut strict) = (Vec::new(), HashSet::new(), HashSet::new());
        for (number, item) in (1..).zip(items) {
            let mut tool = tool(item).map_err(|reason| bad_argument(format!("tools: item {number}: {reason}")))?;
            if let Some(Function { name, is_strict, .. }) = Function::of(&tool) {
                if !names.insert(name.to_owned()) {
                    return Err(bad_argument(format!("tools: two functions have the name {}", quoted(name))));
                }
                strict.extend(is_strict.then(|| name.to_owned()));
            }
            if let Some(function) = tool.object_mut().and_then(|tool| tool.get_mut("function")?.object_mut()) {
                function.shift_remove("strict");
            }
            list.push(tool);
        }
        Ok(Tools { list: Some(list).filter(|list| !list.is_empty()), strict })
    }

    pub fn given(&self) -> Option<&[Json]> {
        self.list.as_deref()
    }

    pub fn list(&self) -> &[Json] {
        self.given().unwrap_or_default()
    }

    /// The schema of a function's arguments.
    fn parameters(&self, function: &str) -> Option<&Json> {
        self.functions().find(|known| known.name == function)?.parameters
    }

    /// The name of the function that a text begins with, where `open` follows it. A name may have any characters.
    fn called<'a>(&self, text: &'a str, open: &str) -> Option<&'a str> {
        let is_called = |name: &&str| text.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(open));
        let names = self.functions().map(|function| function.name).filter(is_called);
        names.max_by_key(|name| name.len()).map(|name| &text[..name.len()])
    }

    pub fn functions(&self) -> impl Iterator<Item = Function<'_>> {
        let found = self.list().iter().filter_map(Function::of);
        found.map(|function| Function { is_strict: self.strict.contains(function.name), ..function })
    }
}

pub struct Function<'a> {
    pub name: &'a str,
    pub parameters: Option<&'a Json>, // a JSON schema
    pub is_strict: bool,              // arguments must fit all of it
}

impl Function<'_> {
    fn of(tool: &Json) -> Option<Function<'_>> {
        let function = tool.get("function")?;
        let is_strict = matches!(function.get("strict"), Some(Json::Bool(true)));
        Some(Function { name: function.get("name")?.text()?, parameters: function.get("parameters"), is_strict })
    }
}

fn tool(item: &Json) -> Result<Json, String> {
    const FORM: &str = r#"{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}"#;
    let fields = item.object().ok_or_else(|| format!("it must be {FORM}"))?;
    let tool = if fields.contains_key("function") {
        item.clone()
    } else {
        Json::of_fields([("type", Json::Text("function".to_owned())), ("function", item.clone())])
    };
    match Function::of(&tool) {
        Some(function) if !function.name.is_empty() => match function.parameters {
            Some(schema) if schema.object().is_none() && *schema != Json::Null => {
                Err(format!("the parameters of {} must be a JSON schema, an object", quoted(function.name)))
            }
            _ => Ok(tool),
        },
        _ => Err(format!("it has no name; it must be {FORM}")),
    }
}
