//! Schemas of the values that a schema excludes, for `not`, `if`, `oneOf` and `contains`. The compiler has no negation, so
//! each keyword is negated: the complement of `minimum` are the numbers below it. Only keywords that every draft has are
//! written, so `enum` for `const` and a list of `items` for `prefixItems`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{json, Map, Value};

use super::disjoint::is_same;
use super::limits::{MOST_EXCEPTIONS, MOST_PATTERN_BYTES};
use super::schema::{allows_all, find, has_reference};

type Object = Map<String, Value>;

const MOST_EXACT: f64 = (1_u64 << 53) as f64; // from here on, a whole number may have been rounded to another
const DEEPEST: usize = 8; // properties of properties, references included

/// The complement of a schema. All that fits one of `options` is excluded by the schema; if `is_exact`, nothing else is.
pub struct Outside {
    pub options: Vec<Value>,
    pub is_exact: bool,
}

impl Outside {
    fn exact(options: Vec<Value>) -> Outside {
        Outside { options, is_exact: true }
    }

    fn unknown() -> Outside {
        Outside { options: Vec::new(), is_exact: false }
    }

    /// The complement of an `allOf` of two schemas.
    fn or(mut self, other: Outside) -> Outside {
        self.options.extend(other.options);
        Outside { is_exact: self.is_exact && other.is_exact, ..self }
    }

    /// The complement of an `anyOf` of two schemas.
    fn and(self, other: Outside) -> Outside {
        let is_empty = |side: &Outside| side.is_exact && side.options.is_empty();
        if is_empty(&self) || is_empty(&other) {
            return Outside::exact(Vec::new());
        }
        let is_exact = self.is_exact && other.is_exact;
        if self.options.is_empty() || other.options.is_empty() {
            return Outside::unknown();
        }
        Outside { options: vec![both(any(self.options), any(other.options))], is_exact }
    }

    /// The same, for the values of one type.
    fn inside(self, wrap: impl FnOnce(Value) -> Value) -> Outside {
        let options = if self.options.is_empty() { Vec::new() } else { vec![wrap(any(self.options))] };
        Outside { options, is_exact: self.is_exact }
    }
}

/// Fits what one of these fits.
pub fn any(mut options: Vec<Value>) -> Value {
    match options.len() {
        0 => Value::Bool(false),
        1 => options.swap_remove(0),
        _ => schema([("anyOf", Value::Array(options))]),
    }
}

/// Fits what both fit.
pub fn both(one: Value, other: Value) -> Value {
    schema([("allOf", Value::Array(vec![one, other]))])
}

/// `json!` copies what it is given.
fn schema<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Lists.
fn list<const N: usize>(rules: [(&str, Value); N]) -> Value {
    Value::Object(
        [("type", "array".into())].into_iter().chain(rules).map(|(name, rule)| (name.to_owned(), rule)).collect(),
    )
}

/// Objects whose property fits a schema.
fn with(name: &str, value: Value) -> Value {
    let named = Value::Object([(name.to_owned(), value)].into_iter().collect());
    schema([("type", "object".into()), ("required", json!([name])), ("properties", named)])
}

/// Fits everything but objects with such a property.
pub fn without(name: &str) -> Value {
    json!({ "properties": { name: false } })
}

/// Computes complements of schemas.
pub struct Complement<'a> {
    pub root: &'a Value,
    /// Properties that a value may have: one that a schema does not allow excludes the value.
    pub names: &'a [&'a str],
    /// Values that may still be written.
    pub left: &'a mut Budget,
}

/// What may still be written.
pub struct Budget(pub usize);

impl Budget {
    /// Whether `cost` was left.
    pub fn spend(&mut self, cost: usize) -> bool {
        let left = self.0.checked_sub(cost);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }
}

/// The values inside, and 16 bytes of a text for one.
pub fn size(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() / 16 + size(value)).sum::<usize>() + 1,
        Value::Array(items) => items.iter().map(size).sum::<usize>() + 1,
        Value::String(text) => text.len() / 16 + 1,
        _ => 1,
    }
}

