//! The methods of Python's str. Positions are counted in characters.

use std::sync::Arc;

use super::arguments::Given;
use super::python::{is_space, lines, title};
use super::render::Render;
use super::value::{List, Value};
use super::{fault, Result};
use crate::control_tokens::{characters, uncut, Parts, CUT};

pub const NAMES: [&str; 37] = [
    "capitalize",
    "center",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "title",
    "upper",
    "zfill",
];
pub const REFUSED: [&str; 10] = [
    "casefold",
    "encode",
    "expandtabs",
    "format_map",
    "isidentifier",
    "isprintable",
    "istitle",
    "maketrans",
    "swapcase",
    "translate",
];

impl Render {
    pub fn word(&self, text: &Arc<str>, name: &str, given: &Given) -> Result<Value> {
        if name == "format" {
            return self.format(text, given).map(Value::text);
        }
        if !given.named.is_empty() && !matches!(name, "split" | "rsplit" | "splitlines") {
            return fault(format!("{name}() takes no keyword arguments"));
        }
        self.spend(1 + text.len() as u64 / 64)?;
        let none = || given.bind(name, [], 0).map(|_| ());
        Ok(match name {
            "upper" | "lower" | "title" | "capitalize" => {
                none()?;
                self.cased(text, name)?
            }
            "strip" | "lstrip" | "rstrip" => {
                let [characters] = given.bind(name, ["chars"], 0)?;
                let characters = self.optional_text(name, characters)?;
                self.strip(text, characters.as_deref(), name != "rstrip", name != "lstrip")?
            }
            "split" | "rsplit" => self.split(text, name == "rsplit", given)?,
            "splitlines" => {
                let [ends] = given.bind(name, ["keepends"], 0)?;
                if ends.is_some_and(|ends| ends.is_true()) {
                    return fault("splitlines with ends is not supported");
                }
                self.texts(text, lines(text))?
            }
            "join" => {
                let [items] = given.bind(name, ["iterable"], 1)?;
                self.join(text, &self.collect(&items.unwrap_or(Value::None))?)?
            }
            "replace" => {
                let [old, new, count] = given.bind(name, ["old", "new", "count"], 2)?;
                let (old, new) = (self.needed_text(name, old)?, self.needed_text(name, new)?);
                self.replace(text, &old, &new, self.optional_whole(name, count)?.unwrap_or(-1))?
            }
            "startswith" | "endswith" => {
                let [wanted, start, end] = given.bind(name, ["prefix", "start", "end"], 1)?;
                let (from, to, _) = self.part(text, name, start, end)?;
                let part = text.get(from..to).unwrap_or_default().trim_matches(CUT);
                let is_so = |wanted: &Value| match wanted {
                    Value::Text(wanted) => {
                        self.spend(1 + wanted.len() as u64 / 64)?;
                        let (fits, wanted) = (from <= to, wanted.trim_matches(CUT));
                        Ok(fits && if name == "startswith" { part.starts_with(wanted) } else { part.ends_with(wanted) })
                    }
                    _ => fault(format!("{name} needs a text or a tuple of texts")),
                };
                Value::Bool(match wanted.unwrap_or(Value::None) {
                    Value::Tuple(tuple) => {
                        let mut found = false;
                        for wanted in &tuple.items {
                            found = found || is_so(wanted)?;
                        }
                        found
                    }
                    wanted => is_so(&wanted)?,
                })
            }
            "find" | "rfind" | "index" | "rindex" | "count" => {
                let [wanted, start, end] = given.bind(name, ["sub", "start", "end"], 1)?;
                let wanted = self.needed_text(name, wanted)?;
                let wanted = wanted.trim_matches(CUT);
                let (from, to, first) = self.part(text, name, start, end)?;
                self.spend_bytes(wanted.len() + text.len())?;
                let part = (from <= to).then(|| &text[from..to]);
                if name == "count" {
                    return Ok(Value::Int(part.map_or(0, |part| part.matches(wanted).count() as i64)));
                }
                let is_last = name.starts_with('r');
                let found = part.and_then(|part| {
                    let at = if is_last { part.rfind(wanted) } else { part.find(wanted) };
                    at.map(|at| first + uncut(&part[..at]).count() as i64)
                });
                match found {
                    None if name.ends_with("index") => return fault("substring not found"),
                    found => Value::Int(found.unwrap_or(-1)),
                }
            }
            "partition" | "rpartition" => {
                let [mark] = given.bind(name, ["sep"], 1)?;
                let mark = self.needed_text(name, mark)?;
                let mark = mark.trim_matches(CUT);
                if mark.is_empty() {
                    return fault("empty separator");
                }
                self.spend_bytes(text.len() + mark.len())?;
                let is_last = name == "rpartition";
                let cuts = Parts::of(text);
                let parts = match if is_last { text.rfind(mark) } else { text.find(mark) } {
                    Some(at) => [0..at, at..at + mark.len(), at + mark.len()..text.len()].map(|part| cuts.part(part)),
                    None if is_last => [String::new(), String::new(), text.to_string()],
                    None => [text.to_string(), String::new(), String::new()],
                };
                Value::Tuple(List::new(parts.into_iter().map(Value::text).collect())?)
            }
            "removeprefix" | "removesuffix" => {
                let [part] = given.bind(name, ["part"], 1)?;
                let part = self.needed_text(name, part)?;
                let part = part.trim_matches(CUT);
                let rest = if name == "removeprefix" {
                    text.trim_start_matches(CUT).strip_prefix(part).map(|rest| text.len() - rest.len()..text.len())
                } else {
                    text.trim_end_matches(CUT).strip_suffix(part).map(|rest| 0..rest.len())
                };
                rest.map_or_else(|| Value::text(text.clone()), |rest| Value::text(Parts::of(text).part(rest)))
            }
            "center" | "ljust" | "rjust" | "zfill" => self.padded(text, name, given)?,
            _ => {
                none()?;
                Value::Bool(is_kind(text, name)?)
            }
        })
    }

