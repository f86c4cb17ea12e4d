//! Untrusted JSON: in files, duplicate names and negative zeros are rejected.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;

use indexmap::IndexMap;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::jinja::float;

pub type Object = IndexMap<String, Json>;

#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Whole(i128),
    Real(f64),
    Text(String),
    List(Vec<Json>),
    Object(Box<Object>), // in the order of the file
}

/// Limits of `parse_bounded`.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub values: usize,
    pub name: Option<usize>, // characters
    pub strict: bool,        // negative zeros and duplicate names are rejected
}

impl Json {
    pub fn parse(text: &str) -> Result<Json, String> {
        Json::parse_bounded(text, Bounds { values: usize::MAX, name: None, strict: true })
    }

    /// The same for what a model wrote: a zero may have a sign, and the last field of a name counts, as in Python.
    pub fn parse_lenient(text: &str) -> Result<Json, String> {
        Json::parse_bounded(text, Bounds { values: usize::MAX, name: None, strict: false })
    }

    /// The same for what a caller wrote. A whole number that does not fit in 64 bits is an error: it would lose digits.
    pub fn parse_given(text: &str) -> Result<Json, String> {
        let value = Json::parse_lenient(text)?;
        let is_large = |digits: &str| {
            let is_whole = digits.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit());
            is_whole && digits.parse::<u64>().is_err() && digits.parse::<i64>().is_err()
        };
        if numbers(text).any(|place| is_large(&text[place])) {
            return Err("a whole number does not fit in 64 bits".to_owned());
        }
        Ok(value)
    }

    /// The same for JSON whose names appear in error messages: the number of values and the length of names are
    /// limited, and names must not contain control characters.
    pub fn parse_bounded(text: &str, bounds: Bounds) -> Result<Json, String> {
        let mut source = serde_json::Deserializer::from_str(text);
        let reader = Reader { bounds, left: &Cell::new(bounds.values) };
        let value = reader.deserialize(&mut source).map_err(|error| error.to_string())?;
        source.end().map_err(|error| error.to_string())?;
        Ok(value)
    }

    /// JSON text with spaces behind commas and colons, as Python writes it.
    pub fn spaced(&self) -> String {
        let mut out = Vec::new();
        self.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced)).expect("values are always JSON");
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    /// Values one after another, with only spaces and these characters between them.
    pub fn parse_several(text: &str, between: &[char]) -> Result<Vec<Json>, String> {
        let (mut values, mut rest) = (Vec::new(), text);
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || between.contains(&c));
            let Some(found) = Json::parse_first(rest) else { return Ok(values) };
            let (value, after) = found?;
            values.push(value);
            rest = after;
        }
    }

    /// The value that a text begins with, and what follows it; None: the text is empty.
    pub fn parse_first(text: &str) -> Option<Result<(Json, &str), String>> {
        let mut source = serde_json::Deserializer::from_str(text).into_iter::<Lenient>();
        let value = source.next()?;
        Some(value.map(|Lenient(value)| (value, &text[source.byte_offset()..])).map_err(|error| error.to_string()))
    }

    /// An object with these fields; a later one replaces an earlier one of the same name.
    pub fn of_fields<N: Into<String>>(fields: impl IntoIterator<Item = (N, Json)>) -> Json {
        Json::Object(Box::new(fields.into_iter().map(|(name, value)| (name.into(), value)).collect()))
    }

    /// The bytes of all texts and names in it, and one for each value.
    pub fn length(&self) -> usize {
        1 + match self {
            Json::Text(text) => text.len(),
            Json::List(values) => values.iter().map(Json::length).sum(),
            Json::Object(fields) => length(fields),
            _ => 0,
        }
    }

    /// A field of an object; None if this is not an object or has no such field.
    pub fn get(&self, name: &str) -> Option<&Json> {
        self.object().and_then(|object| object.get(name))
    }

    pub fn object(&self) -> Option<&Object> {
        match self {
            Json::Object(object) => Some(object),
            _ => None,
        }
    }

    pub fn object_mut(&mut self) -> Option<&mut Object> {
        match self {
            Json::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The same value with other texts: `name` writes the names of fields, `text` the texts.
    pub fn map(&self, name: &impl Fn(&str) -> String, text: &impl Fn(&str) -> String) -> Json {
        match self {
            Json::Text(value) => Json::Text(text(value)),
            Json::List(values) => Json::List(values.iter().map(|value| value.map(name, text)).collect()),
            Json::Object(values) => {
                let field = |(key, value): (&String, &Json)| (name(key), value.map(name, text));
                Json::of_fields(values.iter().map(field))
            }
            other => other.clone(),
        }
    }

    pub fn list(&self) -> Option<&[Json]> {
        match self {
            Json::List(list) => Some(list),
            _ => None,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn whole(&self) -> Option<i128> {
        match self {
            Json::Whole(number) => Some(*number),
            _ => None,
        }
    }

    pub fn number(&self) -> Option<f64> {
        match self {
            Json::Whole(number) => Some(*number as f64),
            Json::Real(number) => Some(*number),
            _ => None,
        }
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self {
            Json::Null => out.serialize_unit(),
            Json::Bool(value) => out.serialize_bool(*value),
            Json::Whole(value) => out.serialize_i128(*value),
            Json::Real(value) => out.serialize_f64(*value),
            Json::Text(value) => out.serialize_str(value),
            Json::List(values) => out.collect_seq(values),
            Json::Object(values) => out.collect_map(values.iter()),
        }
    }
}

/// The length of an object's fields.
pub fn length(fields: &Object) -> usize {
    fields.iter().map(|(name, value)| name.len() + value.length()).sum()
}

/// As Python's json.dumps writes it.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: Write + ?Sized>(&mut self, out: &mut W, is_first: bool) -> io::Result<()> {
        out.write_all(if is_first { b"" } else { b", " })
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, is_first: bool) -> io::Result<()> {
        out.write_all(if is_first { b"" } else { b", " })
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn write_f64<W: Write + ?Sized>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(float(value).as_bytes())
    }
}

/// For sentences: the value as JSON, lists and objects included.
impl fmt::Display for Json {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Json::Null => write!(out, "null"),
            Json::Bool(value) => write!(out, "{value}"),
            Json::Whole(value) => write!(out, "{value}"),
            Json::Real(value) => write!(out, "{value:?}"),
            Json::Text(value) => write!(out, "{}", quoted(value)),
            Json::List(values) => {
                write!(out, "[")?;
                for (i, value) in values.iter().enumerate() {
                    write!(out, "{}{value}", if i > 0 { ", " } else { "" })?;
                }
                write!(out, "]")
            }
            Json::Object(values) => {
                write!(out, "{{")?;
                for (i, (name, value)) in values.iter().enumerate() {
                    write!(out, "{}{}: {value}", if i > 0 { ", " } else { "" }, quoted(name))?;
                }
                write!(out, "}}")
            }
        }
    }
}

