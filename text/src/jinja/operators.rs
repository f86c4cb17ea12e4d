//! Arithmetic as in Python, with integers limited to 64 bits.

use super::ast::{Comparison, Operator};
use super::order::MOST_EXACT;
use super::render::Render;
use super::value::{List, Value};
use super::{fault, Result};

impl Render {
    pub fn operate(&self, operator: Operator, a: &Value, b: &Value) -> Result<Value> {
        if let Value::Undefined(what) = a {
            return fault(&**what);
        }
        match (operator, a, b) {
            (Operator::Remainder, Value::Text(form), _) => return self.percent(form, b).map(Value::text),
            (_, _, Value::Undefined(what)) => return fault(&**what),
            (_, Value::Large(_), _) | (_, _, Value::Large(_)) => return fault("a number is too large for this"),
            (Operator::Add, Value::Text(a), Value::Text(b)) => return self.joined(a, b),
            (Operator::Add, Value::Text(_) | Value::Safe(_), Value::Text(_) | Value::Safe(_)) => {
                return self.safe_joined(a, b);
            }
            (Operator::Add, Value::List(a), Value::List(b)) => {
                return List::new(self.chained(&a.items, &b.items)?).map(Value::List)
            }
            (Operator::Add, Value::Tuple(a), Value::Tuple(b)) => {
                return List::new(self.chained(&a.items, &b.items)?).map(Value::Tuple)
            }
            (Operator::Multiply, Value::Text(_) | Value::List(_) | Value::Tuple(_), _) => {
                if let Some(times) = b.whole() {
                    return self.repeated(a, times);
                }
            }
            (Operator::Multiply, _, Value::Text(_) | Value::List(_) | Value::Tuple(_)) => {
                if let Some(times) = a.whole() {
                    return self.repeated(b, times);
                }
            }
            _ => (),
        }
        if let (Some(a), Some(b)) = (a.whole(), b.whole()) {
            return whole(operator, a, b);
        }
        match (a.number(), b.number()) {
            (Some(x), Some(y)) if is_exact(a) && is_exact(b) => real(operator, x, y),
            (Some(_), Some(_)) => fault("a number is too large for this"),
            _ => fault(format!("unsupported operand types for {}: '{}' and '{}'", sign(operator), a.kind(), b.kind())),
        }
    }

    pub fn joined(&self, a: &str, b: &str) -> Result<Value> {
        self.spend_bytes(a.len() + b.len())?;
        Ok(Value::text([a, b].concat()))
    }

    /// A safe text beside another, which is escaped unless it is safe too.
    fn safe_joined(&self, a: &Value, b: &Value) -> Result<Value> {
        let mut parts = Vec::new();
        for part in [a, b] {
            match part {
                Value::Text(text) => parts.push(self.escaped(text)?),
                Value::Safe(text) => parts.push(text.to_string()),
                _ => (),
            }
        }
        match self.joined(&parts[0], &parts[1])? {
            Value::Text(text) => Ok(Value::Safe(text)),
            other => Ok(other),
        }
    }

    fn chained(&self, a: &[Value], b: &[Value]) -> Result<Vec<Value>> {
        self.spend((a.len() + b.len()) as u64)?;
        Ok([a, b].concat())
    }

    fn repeated(&self, value: &Value, times: i64) -> Result<Value> {
        let times = usize::try_from(times).unwrap_or(0);
        match value {
            Value::Text(text) => {
                self.spend_bytes(text.len().saturating_mul(times))?;
                Ok(Value::text(if text.is_empty() { String::new() } else { text.repeat(times) }))
            }
            Value::List(list) | Value::Tuple(list) => {
                self.spend((list.items.len() as u64).saturating_mul(times as u64))?;
                let times = if list.items.is_empty() { 0 } else { times };
                let items = List::new((0..times).flat_map(|_| list.items.iter().cloned()).collect())?;
                Ok(if matches!(value, Value::List(_)) { Value::List(items) } else { Value::Tuple(items) })
            }
            _ => fault("only texts, lists and tuples can be repeated"),
        }
    }

    pub fn is_so(&self, comparison: Comparison, a: &Value, b: &Value) -> Result<bool> {
        Ok(match comparison {
            Comparison::Equal => self.equal(a, b)?,
            Comparison::NotEqual => !self.equal(a, b)?,
            Comparison::Less => self.compare(a, b, "<")?.is_lt(),
            Comparison::LessEqual => self.compare(a, b, "<=")?.is_le(),
            Comparison::Greater => self.compare(a, b, ">")?.is_gt(),
            Comparison::GreaterEqual => self.compare(a, b, ">=")?.is_ge(),
            Comparison::In => self.contains(b, a)?,
            Comparison::NotIn => !self.contains(b, a)?,
        })
    }
}

fn is_exact(value: &Value) -> bool {
    value.whole().is_none_or(|whole| whole.unsigned_abs() <= MOST_EXACT)
}

fn sign(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::FloorDivide => "//",
        Operator::Remainder => "%",
        Operator::Power => "**",
    }
}

fn whole(operator: Operator, a: i64, b: i64) -> Result<Value> {
    let result = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Subtract => a.checked_sub(b),
        Operator::Multiply => a.checked_mul(b),
        Operator::Power if b >= 0 => match (a, u32::try_from(b)) {
            (0 | 1, _) => Some(if b == 0 { 1 } else { a }),
            (-1, _) => Some(if b % 2 == 0 { 1 } else { -1 }),
            (_, Ok(b)) => a.checked_pow(b),
            _ => None,
        },
        _ if b == 0 && !matches!(operator, Operator::Power) => return fault("division by zero"),
        Operator::FloorDivide => a.checked_div_euclid(b).and_then(|_| {
            let quotient = a.checked_div(b)?;
            Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
        }),
        Operator::Remainder => {
            a.checked_rem(b).map(|rest| if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
        }
        Operator::Divide | Operator::Power => {
            if a.unsigned_abs() > MOST_EXACT || b.unsigned_abs() > MOST_EXACT {
                return fault("a number is too large for this");
            }
            return real(operator, a as f64, b as f64);
        }
    };
    result.map(Value::Int).map_or_else(|| fault("a number has more than 64 bits"), Ok)
}

fn real(operator: Operator, a: f64, b: f64) -> Result<Value> {
    if b == 0.0 && matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder) {
        return fault("division by zero");
    }
    let floored = || {
        let mut rest = a % b;
        let mut quotient = (a - rest) / b;
        if rest == 0.0 {
            rest = 0.0_f64.copysign(b);
        } else if (b < 0.0) != (rest < 0.0) {
            rest += b;
            quotient -= 1.0;
        }
        let floor = quotient.floor();
        let quotient = match quotient {
            0.0 => 0.0_f64.copysign(a / b),
            _ if quotient - floor > 0.5 => floor + 1.0,
            _ => floor,
        };
        (quotient, rest)
    };
    let result = match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => a / b,
        Operator::FloorDivide => floored().0,
        Operator::Remainder => floored().1,
        Operator::Power if a == 0.0 && b < 0.0 => return fault("0.0 cannot be raised to a negative power"),
        Operator::Power => a.powf(b),
    };
    if operator == Operator::Power && !result.is_finite() && a.is_finite() && b.is_finite() {
        return fault("a power of such numbers is not supported");
    }
    Ok(Value::Float(result))
}