impl Complement<'_> {
    pub fn of(&mut self, schema: &Value) -> Outside {
        self.schema(schema, DEEPEST)
    }

    fn schema(&mut self, schema: &Value, depth: usize) -> Outside {
        match schema {
            Value::Bool(true) => Outside::exact(Vec::new()),
            Value::Bool(false) => Outside::exact(vec![Value::Bool(true)]),
            // With an `$id`, references lead elsewhere.
            Value::Object(fields) if depth > 0 && !(fields.contains_key("$id") && has_reference(schema)) => {
                let mut names: Vec<&String> = fields.keys().collect();
                names.sort_by_key(|name| rank(name));
                names.into_iter().fold(Outside::exact(Vec::new()), |all, name| {
                    let value = &fields[name];
                    let cost = match (name.as_str(), value) {
                        ("not" | "if" | "enum" | "const", value) => size(value), // copied, or compared with each other
                        ("prefixItems" | "items", Value::Array(items)) => items.len() * items.len() / 2,
                        ("required", Value::Array(names)) => names.len(),
                        _ => 0,
                    };
                    if !self.left.spend(4 + cost) {
                        return all.or(Outside::unknown());
                    }
                    all.or(self.keyword(fields, name, value, depth - 1))
                })
            }
            _ => Outside::unknown(),
        }
    }

    fn keyword(&mut self, fields: &Object, name: &str, value: &Value, depth: usize) -> Outside {
        let one = |schema: Value| Outside::exact(vec![schema]);
        match (name, value) {
            ("required", Value::Array(names)) => {
                let absent = |name: &str| json!({ "type": "object", "properties": { name: false } });
                Outside::exact(names.iter().filter_map(Value::as_str).map(absent).collect())
            }
            ("const", value) => values(std::slice::from_ref(value)),
            ("enum", Value::Array(all)) => values(all),
            ("type", Value::String(kind)) => types(&[kind]),
            ("type", Value::Array(kinds)) => types(&kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>()),
            ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", bound)
                if bound.as_f64().is_some_and(|bound| bound.abs() >= MOST_EXACT) =>
            {
                Outside::unknown() // it may have been rounded
            }
            ("minimum", Value::Number(least)) => one(json!({ "type": "number", "exclusiveMaximum": least })),
            ("maximum", Value::Number(most)) => one(json!({ "type": "number", "exclusiveMinimum": most })),
            ("exclusiveMinimum", Value::Number(bound)) => one(json!({ "type": "number", "maximum": bound })),
            ("exclusiveMaximum", Value::Number(bound)) => one(json!({ "type": "number", "minimum": bound })),
            ("minLength" | "minItems" | "maxLength" | "maxItems", count) => {
                let (kind, least, most) = match name {
                    "minLength" | "maxLength" => ("string", "minLength", "maxLength"),
                    _ => ("array", "minItems", "maxItems"),
                };
                match count.as_u64() {
                    Some(0) if name == least => Outside::exact(Vec::new()),
                    Some(count) if name == least => one(json!({ "type": kind, most: count - 1 })),
                    Some(u64::MAX) => Outside::exact(Vec::new()),
                    Some(count) => one(json!({ "type": kind, least: count + 1 })),
                    None => Outside::unknown(),
                }
            }
            ("minProperties", least) => match least.as_u64() {
                None => Outside::unknown(),
                Some(0) => Outside::exact(Vec::new()),
                Some(least) => {
                    let none = json!({ "type": "object", "additionalProperties": false });
                    Outside { options: vec![none], is_exact: least == 1 }
                }
            },
            ("properties", Value::Object(inner)) => {
                let mut inner: Vec<(&String, &Value)> = inner.iter().collect();
                let has_values = |schema: &Value| schema.get("const").is_some() || schema.get("enum").is_some();
                inner.sort_by_key(|(_, schema)| !has_values(schema)); // a discriminator first
                inner.into_iter().fold(Outside::exact(Vec::new()), |all, (name, schema)| {
                    let wrong = self.schema(schema, depth);
                    let object = |wrong: Value| with(name, wrong);
                    all.or(wrong.inside(object))
                })
            }
            ("items" | "prefixItems", Value::Array(inner)) => {
                inner.iter().enumerate().fold(Outside::exact(Vec::new()), |all, (place, schema)| {
                    let array = |wrong: Value| {
                        let items: Vec<Value> = std::iter::repeat_n(Value::Bool(true), place).chain([wrong]).collect();
                        list([("items", Value::Array(items)), ("minItems", (place + 1).into())])
                    };
                    all.or(self.schema(schema, depth).inside(array))
                })
            }
            ("items", schema) if !fields.contains_key("prefixItems") => {
                // The first item is wrong; another one could be.
                let wrong = self.schema(schema, depth);
                let is_exact = wrong.is_exact && wrong.options.is_empty();
                let array = |wrong: Value| list([("items", Value::Array(vec![wrong])), ("minItems", 1.into())]);
                Outside { is_exact, ..wrong.inside(array) }
            }
            ("contains", schema) if !fields.contains_key("minContains") && !fields.contains_key("maxContains") => {
                let wrong = self.schema(schema, depth);
                let empty = json!({ "type": "array", "maxItems": 0 });
                let is_exact = wrong.is_exact;
                let found = wrong.inside(|wrong| list([("items", wrong)]));
                if found.options.is_empty() {
                    Outside { options: vec![empty], is_exact }
                } else {
                    found
                }
            }
            ("allOf", Value::Array(inner)) => {
                inner.iter().fold(Outside::exact(Vec::new()), |all, schema| all.or(self.schema(schema, depth)))
            }
            ("anyOf" | "oneOf", Value::Array(inner)) => {
                let all = inner.iter().map(|schema| self.schema(schema, depth));
                let none = all.reduce(Outside::and).unwrap_or_else(|| Outside::exact(vec![Value::Bool(true)]));
                Outside { is_exact: none.is_exact && name == "anyOf", ..none } // or several options fit
            }
            ("not", schema) => one(schema.clone()),
            ("$ref", Value::String(target)) => match find(self.root, target) {
                Some(schema) => self.schema(schema, depth),
                None => Outside::unknown(),
            },
            ("if", condition) => {
                let mut branch = |name: &str| match fields.get(name) {
                    Some(schema) => self.schema(schema, depth),
                    None => Outside::exact(Vec::new()),
                };
                let (wrong_then, wrong_else) = (branch("then"), branch("else"));
                let unless = self.schema(condition, depth);
                let then = wrong_then.inside(|wrong| both(condition.clone(), wrong));
                then.or(unless.and(wrong_else))
            }
            ("dependentRequired" | "dependentSchemas" | "dependencies", Value::Object(inner)) => {
                inner.iter().fold(Outside::exact(Vec::new()), |all, (name, needed)| {
                    let given = json!({ "type": "object", "required": [name] });
                    let wrong = match needed {
                        Value::Array(names) if !self.left.spend(names.len()) => Outside::unknown(),
                        Value::Array(_) => self.keyword(fields, "required", needed, depth),
                        schema => self.schema(schema, depth),
                    };
                    all.or(wrong.inside(|wrong| both(given, wrong)))
                })
            }
            ("items" | "contains" | "minContains" | "maxContains", _) => Outside::unknown(),
            ("additionalProperties" | "propertyNames" | "additionalItems", schema) if allows_all(schema) => {
                Outside::exact(Vec::new())
            }
            ("additionalProperties", schema) if !fields.contains_key("patternProperties") => {
                let wrong = self.schema(schema, depth);
                let named = fields.get("properties").and_then(Value::as_object);
                let names = self.names.iter().filter(|name| named.is_none_or(|named| !named.contains_key(**name)));
                let is_exact = wrong.is_exact && wrong.options.is_empty();
                let wrong = any(wrong.options); // nothing, if there are none
                if !self.left.spend(size(&wrong) * self.names.len()) {
                    return Outside::unknown();
                }
                let object = |name: &&str| with(name, wrong.clone());
                Outside { options: names.map(object).collect(), is_exact }
            }
            (name, _) if RESTRICTING.contains(&name) => Outside::unknown(),
            _ => Outside::exact(Vec::new()), // an annotation
        }
    }
}

