//! JSON schemas as llguidance reads them: what it would drop or read in another way is refused here, by keyword and
//! path.
//!
//! It compiles a schema's keywords without saying where they are, takes annotations for keywords of other drafts, and
//! knows references by their place only. So each schema that it may reach is checked first, and what says nothing (a
//! `uniqueItems` that is false) is removed.

use std::collections::{BTreeMap, HashMap, HashSet};

use llguidance::JsonCompileOptions;
use serde_json::{json, Map, Value};

use super::limits::{
    MOST_BITS, MOST_DECIMALS, MOST_JOINED, MOST_PATTERNS, MOST_PROPERTIES, MOST_REFERENCES, MOST_REMAINDER_BITS,
    MOST_SQUARES,
};
use super::{bounds, combinations, expand, formats};
use crate::error::{bad_grammar, one_line, Failure, Result};

type Object = Map<String, Value>;

const OPTIONS: &str = "x-guidance";
const ESCAPES: &str = "json_allowed_escapes"; // of the options
const COERCED: &str = "coerce_one_of";
pub const NO_SCHEMA: &str = "a schema is an object, true or false";
/// Has the path that a schema was moved from, for errors. The compiler skips it, which it does not with unknown keywords.
const ORIGIN: &str = "$comment";
const FROM: &str = "from ";
const PASSES: usize = 3; // over references, of which some lead to themselves
const DRAFTS: [&str; 5] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
];
const MOST_BITS_64: f64 = (1_u64 << 63) as f64;
const MOST_WHOLE: f64 = (1_u64 << 53) as f64;
const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Keywords that restrict a value and that the compiler lacks: an error where `expand` has not rewritten them.
const REFUSED: [&str; 18] = [
    "$dynamicAnchor",
    "$dynamicRef",
    "$recursiveAnchor",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// If an object with a field "schema" has none of these, it is the wrapper of OpenAI's `response_format`.
const RESTRICTING: [&str; 8] = ["type", "properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];

pub fn read(text: &str) -> Result<Value> {
    serde_json::from_str(text)
        .map_err(|error| bad_grammar(format!("the schema is not valid JSON ({})", one_line(&error))))
}

/// A schema with all that it may reach checked, written for the compiler, and its options for white space set.
pub fn prepared(original: &Value) -> Result<Value> {
    written(original.clone()).map_err(|error| located(original, error))
}

fn written(mut schema: Value) -> Result<Value> {
    if schema == Value::Bool(true) {
        schema = Value::Object(Object::new());
    }
    let is_wrapped = schema.get("schema").is_some_and(Value::is_object)
        && !RESTRICTING.iter().any(|keyword| schema.get(keyword).is_some());
    if is_wrapped {
        return Err(wrong("#/schema", "is not a keyword of JSON Schema; pass the schema inside it instead"));
    }
    each_schema(&mut schema, &mut strip);
    combinations::check(&schema)?;
    let mut options = options(&schema)?;
    let coerced = options.insert(COERCED.to_owned(), Value::Bool(true)) == Some(Value::Bool(true));
    let mut schema = expand::expanded(&schema, coerced)?;
    let mut decimals = 0;
    for joined in [Joined::Patterns, Joined::Multiples, Joined::Remainders] {
        let mut known = HashMap::new();
        for _ in 0..PASSES {
            let mut checker = Checker::new(&schema, joined, known, decimals);
            checker.schema(&schema, "#")?;
            (known, decimals) = (checker.references, checker.decimals);
        }
    }
    let (mut is_open, mut has_controls) = (false, false);
    let limit_decimals = bounds::can_limit_decimals(&schema);
    each_schema(&mut schema, &mut |fields| {
        formats::spell(fields);
        bounds::limit(fields, limit_decimals);
        bounds::spell(fields);
        is_open |= has_open_names(fields);
        has_controls |= has_control_characters(fields);
    });
    let is_general = options.get("json_allow_general_unicode_escapes") == Some(&Value::Bool(true));
    if is_open && !is_general && !options.contains_key(ESCAPES) {
        if has_controls {
            let reason =
                "a constant has control characters, which can only be written as \\uXXXX, but that could also spell \
                          the names of properties; set additionalProperties to false";
            return Err(wrong("#", reason));
        }
        options.insert(ESCAPES.to_owned(), "nrbtf\"\\".into());
    }
    if let Some(fields) = schema.as_object_mut() {
        fields.shift_remove("$schema"); // drafts are read as the newest, which has most keywords
        fields.insert(OPTIONS.to_owned(), Value::Object(options));
    }
    Ok(schema)
}

/// Whether additional properties may stand beside those with names or patterns. The compiler tells them apart by their
/// spelling, so that `\u0061` would be another name than `a`.
fn has_open_names(fields: &Object) -> bool {
    let has_some = |name: &str| match fields.get(name) {
        Some(Value::Object(inner)) => !inner.is_empty(),
        Some(Value::Array(inner)) => !inner.is_empty(),
        _ => false,
    };
    let is_open = fields.get("additionalProperties") != Some(&Value::Bool(false));
    is_open && ["properties", "patternProperties", "required"].into_iter().any(has_some)
}

/// Whether a constant has characters that can only be written as `\uXXXX`.
fn has_control_characters(fields: &Object) -> bool {
    ["const", "enum"].iter().filter_map(|name| fields.get(*name)).any(|value| {
        let text = value.to_string();
        text.contains("\\u00") || text.contains('\x7f')
    })
}

/// Compact unless the schema says otherwise.
fn options(schema: &Value) -> Result<Object> {
    let place = format!("#/{OPTIONS}");
    let mut options = match schema.get(OPTIONS) {
        None => Object::new(),
        Some(Value::Object(options)) => options.clone(),
        Some(_) => return Err(wrong(&place, "must be an object")),
    };
    options.entry("whitespace_flexible").or_insert(Value::Bool(false));
    let read: JsonCompileOptions =
        serde_json::from_value(Value::Object(options.clone())).map_err(|error| wrong(&place, one_line(&error)))?;
    if read.lenient {
        return Err(wrong(&format!("{place}/lenient"), "must be false; what is not supported is an error"));
    }
    Ok(options)
}

/// Calls `change` with each schema, the outermost first, and again with those that references lead to, which may be
/// anywhere.
fn each_schema(root: &mut Value, change: &mut impl FnMut(&mut Object)) {
    fn targets(value: &Value, found: &mut HashSet<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|inner| targets(inner, found));
            }
            Value::Array(inner) => inner.iter().for_each(|inner| targets(inner, found)),
            _ => (),
        }
    }
    let mut found = HashSet::new();
    targets(root, &mut found);
    each_inside(root, change);
    for pointer in found.iter().filter_map(|target| pointer(target)) {
        if let Some(schema) = root.pointer_mut(pointer) {
            each_inside(schema, change);
        }
    }
}