/// JSON in which numbers that overflow a double, which a grammar allows, are replaced by 1e308 or -1e308.
pub fn in_range(text: &str) -> String {
    let (mut made, mut end) = (String::new(), 0);
    for place in numbers(text) {
        let number: f64 = text[place.clone()].parse().unwrap_or_default();
        if number.is_infinite() {
            made.push_str(&text[end..place.start]);
            made.push_str(if number < 0.0 { "-1e308" } else { "1e308" });
            end = place.end;
        }
    }
    made.push_str(&text[end..]);
    made
}

/// The places of the numbers in JSON; digits inside strings do not count.
fn numbers(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let bytes = text.as_bytes();
    let mut place = 0;
    std::iter::from_fn(move || loop {
        let start = place;
        let rest = bytes.get(start + 1..)?;
        match bytes[start] {
            b'"' => {
                let mut is_escaped = false;
                let is_end = |&byte: &u8| {
                    let is_end = byte == b'"' && !is_escaped;
                    is_escaped = byte == b'\\' && !is_escaped;
                    is_end
                };
                place += 2 + rest.iter().position(is_end)?;
            }
            b'-' | b'0'..=b'9' => {
                let is_number = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
                place += 1 + rest.iter().take_while(is_number).count();
                return Some(start..place);
            }
            _ => place += 1,
        }
    })
}

/// Whether a terminal interprets this character, or it changes the direction of writing.
fn is_control(c: char) -> bool {
    matches!(c, '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A name in single quotes, with unprintable characters escaped.
pub fn quoted(name: &str) -> String {
    format!("'{}'", name.escape_debug().to_string().replace("\\\"", "\""))
}

struct Lenient(Json);

impl<'de> Deserialize<'de> for Lenient {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Lenient, D::Error> {
        let bounds = Bounds { values: usize::MAX, name: None, strict: false };
        Reader { bounds, left: &Cell::new(bounds.values) }.deserialize(source).map(Lenient)
    }
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    bounds: Bounds,
    left: &'a Cell<usize>, // values that may still follow
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => return Err(D::Error::custom(format!("it has more than {} values", self.bounds.values))),
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Json;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Whole(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Whole(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Json, E> {
        if self.bounds.strict && value == 0.0 && value.is_sign_negative() {
            return Err(E::custom("a negative zero")); // also integer -0, which parsers read differently
        }
        Ok(Json::Real(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut object = Object::new();
        while let Some(name) = items.next_key::<String>()? {
            if let Some(longest) = self.bounds.name {
                if name.chars().nth(longest).is_some() {
                    return Err(A::Error::custom(format!("a name is longer than {longest} characters")));
                }
                if name.contains(is_control) {
                    return Err(A::Error::custom("a name has a control character"));
                }
            }
            if self.bounds.strict && object.contains_key(&name) {
                return Err(A::Error::custom(format!("{:.80} is duplicated", quoted(&name))));
            }
            object.insert(name, items.next_value_seed(self)?);
        }
        Ok(Json::Object(Box::new(object)))
    }
}
