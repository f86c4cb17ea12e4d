//! Keywords that the compiler lacks, written with those that it has: `not`, `if`, `oneOf`, `contains`, `dependentRequired`
//! and others become `anyOf` of what they allow.
//!
//! What is generated fits the schema. Some values that fit cannot be generated: for example, the items that `contains`
//! asks for always come first.

mod arrays;
mod objects;

use std::collections::HashSet;

use serde_json::{json, Map, Value};

use super::disjoint::Prover;
use super::limits::{MOST_CHOICES, MOST_COMBINED, MOST_COMPARED, MOST_OVERLAPS, MOST_REFERENCES, MOST_WRITTEN};
use super::outside::{any, both, size, without, Budget, Complement, Outside};
use super::schema::{allows_all, at, find, moved, origin, pointer, wrong, NO_SCHEMA};
use crate::error::Result;

type Object = Map<String, Value>;

/// Keywords that apply other schemas to the value itself.
const APPLYING: [&str; 7] = ["$ref", "allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas"];

const NO_EXCLUSION: &str =
    "this schema cannot be excluded, for example because of pattern, format, multipleOf, maxProperties, \
                            patternProperties, propertyNames or uniqueItems; describe what is allowed instead";

/// A schema of which `schema::strip` has been called, with such keywords rewritten wherever the compiler looks.
/// `coerced` says that the compiler is to read each `oneOf` as `anyOf`.
pub fn expanded(original: &Value, coerced: bool) -> Result<Value> {
    let mut root = original.clone();
    let (left, seen) = (Budget(MOST_WRITTEN), HashSet::new());
    let mut expander = Expander { original, coerced, steps: MOST_COMPARED, left, targets: vec![String::new()], seen };
    while let Some(target) = expander.targets.pop() {
        if let Some(schema) = root.pointer_mut(&target) {
            let mut taken = schema.take();
            expander.schema(&mut taken, &format!("#{target}"))?;
            if let Some(place) = root.pointer_mut(&target) {
                *place = taken;
            }
        }
    }
    Ok(root)
}

struct Expander<'a> {
    original: &'a Value,
    coerced: bool,
    steps: usize, // to show that schemas exclude each other
    left: Budget,
    targets: Vec<String>,
    seen: HashSet<String>,
}