/// The same for one schema and those inside. A value that looks like a schema and is none, as in `const`, is left alone.
fn each_inside(schema: &mut Value, change: &mut impl FnMut(&mut Object)) {
    let Some(fields) = schema.as_object_mut() else { return };
    change(fields);
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(inner)) => {
                inner.values_mut().for_each(|inner| each_inside(inner, change));
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(inner)) => {
                inner.iter_mut().for_each(|inner| each_inside(inner, change));
            }
            ("dependentSchemas" | "dependencies", Value::Object(inner)) => {
                inner.values_mut().for_each(|inner| each_inside(inner, change));
            }
            (
                "items"
                | "additionalItems"
                | "additionalProperties"
                | "contains"
                | "propertyNames"
                | "not"
                | "if"
                | "then"
                | "else"
                | "unevaluatedItems"
                | "unevaluatedProperties",
                inner,
            ) => each_inside(inner, change),
            _ => (),
        }
    }
}

/// Removes keywords that say nothing where they stand, writes a whole number without a fraction, and puts a keyword
/// directly in front of the one that depends on it: the compiler reads the two together only if no `allOf`, `anyOf` or
/// the like stands between them.
fn strip(fields: &mut Object) {
    let says_nothing = |fields: &Object, name: &str| match (name, &fields[name]) {
        ("uniqueItems", Value::Bool(false)) => true,
        ("unevaluatedItems" | "unevaluatedProperties", inner) => allows_all(inner),
        ("propertyNames", inner) => allows_all(inner) || *inner == json!({ "type": "string" }), // as every name is
        ("minContains" | "maxContains", _) => !fields.contains_key("contains"),
        ("then" | "else", _) => !fields.contains_key("if"),
        ("if", _) => !fields.contains_key("then") && !fields.contains_key("else"),
        ("dependentRequired" | "dependentSchemas" | "dependencies", Value::Object(inner)) => inner.is_empty(),
        ("additionalItems", _) => !fields.get("items").is_some_and(Value::is_array),
        ("discriminator", _) => true, // OpenAPI's; beside a recursive reference the compiler takes no other keyword
        _ => false,
    };
    let nothing: Vec<String> = fields.keys().filter(|name| says_nothing(fields, name)).cloned().collect();
    fields.retain(|name, _| !nothing.contains(name));
    for name in ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"] {
        let count = fields.get(name).and_then(Value::as_f64);
        if let Some(count) = count.filter(|count| count.fract() == 0.0 && (0.0..1e15).contains(count)) {
            fields.insert(name.to_owned(), Value::from(count as u64));
        }
    }
    bounds::round(fields);
    for (name, dependent) in [("patternProperties", "additionalProperties"), ("items", "additionalItems")] {
        if fields.contains_key(dependent) {
            let mut moved = fields.shift_remove(name);
            for (key, value) in std::mem::take(fields) {
                if key == dependent {
                    fields.extend(moved.take().map(|value| (name.to_owned(), value)));
                }
                fields.insert(key, value);
            }
        }
    }
}

