//! Limits the combinations of options that one value must fit. The compiler joins the options of each combination, which
//! takes about 1 ms and 0.1 MB, and stops only after 50,000 steps.

use std::collections::HashMap;

use serde_json::Value;

use super::limits::MOST_OPTION_BITS;
use super::schema::{at, find, wrong};
use crate::error::Result;

const STEPS: usize = 8; // of a bit

const VALUES: [&str; 5] = ["const", "enum", "default", "examples", "x-guidance"]; // keywords that contain no schema

/// Refuses a schema if the options of `anyOf` and `oneOf` that can be objects or arrays have too many combinations. Keywords
/// that become `anyOf` have a limit of their own.
pub fn check(root: &Value) -> Result<()> {
    Counter { root, known: HashMap::new() }.check(root, "#")
}

struct Counter<'a> {
    root: &'a Value,
    known: HashMap<*const Value, usize>, // schemas that were counted, or are being counted
}

impl<'a> Counter<'a> {
    fn check(&mut self, inside: &'a Value, path: &str) -> Result<()> {
        match inside {
            Value::Object(fields) => {
                if self.count(inside) > STEPS * MOST_OPTION_BITS {
                    let most = 1 << MOST_OPTION_BITS;
                    return Err(wrong(path, format!(
                        "a value would have to fit one of more than {most} combinations of options (`anyOf` and `oneOf`, \
                         joined by `allOf`, `$ref` or sibling keywords); write out those that are meant"
                    )));
                }
                let mut inner = fields.iter().filter(|(name, _)| !VALUES.contains(&name.as_str()));
                inner.try_for_each(|(name, value)| self.check(value, &at(path, name)))
            }
            Value::Array(values) => {
                let mut values = values.iter().enumerate();
                values.try_for_each(|(place, value)| self.check(value, &at(path, &place.to_string())))
            }
            _ => Ok(()),
        }
    }

    /// The number of combinations for a value that fits a schema, in parts of a bit. An upper bound, except for recursion.
    fn count(&mut self, schema: &'a Value) -> usize {
        let Some(fields) = schema.as_object() else { return 0 };
        if let Some(known) = self.known.insert(schema, 0) {
            self.known.insert(schema, known);
            return known;
        }
        let root = self.root;
        let listed = |name: &str| fields.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut found = 0_usize;
        if let Some(target) = fields.get("$ref").and_then(Value::as_str).and_then(|target| find(root, target)) {
            found = self.count(target);
        }
        for part in listed("allOf") {
            found = found.saturating_add(self.count(part));
        }
        for options in [listed("anyOf"), listed("oneOf")] {
            let multiplying =
                options.iter().filter(|option| can_have_parts(root, option) && !has_discriminator(option));
            let bits = (multiplying.count().max(1) as f64).log2();
            let most = options.iter().map(|option| self.count(option)).max().unwrap_or_default();
            found = found.saturating_add(most + (STEPS as f64 * bits).ceil() as usize);
        }
        self.known.insert(schema, found);
        found
    }
}

/// Whether a schema requires a property to be one of some constants. Options that do exclude each other, so that few of
/// their combinations are left.
fn has_discriminator(schema: &Value) -> bool {
    let Some(fields) = schema.as_object() else { return false };
    let is_fixed = |name: &Value| {
        let property = name.as_str().and_then(|name| fields.get("properties")?.get(name));
        property.is_some_and(|property| property.get("const").is_some() || property.get("enum").is_some())
    };
    fields.get("required").and_then(Value::as_array).into_iter().flatten().any(is_fixed)
}

/// Whether a value that fits can be an object or an array, as far as the schema's own keywords say.
fn can_have_parts(root: &Value, schema: &Value) -> bool {
    let Some(fields) = schema.as_object() else { return true };
    if let Some(target) = fields.get("$ref").and_then(Value::as_str).and_then(|target| find(root, target)) {
        if target.get("$ref").is_none() && !can_have_parts(root, target) {
            return false;
        }
    }
    let is_whole = |value: &Value| value.is_object() || value.is_array();
    match (fields.get("type"), fields.get("const"), fields.get("enum")) {
        (_, Some(value), _) => is_whole(value),
        (_, _, Some(Value::Array(values))) => values.iter().any(is_whole),
        (Some(Value::String(kind)), ..) => kind == "object" || kind == "array",
        (Some(Value::Array(kinds)), ..) => kinds.iter().any(|kind| kind == "object" || kind == "array"),
        _ => true,
    }
}