    pub fn needed_text(&self, name: &str, value: Option<Value>) -> Result<Arc<str>> {
        match value {
            Some(Value::Text(text)) => Ok(text),
            Some(Value::Undefined(what)) => fault(&*what),
            Some(value) => fault(format!("{name} needs a text, and not a {}", value.kind())),
            None => fault(format!("{name} needs a text")),
        }
    }

    pub fn optional_text(&self, name: &str, value: Option<Value>) -> Result<Option<Arc<str>>> {
        match value {
            None | Some(Value::None) => Ok(None),
            value => self.needed_text(name, value).map(Some),
        }
    }

    pub fn optional_whole(&self, name: &str, value: Option<Value>) -> Result<Option<i64>> {
        match value {
            None => Ok(None),
            Some(value) => match value.whole() {
                Some(whole) => Ok(Some(whole)),
                None => fault(format!("{name} needs a whole number, and not a {}", value.kind())),
            },
        }
    }

    /// Parts of a text, which lie in it in their order.
    fn texts<'a>(&self, text: &str, parts: impl IntoIterator<Item = &'a str>) -> Result<Value> {
        let (cuts, mut found) = (Parts::of(text), Vec::new());
        for part in parts {
            self.spend(1)?;
            let start = part.as_ptr() as usize - text.as_ptr() as usize;
            found.push(Value::text(cuts.part(start..start + part.len())));
        }
        Ok(Value::List(List::new(found)?))
    }

    pub fn cased(&self, text: &str, name: &str) -> Result<Value> {
        self.spend_bytes(3 * text.len())?;
        Ok(Value::text(match name {
            "upper" => text.to_uppercase(),
            "lower" => text.to_lowercase(),
            _ => {
                let (mut found, mut inside) = (String::with_capacity(text.len()), false);
                for c in text.chars() {
                    if c == CUT {
                        found.push(c);
                        continue;
                    }
                    if inside {
                        found.extend(c.to_lowercase());
                    } else {
                        found.extend(title(c));
                    }
                    if (!inside && title(c).is_none()) || (inside && c == 'Σ') {
                        return fault(format!("{name} of {c:?} is not supported"));
                    }
                    inside = name == "capitalize" || c.is_lowercase() || c.is_uppercase();
                }
                found
            }
        }))
    }

    pub fn strip(&self, text: &str, characters: Option<&str>, left: bool, right: bool) -> Result<Value> {
        self.spend((text.len() as u64 / 64 + 1).saturating_mul(1 + characters.map_or(0, str::len) as u64 / 8))?;
        let goes = |c: char| c == CUT || characters.map_or_else(|| is_space(c), |characters| characters.contains(c));
        let behind = if left { text.trim_start_matches(goes) } else { text };
        let core = if right { behind.trim_end_matches(goes) } else { behind };
        let start = text.len() - behind.len();
        Ok(Value::text(Parts::of(text).part(start..start + core.len())))
    }

    fn split(&self, text: &str, from_the_right: bool, given: &Given) -> Result<Value> {
        let [mark, most] = given.bind("split", ["sep", "maxsplit"], 0)?;
        let mark = self.optional_text("split", mark)?;
        let most = self.optional_whole("split", most)?.unwrap_or(-1);
        let most = usize::try_from(most).unwrap_or(usize::MAX - 1);
        let Some(mark) = mark else { return self.split_at_spaces(text, from_the_right, most) };
        let mark = mark.trim_matches(CUT);
        if mark.is_empty() {
            return fault("empty separator");
        }
        if !from_the_right {
            return self.texts(text, text.splitn(most + 1, mark));
        }
        let mut parts = Vec::new();
        for part in text.rsplitn(most + 1, mark) {
            self.spend(1)?;
            parts.push(part);
        }
        parts.reverse();
        self.texts(text, parts)
    }

    fn split_at_spaces(&self, text: &str, from_the_right: bool, most: usize) -> Result<Value> {
        let (mut parts, mut rest, goes) = (Vec::new(), text, |c: char| c == CUT || is_space(c));
        loop {
            self.spend(1)?;
            rest = if from_the_right { rest.trim_end_matches(goes) } else { rest.trim_start_matches(goes) };
            let end = if from_the_right { rest.rfind(is_space) } else { rest.find(is_space) };
            if rest.is_empty() {
                break;
            }
            if parts.len() == most || end.is_none() {
                parts.push(rest);
                break;
            }
            let end = end.unwrap_or(0);
            if from_the_right {
                let next = end + rest[end..].chars().next().map_or(0, char::len_utf8);
                parts.push(&rest[next..]);
                rest = &rest[..end];
            } else {
                parts.push(&rest[..end]);
                rest = &rest[end..];
            }
        }
        if from_the_right {
            parts.reverse();
        }
        self.texts(text, parts)
    }

    pub fn join(&self, between: &str, items: &[Value]) -> Result<Value> {
        let mut out = String::new();
        for (i, item) in items.iter().enumerate() {
            match item {
                Value::Text(text) => {
                    self.spend_bytes(text.len() + between.len())?;
                    out.push_str(if i > 0 { between } else { "" });
                    out.push_str(text);
                }
                _ => return fault(format!("sequence item {i}: expected str instance, {} found", item.kind())),
            }
        }
        Ok(Value::text(out))
    }

    pub fn replace(&self, text: &str, old: &str, new: &str, count: i64) -> Result<Value> {
        let most = usize::try_from(count).unwrap_or(usize::MAX);
        let old = old.trim_matches(CUT);
        self.spend_bytes(text.len() + old.len())?;
        let found = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() }.min(most);
        self.spend_bytes(text.len().saturating_add(found.saturating_mul(new.len())))?;
        self.spend(found as u64 / 16)?;
        Ok(Value::text(text.replacen(old, new, found)))
    }

    /// The bytes of a range given in characters, and its first character. Nothing is found in a range that ends before
    /// it begins.
    fn part(&self, text: &str, name: &str, start: Option<Value>, end: Option<Value>) -> Result<(usize, usize, i64)> {
        let given =
            |value: Option<Value>| self.optional_whole(name, value.filter(|value| !matches!(value, Value::None)));
        let (start, end) = (given(start)?, given(end)?);
        if start.is_none() && end.is_none() {
            return Ok((0, text.len(), 0));
        }
        let length = uncut(text).count() as i64;
        let place = |index: i64| if index < 0 { index.saturating_add(length).max(0) } else { index };
        let (start, end) = (start.map_or(0, place), end.map_or(length, place).min(length));
        if start > end {
            return Ok((1, 0, 0));
        }
        let byte = |at: i64| characters(text).take(at as usize).map(str::len).sum::<usize>();
        Ok((byte(start), byte(end), start))
    }

    fn padded(&self, text: &str, name: &str, given: &Given) -> Result<Value> {
        let [width, fill] = given.bind(name, ["width", "fillchar"], 1)?;
        let width = self.optional_whole(name, width)?.unwrap_or(0);
        let fill = match (name, fill) {
            ("zfill", None) => '0',
            (_, None) => ' ',
            ("zfill", _) => return fault("zfill() takes exactly one argument"),
            (_, fill) => {
                let fill = self.needed_text(name, fill)?;
                let mut characters = uncut(&fill);
                match (characters.next(), characters.next()) {
                    (Some(c), None) => c,
                    _ => return fault("The fill character must be exactly one character long"),
                }
            }
        };
        self.pad(text, width, fill, name)
    }

    pub fn pad(&self, text: &str, width: i64, fill: char, name: &str) -> Result<Value> {
        let length = uncut(text).count();
        let width = usize::try_from(width).unwrap_or(0);
        let missing = width.saturating_sub(length);
        self.spend_bytes(text.len().saturating_add(missing.saturating_mul(fill.len_utf8())))?;
        let (before, after) = match name {
            "center" => {
                let before = missing / 2 + (missing & width & 1);
                (before, missing - before)
            }
            "ljust" => (0, missing),
            _ => (missing, 0),
        };
        let fills = |count: usize| std::iter::repeat_n(fill, count);
        let signed = name == "zfill" && text.starts_with(['+', '-']);
        let (sign, text) = text.split_at(usize::from(signed));
        Ok(Value::text(sign.chars().chain(fills(before)).chain(text.chars()).chain(fills(after)).collect::<String>()))
    }
}

/// str.isdigit and the like, for ASCII only: Rust's tables for other characters differ from Python's.
pub fn is_kind(text: &str, name: &str) -> Result<bool> {
    let text = &*uncut(text).collect::<String>();
    if name == "isascii" {
        return Ok(text.is_ascii());
    }
    if name == "isspace" {
        return Ok(!text.is_empty() && text.chars().all(is_space));
    }
    if !text.is_ascii() {
        return fault(format!("{name} of a text that is not ASCII is not supported"));
    }
    let all = |is_so: fn(&u8) -> bool| !text.is_empty() && text.bytes().all(|c| is_so(&c));
    Ok(match name {
        "isalpha" => all(u8::is_ascii_alphabetic),
        "isalnum" => all(u8::is_ascii_alphanumeric),
        "islower" => text.bytes().any(|c| c.is_ascii_lowercase()) && !text.bytes().any(|c| c.is_ascii_uppercase()),
        "isupper" => text.bytes().any(|c| c.is_ascii_uppercase()) && !text.bytes().any(|c| c.is_ascii_lowercase()),
        _ => all(u8::is_ascii_digit),
    })
}
