//! Whether the options of a `oneOf` exclude each other, so that it means the same as `anyOf`. The compiler can prove it
//! only of options that are no references. Options with a discriminator usually are, and recursive ones must be.

use serde_json::{Map, Value};

use super::limits::MOST_COMPARED;
use super::schema::{find, wrong};
use crate::error::Result;

type Object = Map<String, Value>;

const DEEPEST: usize = 16; // properties of properties, and options of options
const OBJECT: u8 = 1 << 6;

/// `choices` are the schemas that have a `oneOf`, each with the path of that.
pub fn check<'a>(root: &'a Value, choices: &[(String, &'a Object)]) -> Result<()> {
    let mut prover = Prover { root, left: MOST_COMPARED };
    for (path, fields) in choices {
        if !prover.options_are_disjoint(fields) {
            let reason = "the options are not known to exclude each other, by type or by a constant; use anyOf";
            return Err(wrong(path, reason));
        }
    }
    Ok(())
}

/// What a value has to fit, all of it. Leaving something out is safe: what is left excludes less.
#[derive(Clone)]
struct Demand<'a> {
    kinds: u8,                 // a bit for each type that is allowed
    values: Vec<&'a [Value]>,  // `enum` and `const`
    options: Vec<&'a [Value]>, // `anyOf` and `oneOf`
    objects: Vec<&'a Object>,  // the schemas themselves, for their properties
    targets: Vec<&'a str>,     // of the references among them
}

impl Demand<'_> {
    const ANYTHING: Self =
        Demand { kinds: u8::MAX, values: Vec::new(), options: Vec::new(), objects: Vec::new(), targets: Vec::new() };
}

struct Prover<'a> {
    root: &'a Value,
    left: usize, // steps
}

impl<'a> Prover<'a> {
    fn options_are_disjoint(&mut self, fields: &'a Object) -> bool {
        let Some(Value::Array(options)) = fields.get("oneOf") else { return true };
        let mut beside = Demand::ANYTHING;
        self.add_fields(fields, &mut beside);
        beside.options.retain(|found| !std::ptr::eq(*found, options.as_slice()));
        let demands = options.iter().map(|option| self.narrowed(&beside, option));
        let Some(demands) = demands.collect::<Option<Vec<Demand>>>() else { return false };
        demands
            .iter()
            .enumerate()
            .all(|(place, one)| demands[..place].iter().all(|other| self.excludes(one, other, DEEPEST)))
    }

    fn spend(&mut self, steps: usize) -> bool {
        let left = self.left.checked_sub(steps);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// What fits both a demand and a schema; None where too many steps were taken.
    fn narrowed(&mut self, demand: &Demand<'a>, schema: &'a Value) -> Option<Demand<'a>> {
        if !self.spend(1 + demand.objects.len() + demand.values.len() + demand.options.len()) {
            return None;
        }
        let mut all = demand.clone();
        self.add(schema, &mut all);
        Some(all)
    }

    fn add(&mut self, schema: &'a Value, all: &mut Demand<'a>) {
        match schema {
            Value::Bool(false) => all.kinds = 0,
            Value::Object(fields) => self.add_fields(fields, all),
            _ => (),
        }
    }

    fn add_fields(&mut self, fields: &'a Object, all: &mut Demand<'a>) {
        if !self.spend(1 + all.targets.len()) {
            return;
        }
        all.objects.push(fields);
        match fields.get("type") {
            Some(Value::String(name)) => all.kinds &= kinds_of_type(name),
            Some(Value::Array(names)) => {
                all.kinds &= names.iter().filter_map(Value::as_str).map(kinds_of_type).fold(0, |a, b| a | b);
            }
            _ => (),
        }
        let constant = fields.get("const").map(std::slice::from_ref);
        let values = fields.get("enum").and_then(Value::as_array).map(Vec::as_slice);
        for values in constant.into_iter().chain(values) {
            if self.spend(values.len()) {
                all.kinds &= values.iter().map(kind_of).fold(0, |a, b| a | b);
                all.values.push(values);
            }
        }
        let options = ["anyOf", "oneOf"].into_iter().filter_map(|name| fields.get(name)?.as_array());
        all.options.extend(options.map(Vec::as_slice));
        for inner in fields.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            self.add(inner, all);
        }
        if let Some(target) = fields.get("$ref").and_then(Value::as_str) {
            if !all.targets.contains(&target) {
                all.targets.push(target);
                if let Some(found) = find(self.root, target) {
                    self.add(found, all);
                }
            }
        }
    }

    /// Whether no value is known to fit both.
    fn excludes(&mut self, one: &Demand<'a>, other: &Demand<'a>, depth: usize) -> bool {
        let kinds = one.kinds & other.kinds;
        if kinds == 0 {
            return true;
        }
        if depth == 0 || !self.spend(1) {
            return false;
        }
        for values in &one.values {
            for others in &other.values {
                let is_among = |value: &Value| others.iter().any(|other| is_same(value, other));
                if self.spend(values.len() * others.len()) && !values.iter().any(is_among) {
                    return true;
                }
            }
        }
        if kinds == OBJECT {
            let objects = one.objects.iter().chain(&other.objects);
            let required = objects.filter_map(|fields| fields.get("required")?.as_array()).flatten();
            for name in required.filter_map(Value::as_str) {
                let (one, other) = (self.property(one, name), self.property(other, name));
                if self.excludes(&one, &other, depth - 1) {
                    return true;
                }
            }
        }
        self.options_exclude(one, other, depth - 1) || self.options_exclude(other, one, depth - 1)
    }

    /// Whether all options of some `anyOf` or `oneOf` of a demand exclude another.
    fn options_exclude(&mut self, one: &Demand<'a>, other: &Demand<'a>, depth: usize) -> bool {
        (0..one.options.len()).any(|place| {
            let mut beside = one.clone();
            let options = beside.options.swap_remove(place);
            options.iter().all(|option| {
                self.narrowed(&beside, option).is_some_and(|narrowed| self.excludes(&narrowed, other, depth))
            })
        })
    }

    /// What the value of a property has to fit.
    fn property(&mut self, of: &Demand<'a>, name: &str) -> Demand<'a> {
        let mut all = Demand::ANYTHING;
        for fields in &of.objects {
            let named = fields.get("properties").and_then(|properties| properties.get(name));
            let may_match = fields.contains_key("patternProperties");
            if let Some(schema) = named.or_else(|| fields.get("additionalProperties").filter(|_| !may_match)) {
                self.add(schema, &mut all);
            }
        }
        all
    }
}

fn kinds_of_type(name: &str) -> u8 {
    match name {
        "null" => 1,
        "boolean" => 1 << 1,
        "integer" => 1 << 2,
        "number" => 0b1100, // whole numbers, and those with a fraction
        "string" => 1 << 4,
        "array" => 1 << 5,
        "object" => OBJECT,
        _ => u8::MAX,
    }
}

fn kind_of(value: &Value) -> u8 {
    match value {
        Value::Null => kinds_of_type("null"),
        Value::Bool(_) => kinds_of_type("boolean"),
        Value::Number(_) => kinds_of_type("number"),
        Value::String(_) => kinds_of_type("string"),
        Value::Array(_) => kinds_of_type("array"),
        Value::Object(_) => OBJECT,
    }
}

/// As JSON Schema compares values: 1 and 1.0 are one number.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| is_same(a, b)))
        }
        _ => a == b,
    }
}
