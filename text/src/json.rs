//! Untrusted JSON: names that stand twice and zeros with a sign are refused, as runtime/strict_json.py does.

use std::cell::Cell;
use std::fmt;

use indexmap::map::Entry;
use indexmap::IndexMap;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

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

/// What `parse_bounded` takes at most.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub values: usize,
    pub name: Option<usize>, // its characters
}

impl Json {
    pub fn parse(text: &str) -> Result<Json, String> {
        Json::parse_bounded(text, Bounds { values: usize::MAX, name: None })
    }

    /// The same for what a sentence names the parts of: with a bound on values and the length of names, which hold no
    /// control characters.
    pub fn parse_bounded(text: &str, bounds: Bounds) -> Result<Json, String> {
        let mut source = serde_json::Deserializer::from_str(text);
        let reader = Reader { bounds, left: &Cell::new(bounds.values) };
        let value = reader.deserialize(&mut source).map_err(|error| error.to_string())?;
        source.end().map_err(|error| error.to_string())?;
        Ok(value)
    }

    /// A field of an object; nothing where this is no object or has no such field.
    pub fn get(&self, name: &str) -> Option<&Json> {
        self.object().and_then(|object| object.get(name))
    }

    pub fn object(&self) -> Option<&Object> {
        match self {
            Json::Object(object) => Some(object),
            _ => None,
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

/// Whether a terminal acts on this character, or it turns the direction of writing.
fn is_control(c: char) -> bool {
    matches!(c, '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A name in single quotes, with what cannot be printed escaped.
pub fn quoted(name: &str) -> String {
    format!("'{}'", name.escape_debug().to_string().replace("\\\"", "\""))
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    bounds: Bounds,
    left: &'a Cell<usize>, // of the values
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => return Err(D::Error::custom(format!("it holds more than {} values", self.bounds.values))),
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
        if value == 0.0 && value.is_sign_negative() {
            return Err(E::custom("a zero with a sign")); // -0 comes here too, and readers differ in what it is
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
                    return Err(A::Error::custom("a name holds a control character"));
                }
            }
            match object.entry(name) {
                Entry::Occupied(twin) => {
                    return Err(A::Error::custom(format!("{:.80} stands there twice", quoted(twin.key()))))
                }
                Entry::Vacant(place) => place.insert(items.next_value_seed(self)?),
            };
        }
        Ok(Json::Object(Box::new(object)))
    }
}