/// Keywords that are not negated, or only for some of their values.
const RESTRICTING: [&str; 27] = [
    "$dynamicRef",
    "$recursiveRef",
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxProperties",
    "maximum",
    "minimum",
    "multipleOf",
    "oneOf",
    "pattern",
    "patternProperties",
    "properties",
    "propertyNames",
    "required",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// The plainest exclusions first, since only some of many are used.
fn rank(name: &str) -> usize {
    let order = ["required", "additionalProperties", "const", "enum", "properties", "not", "allOf", "$ref"];
    order.iter().position(|other| *other == name).unwrap_or(order.len())
}

const KINDS: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Other types. Numbers with a fraction, which `integer` excludes, have no schema.
fn types(kinds: &[&str]) -> Outside {
    let is_covered = |kind: &&str| kinds.contains(kind) || (*kind == "number" && kinds.contains(&"integer"));
    let others: Vec<&str> = KINDS.into_iter().filter(|kind| !is_covered(kind)).collect();
    let is_exact = kinds.contains(&"number") || !kinds.contains(&"integer");
    let options = if others.is_empty() { Vec::new() } else { vec![json!({ "type": others })] };
    Outside { options, is_exact }
}

/// All values but these. If one of these is an array (or an object), no arrays (or objects) are included.
fn values(all: &[Value]) -> Outside {
    let kinds: BTreeSet<&str> = all.iter().map(kind_of).collect();
    let mut found = Outside::exact(Vec::new());
    if let Some(pattern) = kinds.contains("string").then(|| pattern_except(all.iter().filter_map(Value::as_str))) {
        found = found.or(match pattern {
            Some(pattern) => Outside::exact(vec![json!({ "type": "string", "pattern": pattern })]),
            None => Outside::unknown(),
        });
    }
    if kinds.contains("number") {
        found = found.or(numbers_except(all.iter().filter(|value| value.is_number())));
    }
    if kinds.contains("boolean") {
        let others = [true, false].map(Value::Bool).into_iter().filter(|value| !all.contains(value));
        found = found.or(Outside::exact(others.map(|value| json!({ "enum": [value] })).collect()));
    }
    found.is_exact &= !kinds.contains("array") && !kinds.contains("object");
    found.or(types(&kinds.into_iter().collect::<Vec<_>>()))
}

/// The numbers between these, below and above.
fn numbers_except<'a>(all: impl Iterator<Item = &'a Value>) -> Outside {
    let mut sorted: Vec<&Value> = all.collect();
    sorted.sort_by(|a, b| a.as_f64().unwrap_or_default().total_cmp(&b.as_f64().unwrap_or_default()));
    sorted.dedup_by(|a, b| is_same(a, b));
    let is_large = |value: &&Value| value.as_f64().is_none_or(|number| number.abs() >= MOST_EXACT);
    if sorted.is_empty() || sorted.len() > MOST_EXCEPTIONS || sorted.iter().any(is_large) {
        return Outside::unknown();
    }
    let mut options = vec![json!({ "type": "number", "exclusiveMaximum": sorted[0] })];
    for pair in sorted.windows(2) {
        options.push(json!({ "type": "number", "exclusiveMinimum": pair[0], "exclusiveMaximum": pair[1] }));
    }
    options.push(json!({ "type": "number", "exclusiveMinimum": sorted[sorted.len() - 1] }));
    Outside::exact(vec![any(options)])
}

