//! `propertyNames`, `unevaluatedProperties`, and the number of properties.

use std::collections::BTreeSet;

use serde_json::{json, Map, Value};

use super::{Expander, APPLYING};
use crate::constraint::disjoint::compiled;
use crate::constraint::limits::MOST_COMBINED;
use crate::constraint::outside::any;
use crate::constraint::schema::{allows_all, at, moved, wrong};
use crate::error::Result;

type Object = Map<String, Value>;

const OPEN: &str = "additionalProperties";
const PATTERN_COST: usize = 500; // in values

/// Choices of properties times properties: a parser that follows more of them at once would meet its limit.
const MOST_PRESENT: usize = 2500;
const MOST_ABSENT: usize = 1000;

enum Names {
    Any,
    Listed(Vec<String>),
    Matching(String),
}

impl Expander<'_> {
    /// `propertyNames`: names or a pattern beside which there are no others.
    pub(super) fn restrict_names(&mut self, fields: &mut Object, path: &str) -> Result<()> {
        let Some(given) = fields.shift_remove("propertyNames") else { return Ok(()) };
        let unknown = || {
            let reason =
                "names can be restricted by enum, const or pattern, or by minLength and maxLength, and not beside \
                          patternProperties; with a pattern or a length, names in properties must be ASCII, and must not \
                          match it if additionalProperties has a schema";
            wrong(&at(path, "propertyNames"), reason)
        };
        let names = names(&self.resolved(&given)).ok_or_else(unknown)?;
        let others = moved(fields.get(OPEN).cloned().unwrap_or(Value::Bool(true)), &at(path, OPEN));
        let mut named = match fields.get("properties") {
            Some(Value::Object(named)) => named.clone(),
            _ => Object::new(),
        };
        if has_patterns(fields) {
            return Err(unknown());
        }
        match names {
            Names::Any => return Ok(()),
            Names::Listed(listed) => {
                exclude(&mut named, |name| listed.iter().any(|other| other == name));
                if others != Value::Bool(false) {
                    for name in listed {
                        if !named.contains_key(&name) {
                            named.insert(name, self.copied(&others, &at(path, "propertyNames"))?);
                        }
                    }
                }
            }
            Names::Matching(pattern) => {
                self.spend(PATTERN_COST, &at(path, "propertyNames"))?;
                let compiled = compiled(&pattern).ok_or_else(unknown)?;
                let is_clear = |name: &String| {
                    // `\w` is that of Unicode here, and what the pattern says of a name is joined with its own schema.
                    name.is_ascii() && (allows_all(&others) || !compiled.is_match(name))
                };
                if !named.keys().all(is_clear) {
                    return Err(unknown());
                }
                exclude(&mut named, |name| compiled.is_match(name));
                if others != Value::Bool(false) {
                    fields.insert("patternProperties".to_owned(), json!({ pattern: others }));
                }
            }
        }
        fields.shift_remove(OPEN);
        fields.insert("properties".to_owned(), Value::Object(named));
        fields.insert(OPEN.to_owned(), Value::Bool(false));
        Ok(())
    }
}

fn has_patterns(fields: &Object) -> bool {
    fields.get("patternProperties").and_then(Value::as_object).is_some_and(|all| !all.is_empty())
}

