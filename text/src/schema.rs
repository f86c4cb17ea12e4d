//! Validates against the manifest's published schema: the keywords of JSON Schema that pydantic writes, with pydantic's
//! messages. A test of tests/text/test_bundle_library.py fails if the schema uses another keyword.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

use regex::Regex;

use crate::json::{Json, Object};

/// The definition of all fields, generated from Python's types (`make schema`).
pub fn manifest_schema() -> &'static Json {
    static SCHEMA: OnceLock<Json> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        Json::parse(include_str!("../../docs/manifest.schema.json")).expect("the published schema is JSON")
    })
}

/// The problems of a value.
#[derive(Default)]
pub struct Problems {
    pub first: Option<String>, // field.path: reason
    pub others: usize,
}

/// Validates `value` and fills in defaults. Problems are in the order of the schema; there may be one per value.
pub fn problems(root: &'static Json, value: &mut Json) -> Problems {
    let mut checker = Checker { root, patterns: HashMap::new(), found: Problems::default() };
    checker.check(root, value, &Place::Root);
    checker.found
}

/// The location of a value: the names and indices that lead to it.
enum Place<'a> {
    Root,
    Name(&'a Place<'a>, &'a str),
    Item(&'a Place<'a>, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let (outer, part) = match self {
            Place::Root => return Ok(()),
            Place::Name(outer, name) => (outer, (*name).to_owned()),
            Place::Item(outer, number) => (outer, number.to_string()),
        };
        match outer {
            Place::Root => write!(out, "{part}"),
            outer => write!(out, "{outer}.{part}"),
        }
    }
}

struct Checker {
    root: &'static Json,
    patterns: HashMap<&'static str, Regex>,
    found: Problems,
}

impl Checker {
    fn wrong(&mut self, place: &Place, reason: impl fmt::Display) {
        if self.found.first.is_some() {
            self.found.others += 1;
            return;
        }
        self.found.first = Some(match place {
            Place::Root => reason.to_string(),
            place => format!("{place}: {reason}"),
        });
    }

    fn check(&mut self, schema: &'static Json, value: &mut Json, place: &Place) {
        if let Some(name) = schema.get("$ref").and_then(Json::text) {
            let name = name.strip_prefix("#/$defs/").expect("references are local");
            return self.check(&self.root.get("$defs").expect("there are $defs")[name], value, place);
        }
        if let Some(choices) = schema.get("anyOf").and_then(Json::list) {
            // pydantic only writes the form `X or null`.
            if *value != Json::Null {
                self.check(&choices[0], value, place);
            }
            return;
        }
        if let Some(expected) = schema.get("const") {
            if value != expected {
                self.wrong(place, format_args!("Input should be {expected}"));
            }
            return;
        }
        if let Some(choices) = schema.get("enum").and_then(Json::list) {
            if !choices.contains(value) {
                self.wrong(place, format_args!("Input should be {}", Choices(choices)));
            }
            return;
        }
        match schema.get("type").and_then(Json::text).expect("every schema has a type") {
            "object" => self.object(schema, value, place),
            "array" => match value {
                Json::List(items) => {
                    for (i, item) in items.iter_mut().enumerate() {
                        self.check(&schema["items"], item, &Place::Item(place, i));
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

    fn object(&mut self, schema: &'static Json, value: &mut Json, place: &Place) {
        static NONE: OnceLock<Object> = OnceLock::new();
        let Json::Object(fields) = value else {
            return self.wrong(place, "Input should be an object");
        };
        let properties =
            schema.get("properties").and_then(Json::object).unwrap_or_else(|| NONE.get_or_init(Object::new));
        for (name, inner) in properties {
            match (fields.get_mut(name), inner.get("default")) {
                (Some(field), _) => self.check(inner, field, &Place::Name(place, name)),
                (None, Some(default)) => {
                    fields.insert(name.clone(), default.clone());
                }
                (None, None) => self.wrong(&Place::Name(place, name), "Field required"),
            }
        }
        if let Some(most) = schema.get("maxProperties").and_then(Json::whole) {
            let count = fields.len();
            if count as i128 > most {
                return self.wrong(
                    place,
                    format_args!("Dictionary should have at most {most} items after validation, not {count}"),
                );
            }
        }
        let others = fields.iter_mut().filter(|(name, _)| !properties.contains_key(*name));
        match schema.get("additionalProperties") {
            Some(inner @ Json::Object(_)) => {
                let names = schema.get("propertyNames");
                for (name, field) in others {
                    let place = Place::Name(place, name);
                    if let Some(names) = names {
                        self.text(names, name, &Place::Name(&place, "[key]"));
                    }
                    self.check(inner, field, &place);
                }
            }
            _ => {
                for (name, _) in others {
                    self.wrong(&Place::Name(place, name), "Extra inputs are not permitted");
                }
            }
        }
    }

    fn text(&mut self, schema: &'static Json, text: &str, place: &Place) {
        if let Some(least) = schema.get("minLength").and_then(Json::whole) {
            if (text.chars().count() as i128) < least {
                self.wrong(place, format_args!("String should have at least {least} character{}", plural(least)));
            }
        }
        if let Some(most) = schema.get("maxLength").and_then(Json::whole) {
            if (text.chars().count() as i128) > most {
                self.wrong(place, format_args!("String should have at most {most} character{}", plural(most)));
            }
        }
        if let Some(pattern) = schema.get("pattern").and_then(Json::text) {
            let compile = || Regex::new(pattern).expect("the schema's patterns are valid");
            if !self.patterns.entry(pattern).or_insert_with(compile).is_match(text) {
                self.wrong(place, format_args!("String should match pattern '{pattern}'"));
            }
        }
    }

    fn range(&mut self, schema: &'static Json, number: &Json, place: &Place) {
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
                    return self.wrong(place, format_args!("Input should be {relation} {bound}"));
                }
            }
        }
    }
}

/// Compares integers exactly, other numbers as doubles.
fn compare(a: &Json, b: &Json) -> Option<Ordering> {
    match (a, b) {
        (Json::Whole(a), Json::Whole(b)) => Some(a.cmp(b)),
        _ => a.number()?.partial_cmp(&b.number()?),
    }
}

impl std::ops::Index<&str> for Json {
    type Output = Json;

    /// A field that the schema guarantees.
    fn index(&self, name: &str) -> &Json {
        self.get(name).unwrap_or_else(|| panic!("there is no {name}"))
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
struct Choices<'a>(&'a [Json]);

impl fmt::Display for Choices<'_> {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        for (i, choice) in self.0.iter().enumerate() {
            let separator = match i {
                0 => "",
                _ if i + 1 == self.0.len() => " or ",
                _ => ", ",
            };
            write!(out, "{separator}{choice}")?;
        }
        Ok(())
    }
}
