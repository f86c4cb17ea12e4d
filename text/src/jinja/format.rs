//! `text % values`, `text.format(values)`: strings, integers and decimals with width and precision.

use std::borrow::Cow;

use super::arguments::Given;
use super::render::Render;
use super::value::Value;
use super::{fault, Result};
use crate::control_tokens::{characters, uncut, Parts};

/// The format of a value.
#[derive(Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    width: usize,
    is_grouped: bool,
    precision: Option<usize>,
    kind: Option<char>,
}

/// Parses a number at the beginning of the text.
fn number(text: &mut &str) -> Result<Option<usize>> {
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(length);
    *text = rest;
    match digits.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) if digits.is_empty() => Ok(None),
        Err(_) => fault("a width is too large"),
    }
}

fn take(text: &mut &str, characters: &str) -> Option<char> {
    let first = text.chars().next().filter(|c| characters.contains(*c))?;
    *text = &text[first.len_utf8()..];
    Some(first)
}

impl Render {
    pub fn percent(&self, form: &str, values: &Value) -> Result<String> {
        self.spend_text(form)?;
        let (mut out, mut rest) = (String::new(), form);
        let alone = [values.clone()];
        let mut given = match values {
            Value::Tuple(tuple) => tuple.items.iter(),
            _ => alone.iter(),
        };
        let mut is_named = false;
        while let Some(at) = rest.find('%') {
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let mut name = None;
            if let Some(inner) = rest.strip_prefix('(') {
                let Some((inside, after)) = inner.split_once(')') else { return fault("incomplete format key") };
                if inside.contains('(') {
                    return fault("a format key with brackets is not supported");
                }
                (name, rest) = (Some(inside), after);
            }
            let (mut spec, mut is_zero) = (Spec::default(), false);
            while let Some(flag) = take(&mut rest, "-+ 0") {
                match flag {
                    '-' => spec.align = Some('<'),
                    '0' => is_zero = true,
                    _ => spec.sign = Some(if spec.sign == Some('+') { '+' } else { flag }),
                }
            }
            spec.width = number(&mut rest)?.unwrap_or(0);
            if take(&mut rest, ".").is_some() {
                spec.precision = Some(number(&mut rest)?.unwrap_or(0));
            }
            take(&mut rest, "hlL");
            let Some(kind) = take(&mut rest, "sdifr%") else {
                return fault("a format of this kind is not supported");
            };
            if kind == '%' {
                if name.is_some() || spec.width > 0 || spec.precision.is_some() {
                    return fault("a percent sign with a width is not supported");
                }
                out.push('%');
                continue;
            }
            let value = match (name, values) {
                (Some(name), Value::Dict(dict)) => {
                    is_named = true;
                    match dict.get(name) {
                        Some(value) => value.clone(),
                        None => return fault(format!("there is no '{name}'")),
                    }
                }
                (Some(_), _) => return fault("format requires a mapping"),
                (None, _) => match given.next() {
                    Some(value) => value.clone(),
                    None => return fault("not enough arguments for format string"),
                },
            };
            match (kind, &value) {
                ('s' | 'r', _) => {
                    let text = if kind == 's' {
                        self.text_of(&value)?
                    } else {
                        let mut text = String::new();
                        self.write_repr(&value, &mut text)?;
                        text.into()
                    };
                    spec.align = spec.align.or(Some('>'));
                    spec.sign = None;
                    self.write_padded(&text, &spec, &mut out)?;
                }
                (_, Value::Undefined(what)) => return fault(&**what),
                ('d' | 'i', _) if value.whole().is_some() => {
                    if spec.precision.is_some() {
                        return fault("a whole number with a precision is not supported");
                    }
                    spec.align = spec.align.or(Some(if is_zero { '=' } else { '>' }));
                    self.write_number(value.whole().unwrap_or(0).to_string(), is_zero, &spec, &mut out)?;
                }
                ('d' | 'i', Value::Float(number))
                    if number.abs() < (1_u64 << 53) as f64 && spec.precision.is_none() =>
                {
                    spec.align = spec.align.or(Some(if is_zero { '=' } else { '>' }));
                    self.write_number((number.trunc() as i64).to_string(), is_zero, &spec, &mut out)?;
                }
                ('f', _) if value.number().is_some() => {
                    spec.align = spec.align.or(Some(if is_zero { '=' } else { '>' }));
                    let digits = self.decimals(&value, spec.precision)?;
                    self.write_number(digits, is_zero, &spec, &mut out)?;
                }
                _ => return fault(format!("%{kind} format: a number is required, not {}", value.kind())),
            }
        }
        out.push_str(rest);
        let is_left = given.next().is_some();
        if is_left
            && !is_named
            && !matches!(values, Value::Dict(_) | Value::List(_) | Value::Range(_) | Value::Undefined(_))
        {
            return fault("not all arguments converted during string formatting");
        }
        Ok(out)
    }

    fn decimals(&self, value: &Value, precision: Option<usize>) -> Result<String> {
        let precision = precision.unwrap_or(6);
        let number = value.number().unwrap_or(0.0);
        if !number.is_finite() || precision > 1000 || value.whole().is_some_and(|whole| whole.unsigned_abs() > 1 << 53)
        {
            return fault("a decimal of such a number is not supported");
        }
        self.spend_bytes(precision + 400)?;
        Ok(format!("{number:.precision$}"))
    }