impl Expander<'_> {
    fn schema(&mut self, schema: &mut Value, path: &str) -> Result<()> {
        let Some(fields) = schema.as_object_mut() else { return Ok(()) };
        let own = origin(fields).map(str::to_owned);
        let path = own.as_deref().unwrap_or(path);
        self.keywords(fields, path)?;
        for (name, value) in fields {
            let path = at(path, name);
            match (name.as_str(), value) {
                ("$ref", Value::String(target)) => self.reference(target, &path)?,
                ("properties" | "patternProperties", Value::Object(inner)) => {
                    inner.iter_mut().try_for_each(|(name, inner)| self.schema(inner, &at(&path, name)))?;
                }
                ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(inner)) => {
                    let mut inner = inner.iter_mut().enumerate();
                    inner.try_for_each(|(place, inner)| self.schema(inner, &at(&path, &place.to_string())))?;
                }
                ("items" | "additionalItems" | "additionalProperties", inner) => self.schema(inner, &path)?,
                _ => (),
            }
        }
        Ok(())
    }

    fn reference(&mut self, target: &str, path: &str) -> Result<()> {
        let Some(target) = pointer(target) else { return Ok(()) };
        if self.original.pointer(target).is_none() {
            return Err(wrong(path, format!("\"#{target}\" leads nowhere"))); // or to what is written here
        }
        if !target.is_empty() && self.seen.len() < MOST_REFERENCES && self.seen.insert(target.to_owned()) {
            self.targets.push(target.to_owned());
        }
        Ok(())
    }

    /// Rewrites the keywords of one schema. What it gets beside them is in `allOf`.
    fn keywords(&mut self, fields: &mut Object, path: &str) -> Result<()> {
        let mut all: Vec<Value> = Vec::new();
        objects::close(fields);
        arrays::close(fields);
        if let Some(inner) = taken(fields, "not", path)? {
            let options = self.outside(fields, &[], &inner).ok_or_else(|| wrong(&at(path, "not"), NO_EXCLUSION))?;
            all.push(any(options));
        }
        if let Some(condition) = taken(fields, "if", path)? {
            let mut branch = |name: &str| taken(fields, name, path).map(|branch| branch.unwrap_or(Value::Bool(true)));
            let (then, otherwise) = (branch("then")?, branch("else")?);
            let unless = self.outside(fields, &[], &condition).ok_or_else(|| wrong(&at(path, "if"), NO_EXCLUSION))?;
            all.push(any(vec![both(condition, then), both(any(unless), otherwise)]));
        }
        for name in ["dependentRequired", "dependentSchemas", "dependencies"] {
            if fields.get(name).is_some_and(Value::is_object) {
                let Some(Value::Object(inner)) = fields.shift_remove(name) else { continue };
                all.extend(dependencies(fields, inner, &at(path, name)));
            }
        }
        if !self.coerced {
            all.extend(self.one_of(fields, path)?);
        }
        all.extend(objects::count(fields, path)?);
        self.restrict_names(fields, path)?;
        self.contain(fields, path)?;
        all.extend(self.keep_apart(fields, path)?);
        if combinations(&all) > MOST_COMBINED {
            let reason = format!(
                "not, if, oneOf, dependencies, minProperties and maxProperties of one value have more than \
                     {MOST_COMBINED} combinations; use fewer of them"
            );
            return Err(wrong(path, reason));
        }
        if !all.is_empty() {
            match fields.entry("allOf").or_insert_with(|| Value::Array(Vec::new())) {
                Value::Array(given) => given.extend(all),
                _ => return Err(wrong(&at(path, "allOf"), "must be a list")),
            }
        }
        Ok(())
    }

    /// A value for another place.
    fn copied(&mut self, value: &Value, path: &str) -> Result<Value> {
        self.spend(size(value), path)?;
        Ok(value.clone())
    }

    fn spend(&mut self, cost: usize, path: &str) -> Result<()> {
        if self.left.spend(cost) {
            return Ok(());
        }
        let reason = format!(
            "rewriting the schema's keywords that the compiler lacks takes more than {MOST_WRITTEN} values; make the \
             schema smaller"
        );
        Err(wrong(path, reason))
    }

    /// Schemas of values that fit `fields` and `others` but not `schema`, perhaps not of all; None if there may be such
    /// values and none can be written.
    fn outside(&mut self, fields: &Object, others: &[&Value], schema: &Value) -> Option<Vec<Value>> {
        let mut prover = Prover::new(self.original, self.steps);
        let mut beside = prover.of(fields);
        for other in others {
            beside = prover.narrowed(&beside, other).unwrap_or(beside);
        }
        let names = beside.names(MOST_CHOICES);
        let mut complement = Complement { root: self.original, names: &names, left: &mut self.left };
        let Outside { options, is_exact } = complement.of(schema);
        let mut prover = Prover::new(self.original, prover.left());
        let possible = options.iter().filter(|option| !prover.excluded(&beside, option));
        let kept: Vec<Value> = possible.take(MOST_CHOICES).cloned().collect();
        self.steps = prover.left();
        (is_exact || !kept.is_empty()).then_some(kept)
    }

    /// A `oneOf` whose options are not known to exclude each other: one option, and none of the others.
    fn one_of(&mut self, fields: &mut Object, path: &str) -> Result<Option<Value>> {
        let Some(Value::Array(options)) = fields.get("oneOf") else { return Ok(None) };
        let overlaps = {
            let mut prover = Prover::new(self.original, self.steps);
            let found = prover.overlaps(fields, options, MOST_OVERLAPS);
            self.steps = prover.left();
            found
        };
        if overlaps.is_empty() {
            return Ok(None); // the compiler may read it as `anyOf`
        }
        let path = at(path, "oneOf");
        let unclear = || {
            wrong(
                &path,
                "two options may accept the same value, which cannot be excluded; use anyOf, or tell the options apart by \
                 type, a constant property or required properties",
            )
        };
        if overlaps.len() > MOST_OVERLAPS {
            return Err(unclear());
        }
        self.spend(fields.values().map(size).sum(), &path)?;
        let mut beside = fields.clone();
        beside.shift_remove("oneOf");
        let mut alone = Vec::new();
        'options: for (place, option) in options.iter().enumerate() {
            let mut parts = vec![moved(option.clone(), &at(&path, &place.to_string()))];
            for &(one, other) in &overlaps {
                let rival = match place {
                    _ if place == one => other,
                    _ if place == other => one,
                    _ => continue,
                };
                let outside = self.outside(&beside, &[option], &options[rival]).ok_or_else(unclear)?;
                if outside.is_empty() {
                    continue 'options; // what fits this one fits the other too
                }
                parts.push(any(outside));
            }
            if combinations(&parts) > MOST_COMBINED {
                return Err(unclear());
            }
            alone.push(if parts.len() == 1 { parts.swap_remove(0) } else { json!({ "allOf": parts }) });
        }
        fields.shift_remove("oneOf");
        Ok(Some(any(alone)))
    }

    /// What a schema that is only a reference leads to.
    fn resolved(&self, schema: &Value) -> Value {
        let mut found = schema;
        for _ in 0..MOST_CHOICES {
            let is_bare =
                |fields: &Object| fields.keys().all(|name| ["$ref", "title", "description"].contains(&name.as_str()));
            let target =
                found.as_object().filter(|fields| is_bare(fields)).and_then(|fields| fields.get("$ref")?.as_str());
            match target.and_then(|target| find(self.original, target)) {
                Some(inner) => found = inner,
                None => break,
            }
        }
        found.clone()
    }
}

/// A keyword that is written in another way, a schema.
fn taken(fields: &mut Object, name: &str, path: &str) -> Result<Option<Value>> {
    let path = at(path, name);
    match fields.shift_remove(name) {
        Some(schema @ (Value::Bool(_) | Value::Object(_))) => Ok(Some(moved(schema, &path))),
        Some(_) => Err(wrong(&path, NO_SCHEMA)),
        None => Ok(None),
    }
}

/// `dependentRequired` and the like: without the property, or with what it needs.
fn dependencies(fields: &Object, inner: Object, path: &str) -> Vec<Value> {
    let is_object = fields.get("type").is_some_and(|kind| kind == "object");
    let is_required = |name: &str| {
        let mut required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
        is_object && required.any(|other| other == name)
    };
    let mut all = Vec::new();
    for (name, needed) in inner {
        let with = match needed {
            Value::Array(names) if names.is_empty() => continue,
            Value::Array(names) => json!({ "required": names }),
            schema if allows_all(&schema) => continue,
            schema => moved(schema, &at(path, &name)),
        };
        all.push(match is_required(&name) {
            true => with,
            false => any(vec![without(&name), both(json!({ "required": [name] }), with)]),
        });
    }
    all
}

/// In how many ways an option can be chosen of each.
fn combinations(all: &[Value]) -> usize {
    let options = |schema: &Value| schema.get("anyOf").and_then(Value::as_array).map_or(1, Vec::len);
    all.iter().map(options).fold(1, usize::saturating_mul)
}