pub fn allows_all(schema: &Value) -> bool {
    *schema == Value::Bool(true) || schema.as_object().is_some_and(Object::is_empty)
}

/// What the compiler joins where one value must fit several schemas, up to a limit.
#[derive(Clone, Copy, PartialEq)]
enum Joined {
    /// Patterns that a string must match. The compiler intersects them, in time that is exponential in their number.
    Patterns,
    /// The bits of the numbers of `multipleOf`, which the compiler multiplies.
    Multiples,
    /// The bits of their remainders.
    Remainders,
}

impl Joined {
    fn most(self) -> usize {
        match self {
            Joined::Patterns => MOST_JOINED,
            Joined::Multiples => MOST_BITS,
            Joined::Remainders => MOST_REMAINDER_BITS,
        }
    }

    fn too_many(self, path: &str) -> Failure {
        let reason = match self {
            Joined::Patterns => format!(
                "a string would have to match more than {MOST_JOINED} patterns at once (`pattern` and `format`, joined by \
                 `allOf`, `$ref` or sibling keywords)"
            ),
            Joined::Multiples => format!(
                "a number would have to be a multiple of several numbers whose product has more than {MOST_BITS} bits \
                 (`multipleOf`, joined by `allOf`, `$ref` or sibling keywords)"
            ),
            Joined::Remainders => format!(
                "a number would have to be a multiple of one whose factors other than 2 and 5 have more than \
                 {MOST_REMAINDER_BITS} bits (`multipleOf`, joined by `allOf`, `$ref` or sibling keywords)"
            ),
        };
        wrong(path, reason)
    }
}

/// Upper bound on what is joined, for each place in a value. `anyOf` or `oneOf` with k options that have patterns adds
/// log2(k), rounded up, because patterns beside it are intersected with those of each option.
#[derive(Clone, Default)]
struct Load<'a> {
    here: usize,                          // the value itself
    properties: BTreeMap<&'a str, usize>, // those with a load
    others: usize,                        // other properties, and items
}

/// More than the limit.
struct TooMany;

impl<'a> Load<'a> {
    fn most(&self) -> usize {
        self.properties.values().copied().fold(self.here.max(self.others), usize::max)
    }

    fn of_others(inner: &Self) -> Self {
        Load { others: inner.most(), ..Load::default() }
    }

    /// `join` is commutative, and 0 adds nothing.
    fn with(self, other: Self, mut join: impl FnMut(usize, usize) -> usize) -> Self {
        let is_smaller = self.properties.len() < other.properties.len();
        let (mut all, fewer) = if is_smaller { (other, self) } else { (self, other) };
        if fewer.others > 0 {
            let own = all.properties.iter_mut().filter(|(name, _)| !fewer.properties.contains_key(*name));
            own.for_each(|(_, one)| *one = join(*one, fewer.others));
        }
        for (name, one) in fewer.properties {
            let own = all.properties.entry(name).or_insert(all.others);
            *own = join(*own, one);
        }
        (all.here, all.others) = (join(all.here, fewer.here), join(all.others, fewer.others));
        all
    }

    /// Of a value that fits both schemas.
    fn and(self, other: Self, most: usize) -> Result<Self, TooMany> {
        let mut is_sound = true;
        let joined = self.with(other, |a, b| {
            is_sound &= a == 0 || b == 0 || a + b <= most;
            a + b
        });
        is_sound.then_some(joined).ok_or(TooMany)
    }

    /// Of two parts of a value, or of a value that fits one of two schemas.
    fn or(self, other: Self) -> Self {
        self.with(other, usize::max)
    }

