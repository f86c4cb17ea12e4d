//! Which keyword an error of the compiler is about: it names none, so smaller and smaller schemas are compiled.

use serde_json::{Map, Value};

use super::limits::MOST_TRIES;
use super::schema::{at, find, origin, wrong};
use crate::error::Failure;

type Object = Map<String, Value>;

const CARRIED: [&str; 3] = ["$defs", "definitions", "x-guidance"]; // by every part, for its references

const NO_TARGET: &str = "Reference segment"; // of a reference to a place that a part does not carry

const TOO_LARGE: &str = "schema too large"; // a limit of the compiler

/// `message` with the path of the smallest schema that has an error of its kind. `fault` is the error of a schema.
pub fn found(root: &Value, message: String, fault: impl Fn(&Value) -> Option<String>) -> Failure {
    if message == TOO_LARGE {
        return wrong("#", message); // by all of its parts, each of which takes as long
    }
    let mut search = Search { root, fault, tries: 0 };
    let (mut path, mut schema, mut message) = ("#".to_owned(), root.clone(), message);
    while let Some((inner, part, fault)) = search.part(&path, &schema, &message) {
        (path, schema, message) = (inner, part, fault);
    }
    if let Some(name) = search.keyword(&schema, &message) {
        path = at(&path, &name);
    }
    wrong(&path, message)
}

struct Search<'a, F> {
    root: &'a Value,
    fault: F,
    tries: usize,
}

impl<F: Fn(&Value) -> Option<String>> Search<'_, F> {
    /// The first schema directly inside that is at fault too.
    fn part(&mut self, path: &str, schema: &Value, message: &str) -> Option<(String, Value, String)> {
        for (inner, part) in parts(self.root, path, schema) {
            if let Some(found) = self.fault(part.as_object()?, message) {
                return Some((inner, part, found));
            }
        }
        None
    }

    /// The first keyword that is at fault alone, with the type beside it.
    fn keyword(&mut self, schema: &Value, message: &str) -> Option<String> {
        let fields = schema.as_object()?;
        for (name, value) in fields.iter().filter(|(name, _)| !CARRIED.contains(&name.as_str()) && *name != "type") {
            let kind = fields.get("type").map(|kind| ("type".to_owned(), kind.clone()));
            let alone: Object = kind.into_iter().chain([(name.clone(), value.clone())]).collect();
            if self.fault(&alone, message).is_some() {
                return Some(name.clone());
            }
        }
        None
    }

    /// The error of a schema that stands alone, if it may be the cause of `message`. A part that nothing satisfies is
    /// no error of what has other parts.
    fn fault(&mut self, part: &Object, message: &str) -> Option<String> {
        self.tries += 1;
        if self.tries > MOST_TRIES {
            return None;
        }
        let carried = CARRIED.iter().filter_map(|&name| Some((name.to_owned(), self.root.get(name)?.clone())));
        let whole: Object = carried.chain(part.clone()).collect();
        let is_empty = |message: &str| message.contains("nsatisfiable");
        let is_torn = |found: &str| found.contains(NO_TARGET) && !message.contains(NO_TARGET);
        let found = (self.fault)(&Value::Object(whole));
        found.filter(|found| (is_empty(message) || !is_empty(found)) && !is_torn(found))
    }
}

fn parts(root: &Value, path: &str, schema: &Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    let mut add = |path: String, part: &Value| {
        if let Some(fields) = part.as_object() {
            found.push((origin(fields).map_or(path, str::to_owned), part.clone()));
        }
    };
    for (name, value) in schema.as_object().into_iter().flatten() {
        let path = at(path, name);
        match (name.as_str(), value) {
            ("properties" | "patternProperties", Value::Object(inner)) => {
                inner.iter().for_each(|(name, part)| add(at(&path, name), part));
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(inner)) => {
                inner.iter().enumerate().for_each(|(number, part)| add(at(&path, &number.to_string()), part));
            }
            ("items" | "additionalItems" | "additionalProperties", part) => add(path, part),
            ("$ref", Value::String(target)) => {
                if let Some(part) = find(root, target) {
                    add(target.clone(), part);
                }
            }
            _ => (),
        }
    }
    found
}
