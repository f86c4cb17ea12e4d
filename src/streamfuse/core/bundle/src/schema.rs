//! The manifest's published schema: the few words of JSON Schema that pydantic writes, with its sentences. A test of
//! tests/unit/test_bundle_library.py fails where the schema uses another one.

use std::cmp::Ordering;
use std::sync::OnceLock;

use regex::Regex;

use crate::json::{Json, Object};

/// The one truth about fields, which Python's reader writes (`make schema`).
pub fn manifest_schema() -> &'static Json {
    static SCHEMA: OnceLock<Json> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        Json::parse(include_str!("../../../../../docs/manifest.schema.json")).expect("the published schema is JSON")
    })
}

/// Every problem of `value`, as `field.path: reason`, in the order of the schema. Defaults are filled in.
pub fn problems(root: &Json, value: &mut Json) -> Vec<String> {
    let mut found = Vec::new();
    Checker { root, found: &mut found }.check(root, value, "");
    found
}

struct Checker<'a> {
    root: &'a Json,
    found: &'a mut Vec<String>,
}

impl Checker<'_> {
    fn wrong(&mut self, place: &str, reason: &str) {
        self.found.push(if place.is_empty() { reason.to_owned() } else { format!("{place}: {reason}") });
    }

    fn check(&mut self, schema: &Json, value: &mut Json, place: &str) {
        if let Some(name) = schema.get("$ref").and_then(Json::text) {
            let name = name.strip_prefix("#/$defs/").expect("references are local");
            let root = self.root;
            return self.check(&root.get("$defs").expect("there are $defs")[name], value, place);
        }
        if let Some(choices) = schema.get("anyOf").and_then(Json::list) {
            // Only `X or null` is written.
            if *value != Json::Null {
                self.check(&choices[0], value, place);
            }
            return;
        }
        if let Some(expected) = schema.get("const") {
            if value != expected {
                self.wrong(place, &format!("Input should be {expected}"));
            }
            return;
        }
        if let Some(choices) = schema.get("enum").and_then(Json::list) {
            if !choices.contains(value) {
                self.wrong(place, &format!("Input should be {}", listed(choices)));
            }
            return;
        }
        match schema.get("type").and_then(Json::text).expect("every schema has a type") {
            "object" => self.object(schema, value, place),
            "array" => match value {
                Json::List(items) => {
                    for (i, item) in items.iter_mut().enumerate() {
                        self.check(&schema["items"], item, &below(place, &i.to_string()));
                    }
                }
                _ => self.wrong(place, "Input should be a valid array"),
            },
            "string" => match value {
                Json::Text(text) => self.text(schema, text, place),
                _ => self.wrong(place, "Input should be a valid string"),
            },
            "integer" => match value {
                Json::Whole(_) => self.range(schema, value, place),
                _ => self.wrong(place, "Input should be a valid integer"),
            },
            "number" => match value {
                Json::Whole(_) | Json::Real(_) => self.range(schema, value, place),
                _ => self.wrong(place, "Input should be a valid number"),
            },
            "boolean" if !matches!(value, Json::Bool(_)) => self.wrong(place, "Input should be a valid boolean"),
            "boolean" => (),
            other => unreachable!("the schema uses the type {other}"),
        }
    }

    fn object(&mut self, schema: &Json, value: &mut Json, place: &str) {
        let Json::Object(fields) = value else {
            return self.wrong(place, "Input should be an object");
        };
        let none = Object::new();
        let properties = schema.get("properties").and_then(Json::object).unwrap_or(&none);
        for (name, inner) in properties {
            match (fields.get_mut(name), inner.get("default")) {
                (Some(field), _) => self.check(inner, field, &below(place, name)),
                (None, Some(default)) => {
                    fields.insert(name.clone(), default.clone());
                }
                (None, None) => self.wrong(&below(place, name), "Field required"),
            }
        }
        let others = fields.iter_mut().filter(|(name, _)| !properties.contains_key(*name));
        match schema.get("additionalProperties") {
            Some(inner @ Json::Object(_)) => {
                for (name, field) in others {
                    self.check(inner, field, &below(place, name));
                }
            }
            _ => {
                for (name, _) in others {
                    self.wrong(&below(place, name), "Extra inputs are not permitted");
                }
            }
        }
    }

    fn text(&mut self, schema: &Json, text: &str, place: &str) {
        if let Some(least) = schema.get("minLength").and_then(Json::whole) {
            if (text.chars().count() as i128) < least {
                self.wrong(place, &format!("String should have at least {least} character{}", plural(least)));
            }
        }
        if let Some(most) = schema.get("maxLength").and_then(Json::whole) {
            if (text.chars().count() as i128) > most {
                self.wrong(place, &format!("String should have at most {most} character{}", plural(most)));
            }
        }
        if let Some(pattern) = schema.get("pattern").and_then(Json::text) {
            if !Regex::new(pattern).expect("the schema's patterns are valid").is_match(text) {
                self.wrong(place, &format!("String should match pattern '{pattern}'"));
            }
        }
    }

    fn range(&mut self, schema: &Json, number: &Json, place: &str) {
        type Rule = (&'static str, &'static str, fn(Ordering) -> bool);
        const RULES: [Rule; 3] = [
            ("maximum", "less than or equal to", Ordering::is_le),
            ("minimum", "greater than or equal to", Ordering::is_ge),
            ("exclusiveMinimum", "greater than", Ordering::is_gt),
        ];
        for (word, relation, holds) in RULES {
            if let Some(bound) = schema.get(word) {
                if !compare(number, bound).is_some_and(holds) {
                    let bound = bound.number().unwrap_or_default();
                    return self.wrong(place, &format!("Input should be {relation} {bound}"));
                }
            }
        }
    }
}

/// Whole numbers exactly, others as doubles.
fn compare(a: &Json, b: &Json) -> Option<Ordering> {
    match (a, b) {
        (Json::Whole(a), Json::Whole(b)) => Some(a.cmp(b)),
        _ => a.number()?.partial_cmp(&b.number()?),
    }
}

impl std::ops::Index<&str> for Json {
    type Output = Json;

    /// A field that the schema says is there.
    fn index(&self, name: &str) -> &Json {
        self.get(name).unwrap_or_else(|| panic!("there is no {name}"))
    }
}

fn below(place: &str, name: &str) -> String {
    if place.is_empty() {
        name.to_owned()
    } else {
        format!("{place}.{name}")
    }
}

fn plural(count: i128) -> &'static str {
    if count == 1 {
        ""
    } else {
        "s"
    }
}

/// `'a', 'b' or 'c'`
fn listed(choices: &[Json]) -> String {
    let words: Vec<String> = choices.iter().map(Json::to_string).collect();
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => words.join(""),
    }
}