    /// Of a value that fits one of `count` schemas.
    fn of_options(mut self, count: usize) -> Self {
        let bits = count.next_power_of_two().trailing_zeros() as usize;
        let all = self.properties.values_mut().chain([&mut self.here, &mut self.others]);
        all.filter(|one| **one > 0).for_each(|one| *one += bits);
        self
    }
}

struct Checker<'a> {
    root: &'a Value,
    joined: Joined,
    known: HashMap<&'a str, Load<'a>>,      // of references in the pass before
    references: HashMap<&'a str, Load<'a>>, // those checked, or being checked
    squares: usize,                         // of the numbers of properties
    copied: usize,                          // properties with a load, by references to them
    decimals: u32,                          // the most of any `multipleOf`, earlier passes included
}

impl<'a> Checker<'a> {
    fn new(root: &'a Value, joined: Joined, known: HashMap<&'a str, Load<'a>>, decimals: u32) -> Checker<'a> {
        Checker { root, joined, known, references: HashMap::new(), squares: 0, copied: 0, decimals }
    }

    fn schema(&mut self, schema: &'a Value, path: &str) -> Result<Load<'a>> {
        let fields = match schema {
            Value::Bool(_) => return Ok(Load::default()),
            Value::Object(fields) => fields,
            _ => return Err(wrong(path, NO_SCHEMA)),
        };
        let path = origin(fields).unwrap_or(path);
        let (mut all, mut parts) = (Load::default(), Load::default());
        for (name, value) in fields {
            let found = self.keyword(fields, name, value, path, &at(path, name))?;
            match name.as_str() {
                "properties" | "items" | "prefixItems" | "additionalItems" | "additionalProperties" => {
                    parts = parts.or(found);
                }
                _ => all = self.both(all, found, path)?,
            }
        }
        self.both(all, parts, path)
    }

    fn both(&self, one: Load<'a>, other: Load<'a>, path: &str) -> Result<Load<'a>> {
        one.and(other, self.joined.most()).map_err(|_| self.joined.too_many(path))
    }

    /// The load of a keyword where this is counted.
    fn load(&self, counted: Joined, here: usize) -> Load<'a> {
        let here = if self.joined == counted { here } else { 0 };
        Load { here, ..Load::default() }
    }