    /// Writes a number with its sign before the fill characters.
    fn write_number(&self, digits: String, is_zero: bool, spec: &Spec, out: &mut String) -> Result<()> {
        let (sign, digits) = match digits.strip_prefix('-') {
            Some(rest) => ("-", rest.to_owned()),
            None => (
                spec.sign.map_or("", |sign| {
                    if sign == '+' {
                        "+"
                    } else if sign == ' ' {
                        " "
                    } else {
                        ""
                    }
                }),
                digits,
            ),
        };
        let length = sign.len() + digits.len();
        let missing = spec.width.saturating_sub(length);
        self.spend_bytes(length.saturating_add(missing.saturating_mul(4)))?;
        let fill = spec.fill.unwrap_or(if is_zero && spec.align != Some('<') { '0' } else { ' ' });
        if spec.align == Some('=') {
            out.push_str(sign);
            out.extend(std::iter::repeat_n(fill, missing));
            out.push_str(&digits);
            return Ok(());
        }
        let whole = Spec { fill: Some(fill), align: spec.align.or(Some('>')), width: spec.width, ..Spec::default() };
        self.write_padded(&format!("{sign}{digits}"), &whole, out)
    }

    fn write_padded(&self, text: &str, spec: &Spec, out: &mut String) -> Result<()> {
        self.spend_text(text)?;
        let text = &match spec.precision {
            Some(most) => Cow::from(Parts::of(text).part(0..characters(text).take(most).map(str::len).sum())),
            None => Cow::from(text),
        };
        let missing = spec.width.saturating_sub(uncut(text).count());
        self.spend_bytes(text.len().saturating_add(missing.saturating_mul(4)))?;
        let before = match spec.align {
            Some('>') => missing,
            Some('^') => missing / 2,
            _ => 0,
        };
        let fill = spec.fill.unwrap_or(' ');
        out.extend(std::iter::repeat_n(fill, before));
        out.push_str(text);
        out.extend(std::iter::repeat_n(fill, missing - before));
        Ok(())
    }

    /// str.format, with named and numbered fields.
    pub fn format(&self, form: &str, given: &Given) -> Result<String> {
        self.spend_text(form)?;
        let (mut out, mut rest, mut next, mut numbered) = (String::new(), form, 0, None);
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let mark = &rest[at..at + 1];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(mark) {
                out.push_str(mark);
                rest = after;
                continue;
            }
            if mark == "}" {
                return fault("Single '}' encountered in format string");
            }
            let Some((field, after)) = rest.split_once('}') else { return fault("expected '}' before end of string") };
            rest = after;
            let (field, spec) = field.split_once(':').unwrap_or((field, ""));
            let (name, conversion) = field.split_once('!').unwrap_or((field, ""));
            let index = if name.is_empty() {
                next += 1;
                Some((false, next - 1))
            } else {
                name.parse().ok().filter(|_| name.bytes().all(|c| c.is_ascii_digit())).map(|index: usize| (true, index))
            };
            let value = match index {
                Some((is_given, index)) => {
                    if *numbered.get_or_insert(is_given) != is_given {
                        return fault("cannot switch between manual field specification and automatic numbering");
                    }
                    given.positional.get(index)
                }
                None => given.named.iter().find(|(known, _)| **known == *name).map(|(_, value)| value),
            };
            let Some(value) = value else { return fault(format!("format has no value for '{{{name}}}'")) };
            match conversion {
                "" => self.write_formatted(value, spec, &mut out)?,
                "s" => self.write_formatted(&Value::Text(self.text_of(value)?), spec, &mut out)?,
                "r" => {
                    let mut text = String::new();
                    self.write_repr(value, &mut text)?;
                    self.write_formatted(&Value::text(text), spec, &mut out)?;
                }
                _ => return fault("a conversion of this kind is not supported"),
            }
        }
        out.push_str(rest);
        Ok(out)
    }

    fn write_formatted(&self, value: &Value, form: &str, out: &mut String) -> Result<()> {
        if form.is_empty() {
            return self.write(value, out);
        }
        let (mut spec, mut rest) = (Spec::default(), form);
        let mut characters = rest.chars();
        let (first, second) = (characters.next(), characters.next());
        if second.is_some_and(|c| "<>=^".contains(c)) {
            (spec.fill, spec.align) = (first, second);
            rest = characters.as_str();
        } else {
            spec.align = take(&mut rest, "<>=^");
        }
        spec.sign = take(&mut rest, "+- ");
        let is_zero = take(&mut rest, "0").is_some();
        spec.width = number(&mut rest)?.unwrap_or(0);
        spec.is_grouped = take(&mut rest, ",").is_some();
        if take(&mut rest, ".").is_some() {
            spec.precision = match number(&mut rest)? {
                None => return fault("Format specifier missing precision"),
                precision => precision,
            };
        }
        spec.kind = take(&mut rest, "sdf");
        let is_number = matches!(value, Value::Int(_) | Value::Float(_));
        if !rest.is_empty() || (is_zero && (!is_number || spec.align.is_some())) {
            return fault(format!("the format '{form}' is not supported"));
        }
        if is_zero {
            spec.align = Some('=');
        }
        match (value, spec.kind) {
            (Value::Text(text), None | Some('s')) if spec.sign.is_none() && !spec.is_grouped => {
                if spec.align == Some('=') {
                    return fault("'=' alignment not allowed in string format specifier");
                }
                self.write_padded(text, &spec, out)
            }
            (Value::Int(number), None | Some('d')) if spec.precision.is_none() => {
                let mut digits = number.to_string();
                if spec.is_grouped {
                    if is_zero {
                        return fault(format!("the format '{form}' is not supported"));
                    }
                    digits = grouped(&digits);
                }
                self.write_number(digits, is_zero, &spec, out)
            }
            (Value::Int(_) | Value::Float(_), Some('f')) if !spec.is_grouped => {
                let digits = self.decimals(value, spec.precision)?;
                self.write_number(digits, is_zero, &spec, out)
            }
            _ => fault(format!("the format '{form}' of a {} is not supported", value.kind())),
        }
    }
}

fn grouped(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let mut out = sign.to_owned();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}
