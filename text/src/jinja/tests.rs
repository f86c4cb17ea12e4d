//! jinja2's tests: `value is name`.

use std::rc::Rc;

use super::arguments::Given;
use super::ast::Comparison;
use super::render::Render;
use super::value::Value;
use super::words::is_kind;
use super::{fault, filters, Result};

pub const NAMES: [&str; 39] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

impl Render {
    pub fn test(&self, name: &str, value: &Value, given: &Given) -> Result<bool> {
        self.spend(1)?;
        let comparison = match name {
            "==" | "eq" | "equalto" => Some(Comparison::Equal),
            "!=" | "ne" => Some(Comparison::NotEqual),
            "<" | "lt" | "lessthan" => Some(Comparison::Less),
            "<=" | "le" => Some(Comparison::LessEqual),
            ">" | "gt" | "greaterthan" => Some(Comparison::Greater),
            ">=" | "ge" => Some(Comparison::GreaterEqual),
            "in" => Some(Comparison::In),
            _ => None,
        };
        let other = |name: &str| given.bind(name, ["other"], 1).map(|[other]| other.unwrap_or(Value::None));
        if let Some(comparison) = comparison {
            return self.is_so(comparison, value, &other(name)?);
        }
        if !matches!(name, "divisibleby" | "sameas") {
            given.bind(name, [], 0)?;
        }
        Ok(match name {
            "defined" => !value.is_undefined(),
            "undefined" => value.is_undefined(),
            "none" => matches!(value, Value::None),
            "boolean" => matches!(value, Value::Bool(_)),
            "true" => matches!(value, Value::Bool(true)),
            "false" => matches!(value, Value::Bool(false)),
            "integer" => matches!(value, Value::Int(_) | Value::Large(_)),
            "float" => matches!(value, Value::Float(_)),
            "number" => value.number().is_some() || matches!(value, Value::Large(_)),
            "string" => matches!(value, Value::Text(_) | Value::Safe(_)),
            "mapping" => matches!(value, Value::Dict(_)),
            "escaped" => matches!(value, Value::Safe(_)),
            "callable" => matches!(
                value,
                Value::Undefined(_)
                    | Value::Macro(_)
                    | Value::Loop(_)
                    | Value::Method(_)
                    | Value::Function(_)
                    | Value::Joiner(_)
            ),
            "iterable" => matches!(value, Value::Safe(_) | Value::Loop(_)) || self.iterate(value).is_ok(),
            "sequence" => matches!(
                value,
                Value::Undefined(_)
                    | Value::Text(_)
                    | Value::Safe(_)
                    | Value::List(_)
                    | Value::Tuple(_)
                    | Value::Dict(_)
                    | Value::Range(_)
            ),
            "odd" | "even" => {
                let rest = self.operate(super::ast::Operator::Remainder, value, &Value::Int(2))?;
                if rest.number().is_none() {
                    return fault(format!("'{name}' is for numbers"));
                }
                self.equal(&rest, &Value::Int(i64::from(name == "odd")))?
            }
            "divisibleby" => {
                let rest = self.operate(super::ast::Operator::Remainder, value, &other(name)?)?;
                self.equal(&rest, &Value::Int(0))?
            }
            "lower" | "upper" => {
                let text = self.text_of(value)?;
                self.spend_text(&text)?;
                is_kind(&text, if name == "lower" { "islower" } else { "isupper" })?
            }
            "filter" | "test" => match value {
                Value::Text(text) if name == "filter" && filters::NAMES.contains(&&**text) => true,
                Value::Text(text) if name == "test" && NAMES.contains(&&**text) => true,
                Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Undefined(_) => false,
                _ => return fault(format!("'{name}' of such a name is not supported")),
            },
            "sameas" => self.is_same(value, &other(name)?)?,
            _ => return fault(format!("there is no test '{name}' in a chat template")),
        })
    }

    fn is_same(&self, a: &Value, b: &Value) -> Result<bool> {
        Ok(match (a, b) {
            (Value::None, Value::None) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::List(a), Value::List(b)) => Rc::ptr_eq(a, b),
            (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b),
            (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
            _ if a.kind() != b.kind() => false,
            _ => return fault(format!("'sameas' of two values of the kind {} is not supported", a.kind())),
        })
    }
}