    fn keyword(
        &mut self,
        fields: &'a Object,
        name: &str,
        value: &'a Value,
        outer: &str,
        path: &str,
    ) -> Result<Load<'a>> {
        let mut found = Load::default();
        match (name, value) {
            ("$ref", Value::String(target)) => found = self.reference(target, path)?,
            ("$schema", Value::String(draft)) if DRAFTS.contains(&draft.trim_end_matches('#')) => (),
            ("$schema", _) => return Err(wrong(path, "only drafts 4, 6, 7, 2019-09 and 2020-12 are known")),
            ("$id", _) if outer != "#" && fields.values().any(has_reference) => {
                return Err(wrong(path, "references inside a schema with an $id of its own are not supported"));
            }
            (OPTIONS, _) if outer != "#" => return Err(wrong(path, "x-guidance is read at the root only")),
            ("nullable", Value::Bool(true)) => {
                return Err(wrong(path, r#"nullable is no keyword of JSON Schema; write "type": [..., "null"]"#));
            }
            ("type", value) => check_type(value, path)?,
            ("format", Value::String(format)) if formats::FORMATS.contains(&format.as_str()) => {
                found = self.load(Joined::Patterns, 1);
            }
            ("format", Value::String(_)) => (), // an annotation
            ("const", value) => exact(value, path)?,
            ("enum", Value::Array(values)) => values.iter().try_for_each(|value| exact(value, path))?,
            ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf", value) => {
                let is_sound = value.as_f64().is_some_and(|number| name != "multipleOf" || number > 0.0);
                if !is_sound {
                    return Err(wrong(path, format!("{value} is no number for {name}")));
                }
                let number = value.as_f64().unwrap_or_default();
                let is_beyond = match name {
                    "minimum" | "exclusiveMinimum" => number >= MOST_BITS_64,
                    "maximum" | "exclusiveMaximum" => number <= -MOST_BITS_64,
                    _ => false,
                };
                if is_beyond {
                    let reason =
                        format!("{value} needs more than 64 bits (with sign); use a bound between -2^63 and 2^63");
                    return Err(wrong(path, reason));
                }
                if name == "multipleOf" {
                    found = self.multiple(value, path)?;
                }
            }
            ("minProperties", value) => {
                let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
                let names: HashSet<&str> = required.filter_map(Value::as_str).collect();
                if value.as_u64().is_some_and(|least| least > names.len() as u64 + 1) {
                    let reason = "more than one unnamed property cannot be required, since names could repeat";
                    return Err(wrong(path, reason));
                }
            }
            ("properties", Value::Object(inner)) => {
                self.properties(inner.len(), path)?;
                for (name, inner) in inner {
                    let most = self.schema(inner, &at(path, name))?.most();
                    found.properties.extend((most > 0).then_some((name.as_str(), most)));
                }
            }
            ("required", Value::Array(names)) => self.properties(names.len(), path)?,
            ("patternProperties", Value::Object(inner)) => {
                if inner.len() > MOST_PATTERNS {
                    return Err(wrong(path, format!("more than {MOST_PATTERNS} patterns are not supported")));
                }
                for (name, inner) in inner {
                    found = found.or(Load::of_others(&self.schema(inner, &at(path, name))?));
                }
            }
            ("pattern", _) => found = self.load(Joined::Patterns, 1),
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(inner)) => {
                let mut options = 0;
                for (number, inner) in inner.iter().enumerate() {
                    let inner = self.schema(inner, &at(path, &number.to_string()))?;
                    options += usize::from(inner.most() > 0);
                    found = match name {
                        "allOf" => self.both(found, inner, path)?,
                        "anyOf" | "oneOf" => found.or(inner),
                        _ => found.or(Load::of_others(&inner)),
                    };
                }
                if (name == "anyOf" || name == "oneOf") && self.joined == Joined::Patterns {
                    found = found.of_options(options);
                }
            }
            ("items" | "additionalItems" | "additionalProperties", inner) => {
                found = Load::of_others(&self.schema(inner, path)?);
            }
            ("properties" | "patternProperties", _) => return Err(wrong(path, "must be an object")),
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "enum", _) => return Err(wrong(path, "must be a list")),
            ("$ref" | "format", _) => return Err(wrong(path, "must be a text")),
            ("unevaluatedItems" | "unevaluatedProperties", _) => {
                let reason = format!(
                    "{name} is not supported beside $ref, allOf, anyOf, oneOf, if, not, dependentSchemas, contains or a \
                     list of items"
                );
                return Err(wrong(path, reason));
            }
            (name, _) if REFUSED.contains(&name) => {
                return Err(wrong(path, format!("the keyword {name} is not supported")));
            }
            _ => (),
        }
        let reads_as_array = fields.contains_key("prefixItems") && fields.get("items").is_some_and(Value::is_array);
        if name == "prefixItems" && reads_as_array {
            return Err(wrong(path, "prefixItems does not go with a list of items"));
        }
        Ok(found)
    }

    /// The load of a `multipleOf`: its bits, scaled to the most decimals of any, or those of its remainders.
    fn multiple(&mut self, value: &Value, path: &str) -> Result<Load<'a>> {
        let text = value.as_f64().unwrap_or_default().to_string(); // without an exponent
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        let (digits, decimals) = (format!("{whole}{fraction}").parse::<u64>(), fraction.len() as u32);
        let Some(digits) = digits.ok().filter(|digits| digits >> MOST_BITS == 0 && decimals <= MOST_DECIMALS) else {
            let most = 1 << MOST_BITS;
            return Err(wrong(path, format!(
                "{value} is not supported: at most {MOST_DECIMALS} decimals, and less than {most} without the decimal point"
            )));
        };
        self.decimals = self.decimals.max(decimals);
        let bits = u64::BITS - (digits * 10_u64.pow(self.decimals - decimals)).leading_zeros();
        let mut remainders = digits;
        for factor in [2, 5] {
            while remainders > 0 && remainders % factor == 0 {
                remainders /= factor;
            }
        }
        let remainder_bits = u64::BITS - remainders.saturating_sub(1).leading_zeros();
        if remainder_bits as usize > MOST_REMAINDER_BITS {
            return Err(Joined::Remainders.too_many(path));
        }
        let mut load = self.load(Joined::Multiples, bits as usize);
        load.here += self.load(Joined::Remainders, remainder_bits as usize).here;
        Ok(load)
    }

    fn properties(&mut self, number: usize, path: &str) -> Result<()> {
        if number > MOST_PROPERTIES {
            return Err(wrong(path, format!("more than {MOST_PROPERTIES} properties are not supported")));
        }
        self.squares += number * number;
        if self.squares > MOST_SQUARES {
            return Err(wrong(path, "the objects of this schema have too many properties in all"));
        }
        Ok(())
    }

    /// What a reference leads to is compiled too, wherever it is. In a recursive schema, the load of the inner reference
    /// is that of the pass before.
    fn reference(&mut self, target: &'a str, path: &str) -> Result<Load<'a>> {
        if let Some(known) = self.references.get(target) {
            self.copied += known.properties.len();
            if self.copied > MOST_SQUARES {
                return Err(wrong(path, "references repeat too many properties with patterns or `multipleOf`"));
            }
            return Ok(known.clone());
        }
        self.references.insert(target, self.known.get(target).cloned().unwrap_or_default());
        if self.references.len() > MOST_REFERENCES {
            return Err(wrong(path, format!("more than {MOST_REFERENCES} references are not supported")));
        }
        let found = find(self.root, target).ok_or_else(|| {
            let reason = format!(
                "{target:?} leads nowhere; only places in this schema are supported, as #/$defs/name, without ~ or % and \
                 not inside a keyword such as not or if; move the schema to $defs"
            );
            wrong(path, reason)
        })?;
        let load = self.schema(found, target)?;
        self.references.insert(target, load.clone());
        Ok(load)
    }
}

