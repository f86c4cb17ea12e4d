//! Which schemas are known to exclude each other. If all options of a `oneOf` do, it means the same as `anyOf`. The compiler
//! can prove it only of options that are no references. Options with a discriminator usually are, and recursive ones must
//! be.

use serde_json::{Map, Value};

use super::schema::find;

type Object = Map<String, Value>;

const DEEPEST: usize = 16; // properties of properties, and options of options
const OBJECT: u8 = 1 << 6;
const MOST_TEXTS: usize = 100; // that are compared with patterns
const MOST_COMPILED: usize = 1 << 17; // bytes
const PATTERN_STEPS: usize = 1000; // what that may take

/// What a value has to fit, all of it. Leaving something out is safe: what is left excludes less.
#[derive(Clone)]
pub struct Demand<'a> {
    kinds: u8,                 // a bit for each type that is allowed
    values: Vec<&'a [Value]>,  // `enum` and `const`
    options: Vec<&'a [Value]>, // `anyOf` and `oneOf`
    objects: Vec<&'a Object>,  // the schemas themselves, for their properties
    targets: Vec<&'a str>,     // of the references among them
}

impl<'a> Demand<'a> {
    const ANYTHING: Self =
        Demand { kinds: u8::MAX, values: Vec::new(), options: Vec::new(), objects: Vec::new(), targets: Vec::new() };

    /// The first properties that it names, those that are required in front.
    pub fn names(&self, most: usize) -> Vec<&'a str> {
        let required = self.objects.iter().filter_map(|fields| fields.get("required")?.as_array()).flatten();
        let named = self.objects.iter().filter_map(|fields| fields.get("properties")?.as_object()).flatten();
        let mut names: Vec<&str> = Vec::new();
        for name in required.filter_map(Value::as_str).chain(named.map(|(name, _)| name.as_str())) {
            if names.len() < most && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Whether each of these values is a text that some pattern of this refuses.
    fn refuses(&self, values: &[Value]) -> bool {
        let patterns = self.objects.iter().filter_map(|fields| fields.get("pattern")?.as_str());
        let patterns: Vec<_> = patterns.filter_map(compiled).collect();
        let is_refused = |text: &str| patterns.iter().any(|pattern| !pattern.is_match(text));
        // `\w` is that of Unicode here.
        let mut texts = values.iter().map(|value| value.as_str().filter(|text| text.is_ascii()));
        !patterns.is_empty() && texts.all(|text| text.is_some_and(is_refused))
    }

    fn patterns(&self) -> usize {
        self.objects.iter().filter(|fields| fields.contains_key("pattern")).count()
    }
}

/// A pattern, if it takes little to compile.
pub fn compiled(pattern: &str) -> Option<regex::Regex> {
    regex::RegexBuilder::new(pattern).size_limit(MOST_COMPILED).build().ok()
}

pub struct Prover<'a> {
    root: &'a Value,
    left: usize, // steps
}

impl<'a> Prover<'a> {
    pub fn new(root: &'a Value, steps: usize) -> Prover<'a> {
        Prover { root, left: steps }
    }

    pub fn left(&self) -> usize {
        self.left
    }

    pub fn of(&mut self, fields: &'a Object) -> Demand<'a> {
        let mut all = Demand::ANYTHING;
        self.add_fields(fields, &mut all);
        all
    }

    /// The pairs of options of a `oneOf` that may fit one value. Beyond the limit of steps, every
    /// pair counts; the search stops soon after `most`.
    pub fn overlaps(&mut self, fields: &'a Object, options: &'a [Value], most: usize) -> Vec<(usize, usize)> {
        let mut beside = self.of(fields);
        beside.options.retain(|found| !std::ptr::eq(*found, options));
        let demands: Vec<_> = options.iter().map(|option| self.narrowed(&beside, option)).collect();
        let mut found = Vec::new();
        for (place, one) in demands.iter().enumerate() {
            for (rival, other) in demands[..place].iter().enumerate() {
                let is_apart = match (one, other) {
                    (Some(one), Some(other)) => self.excludes(one, other, DEEPEST),
                    _ => false,
                };
                if !is_apart {
                    found.push((place, rival));
                }
            }
            if found.len() > most {
                break;
            }
        }
        found
    }

    /// Whether it is proved that no value fits both a demand and a schema.
    pub fn excluded(&mut self, demand: &Demand<'a>, schema: &'a Value) -> bool {
        let mut other = Demand::ANYTHING;
        self.add(schema, &mut other);
        self.excludes(demand, &other, DEEPEST)
    }

    fn spend(&mut self, steps: usize) -> bool {
        let left = self.left.checked_sub(steps);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// What fits both a demand and a schema; None where too many steps were taken.
    pub fn narrowed(&mut self, demand: &Demand<'a>, schema: &'a Value) -> Option<Demand<'a>> {
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

    /// Whether it is proved that no value fits both.
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
        for (one, other) in [(one, other), (other, one)] {
            let is_long = |values: &&[Value]| values.len() > MOST_TEXTS;
            if !one.values.is_empty()
                && !one.values.iter().any(is_long)
                && other.patterns() > 0
                && self.spend(PATTERN_STEPS * other.patterns())
            {
                if one.values.iter().any(|values| other.refuses(values)) {
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
            if !self.spend(one.objects.len() + one.values.len() + one.options.len()) {
                return false;
            }
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
        if !self.spend(of.objects.len()) {
            return all;
        }
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
pub fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| is_same(a, b)))
        }
        _ => a == b,
    }
}