/// A regular expression of all other texts: each differs from these after a common prefix. None if it is too long.
fn pattern_except<'a>(all: impl Iterator<Item = &'a str>) -> Option<String> {
    let texts: BTreeSet<&str> = all.collect();
    let mut next: BTreeMap<&str, BTreeSet<char>> = BTreeMap::new(); // characters behind each beginning of one of these
    for text in &texts {
        for (place, character) in text.char_indices() {
            next.entry(&text[..place]).or_default().insert(character);
        }
        next.entry(text).or_default();
    }
    if texts.iter().any(|text| text.contains(char::is_control)) {
        return None; // the compiler may leave them out
    }
    let escaped = |character: char| match character {
        '<' | '>' | ' ' => character.to_string(),
        _ if character.is_ascii_punctuation() => format!("\\{character}"),
        _ => character.to_string(),
    };
    let mut options = Vec::new();
    let mut bytes = 0;
    for (beginning, characters) in next {
        let beginning_escaped: String = beginning.chars().map(escaped).collect();
        let class: String = characters.iter().copied().map(escaped).collect();
        let others = match characters.is_empty() {
            true => "(?s:.)+".to_owned(),
            false => format!("[^{class}](?s:.)*"),
        };
        let rest = if texts.contains(beginning) { others } else { format!("(?:{others})?") };
        bytes += beginning_escaped.len() + rest.len();
        if bytes > MOST_PATTERN_BYTES {
            return None;
        }
        options.push(beginning_escaped + &rest);
    }
    Some(format!("^(?:{})$", options.join("|")))
}