/// What a reference leads to, if llguidance finds it too.
pub fn find<'a>(root: &'a Value, target: &str) -> Option<&'a Value> {
    root.pointer(pointer(target)?)
}

/// The JSON pointer of a reference. llguidance knows neither anchors nor escapes.
pub fn pointer(target: &str) -> Option<&str> {
    target.strip_prefix('#').filter(|pointer| !pointer.contains(['~', '%']) && *pointer != "/")
}

fn check_type(value: &Value, path: &str) -> Result<()> {
    let names: Vec<&Value> = match value {
        Value::Array(names) if !names.is_empty() => names.iter().collect(),
        name => vec![name],
    };
    match names.iter().find(|name| !name.as_str().is_some_and(|name| TYPES.contains(&name))) {
        Some(name) => Err(wrong(path, format!("{name} is no type"))),
        None => Ok(()),
    }
}

pub fn has_reference(inside: &Value) -> bool {
    match inside {
        Value::Object(fields) => fields.contains_key("$ref") || fields.values().any(has_reference),
        Value::Array(items) => items.iter().any(has_reference),
        _ => false,
    }
}

/// Numbers are compiled as doubles: one that is none would be another number.
fn exact(value: &Value, path: &str) -> Result<()> {
    match value {
        Value::Number(number) => {
            let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
            let is_exact = match whole {
                Some(whole) => bounds::is_exact(whole),
                None => number.as_f64().is_some_and(|number| number.fract() != 0.0 || number.abs() <= MOST_WHOLE),
            };
            is_exact.then_some(()).ok_or_else(|| wrong(path, format!("{number} is larger than 2^53")))
        }
        Value::Array(values) => values.iter().try_for_each(|value| exact(value, path)),
        Value::Object(fields) => fields.values().try_for_each(|value| exact(value, path)),
        _ => Ok(()),
    }
}

pub fn at(path: &str, name: &str) -> String {
    format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// A schema for another place than `path`.
pub fn moved(mut schema: Value, path: &str) -> Value {
    if let Some(fields) = schema.as_object_mut().filter(|fields| !fields.is_empty() && origin(fields).is_none()) {
        fields.insert(ORIGIN.to_owned(), format!("{FROM}{path}").into());
    }
    schema
}

pub fn origin(fields: &Object) -> Option<&str> {
    fields.get(ORIGIN)?.as_str()?.strip_prefix(FROM).filter(|path| path.starts_with('#'))
}

/// An error whose path is one of `original`: it ends where that has no more, in front of what was written for a keyword.
pub fn located(original: &Value, error: Failure) -> Failure {
    let ends = error.sentence.match_indices(": ").map(|(end, _)| end);
    let mut paths = ends.map(|end| error.sentence.split_at(end)).filter(|(path, _)| path.starts_with('#'));
    let is_there = |path: &str| original.pointer(&path[1..]).is_some();
    let Some((mut path, reason)) = paths.next() else { return error };
    if is_there(path) || paths.any(|(path, _)| is_there(path)) {
        return error;
    }
    while !is_there(path) {
        path = path.rsplit_once('/').map_or("#", |(outer, _)| outer);
    }
    Failure { sentence: format!("{path}{reason}"), ..error }
}

pub fn wrong(path: &str, reason: impl std::fmt::Display) -> Failure {
    bad_grammar(format!("{path}: {reason}"))
}