/// The names that a schema of `propertyNames` allows; None if they are neither a list nor one pattern.
fn names(schema: &Value) -> Option<Names> {
    let rules = match schema {
        Value::Bool(true) => return Some(Names::Any),
        Value::Bool(false) => return Some(Names::Listed(Vec::new())),
        schema => schema.as_object()?,
    };
    let mut found = Names::Any;
    let mut length = None;
    for (name, value) in rules {
        let next = match (name.as_str(), value) {
            ("enum", Value::Array(all)) => {
                Names::Listed(all.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            }
            ("const", value) => Names::Listed(value.as_str().map(str::to_owned).into_iter().collect()),
            ("pattern", Value::String(pattern)) => Names::Matching(pattern.clone()),
            ("minLength" | "maxLength", count) => {
                let (least, most) = length.get_or_insert((0, None));
                if name == "minLength" {
                    *least = count.as_u64()?;
                } else {
                    *most = Some(count.as_u64()?);
                }
                continue;
            }
            ("type", kind) if kind == "string" => continue,
            ("title" | "description" | "default" | "examples" | "$comment", _) => continue,
            _ => return None,
        };
        if !matches!(found, Names::Any) {
            return None;
        }
        found = next;
    }
    match (found, length) {
        (found, None) => Some(found),
        (Names::Any, Some((least, most))) => {
            let most = most.map(|most| most.to_string()).unwrap_or_default();
            Some(Names::Matching(format!("^(?s:.){{{least},{most}}}$")))
        }
        _ => None,
    }
}

/// No value has a property whose name is not allowed.
fn exclude(named: &mut Object, is_allowed: impl Fn(&str) -> bool) {
    named.iter_mut().filter(|(name, _)| !is_allowed(name)).for_each(|(_, schema)| *schema = Value::Bool(false));
}

/// `unevaluatedProperties` where no other schema applies to the value: then it means what `additionalProperties` does.
pub(super) fn close(fields: &mut Object) {
    if !APPLYING.iter().any(|name| fields.contains_key(*name)) {
        if let Some(rest) = fields.shift_remove("unevaluatedProperties") {
            fields.entry(OPEN).or_insert(rest);
        }
    }
}

/// `minProperties` and `maxProperties` where optional properties have names: which of them are there, and which are not.
/// The compiler counts only those without names.
pub(super) fn count(fields: &mut Object, path: &str) -> Result<Vec<Value>> {
    let names = |name: &str| match fields.get(name) {
        Some(Value::Object(inner)) => inner.keys().cloned().collect(),
        Some(Value::Array(inner)) => inner.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    let named: Vec<String> = names("properties");
    let required: BTreeSet<String> = names("required").into_iter().collect();
    let optional: Vec<&String> = named.iter().filter(|name| !required.contains(*name)).collect();
    let mut all = Vec::new();
    if optional.is_empty() {
        return Ok(all);
    }
    let is_open = fields.get(OPEN) != Some(&Value::Bool(false));
    let too_many = |name: &str| {
        wrong(
            &at(path, name),
            format!(
                "more than {MOST_COMBINED} choices of named properties (fewer in large objects), or too few named \
                     properties"
            ),
        )
    };
    if let Some(least) = fields.get("minProperties").and_then(Value::as_u64) {
        let needed = (least as usize).saturating_sub(required.len());
        if needed > 0 {
            let chosen = choices(&optional, needed).filter(|all| all.len() * named.len() <= MOST_PRESENT);
            let chosen = chosen.ok_or_else(|| too_many("minProperties"))?;
            all.push(any(chosen.into_iter().map(|names| json!({ "required": names })).collect()));
        }
        fields.shift_remove("minProperties");
    }
    if let Some(most) = fields.get("maxProperties").and_then(Value::as_u64) {
        let has_other_names = required.iter().any(|name| !named.contains(name)) || has_patterns(fields);
        if has_other_names || APPLYING.iter().any(|name| fields.contains_key(*name)) {
            let reason =
                "not supported beside patternProperties, $ref, allOf, anyOf or oneOf, or with a required name that is \
                          not in properties";
            return Err(wrong(&at(path, "maxProperties"), reason));
        }
        let spare = (most as usize).saturating_sub(required.len());
        let absent = optional.len().saturating_sub(spare);
        if absent > 0 {
            let chosen = choices(&optional, absent).filter(|all| all.len() * named.len() <= MOST_ABSENT);
            let chosen = chosen.ok_or_else(|| too_many("maxProperties"))?;
            let without = |names: Vec<&String>| {
                let absent: Object = names.into_iter().map(|name| (name.clone(), Value::Bool(false))).collect();
                json!({ "properties": absent })
            };
            all.push(any(chosen.into_iter().map(without).collect()));
        }
        if required.len() > most as usize {
            all.push(Value::Bool(false));
        }
        if is_open {
            fields.insert(OPEN.to_owned(), Value::Bool(false));
        }
        fields.shift_remove("maxProperties");
    }
    Ok(all)
}

/// All ways to choose `count` of some; None if they are too many, or if there are fewer.
fn choices<T: Clone>(of: &[T], count: usize) -> Option<Vec<Vec<T>>> {
    let mut all = vec![Vec::new()];
    for (place, item) in of.iter().enumerate() {
        let left = of.len() - place - 1;
        let mut next = Vec::new();
        for chosen in all {
            if chosen.len() < count {
                next.push(chosen.iter().cloned().chain([item.clone()]).collect());
            }
            if chosen.len() + left >= count {
                next.push(chosen);
            }
        }
        if next.len() > MOST_COMBINED {
            return None;
        }
        all = next;
    }
    all.retain(|chosen| chosen.len() == count);
    (!all.is_empty()).then_some(all)
}
