//! Bounds of numbers. Those that the compiler would read in another way are written differently: it computes with
//! doubles, and wrongly accepts an exclusive bound that is a whole number if the other bound has the same whole part: 0
//! with `exclusiveMinimum: 0, maximum: 0.5`. And all numbers get bounds: small models repeat digits without end.

use llguidance::derivre::{ExprRef, RegexAst};
use llguidance::earley::lexerspec::LexerSpec;
use serde_json::{Map, Value};

use crate::error::one_line;

/// In place of zero's neighbour: a pattern is nested as deep as a bound has decimals, which takes time and has a limit.
const NEXT_TO_ZERO: f64 = 1e-20;

/// Above this, a number has no neighbour with the same whole part.
const MOST_WITH_NEIGHBOUR: f64 = (1_u64 << 52) as f64;

const LOWER: [&str; 2] = ["minimum", "exclusiveMinimum"];
const UPPER: [&str; 2] = ["maximum", "exclusiveMaximum"];

/// A round number near the largest of 64 bits with sign. A number that is bounded at all, and an integer, is between its
/// negative and itself.
const MOST: f64 = 9e18;

/// Above this, a `multipleOf` is not combined with bounds that the schema does not have.
const MOST_DIVISOR: f64 = 1000.0;

/// How many decimals a number with bounds has, and the last of them, as the compiler reads it.
const DECIMALS: usize = 10;
const LAST_DECIMAL: f64 = 1e-10;

/// Numbers without bounds, as the compiler writes them (=1.9.1), and with at most 18 digits before the point, 15 after it
/// and 3 in the exponent.
const ANY_NUMBER: &str = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?";
const SHORT_NUMBER: &str = r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,3})?";

/// Whether all numbers of a schema have at most as many decimals as `limit` leaves to numbers with bounds, and none is a
/// `multipleOf`, which the compiler would multiply.
pub fn leaves_decimals(schema: &Value) -> bool {
    match schema {
        Value::Number(number) => {
            let text = number.to_string();
            !text.contains("e-") && text.split_once('.').is_none_or(|(_, decimals)| decimals.len() <= DECIMALS)
        }
        Value::Array(items) => items.iter().all(leaves_decimals),
        Value::Object(fields) => !fields.contains_key("multipleOf") && fields.values().all(leaves_decimals),
        _ => true,
    }
}

/// Bounds the digits of integers, and of numbers with a bound or a `multipleOf`. `has_decimals`: of numbers with bounds,
/// those after the point too (`leaves_decimals`).
pub fn limit(fields: &mut Map<String, Value>, has_decimals: bool) {
    let number = |fields: &Map<String, Value>, name: &str| fields.get(name).and_then(Value::as_f64);
    for (names, sign) in [(LOWER, -1.0), (UPPER, 1.0)] {
        let is_beyond = |name: &&str| number(fields, name).is_some_and(|bound| bound * sign > MOST);
        let beyond: Vec<&str> = names.into_iter().filter(|name| is_beyond(name)).collect();
        for name in beyond {
            fields.shift_remove(name); // it excludes nothing that the bound below does not
            fields.entry(names[0]).or_insert(Value::from(sign * MOST));
        }
    }
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        if types.contains(&Value::from("number")) {
            types.retain(|kind| kind != "integer"); // which are numbers too
        }
    }
    let has = |name: &&str| fields.contains_key(*name);
    if has(&"enum") || has(&"const") {
        return;
    }
    let types = fields.get("type").map(|kind| match kind {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect::<Vec<_>>(),
    });
    let may_be = |name: &str| types.as_ref().is_none_or(|types| types.contains(&name));
    let (is_above, is_below) = (LOWER.iter().any(has), UPPER.iter().any(has));
    let is_number = may_be("number") && (is_above || is_below || has(&"multipleOf"));
    let is_integer = types.is_some() && may_be("integer") && !may_be("number");
    // Each remainder is a state of its own, and so is each digit of a bound.
    let has_many_states = number(fields, "multipleOf").is_some_and(|divisor| divisor > MOST_DIVISOR);
    if !is_number && !is_integer || has_many_states {
        return;
    }
    let given = |names: [&str; 2]| names.into_iter().filter_map(|name| number(fields, name)).collect::<Vec<_>>();
    let least = given(LOWER).into_iter().reduce(f64::max).unwrap_or(-MOST);
    let most = given(UPPER).into_iter().reduce(f64::min).unwrap_or(MOST);
    if least >= MOST || most <= -MOST {
        return;
    }
    if is_number && has_decimals && most - least > 1e4 * LAST_DECIMAL {
        fields.insert("multipleOf".to_owned(), Value::from(LAST_DECIMAL));
    }
    for (is_bounded, name, bound) in [(is_above, LOWER[0], -MOST), (is_below, UPPER[0], MOST)] {
        if !is_bounded {
            fields.insert(name.to_owned(), Value::from(bound));
        }
    }
}

/// Bounds the digits of numbers without bounds, alone or as one of several alternatives, as the lexemes of a compiled
/// schema have them. The compiler has no option for it.
pub fn limit_lexemes(spec: &mut LexerSpec) -> Result<(), String> {
    let mut made = |pattern: &str| {
        let found = spec.regex_builder.mk(&RegexAst::Regex(pattern.to_owned()));
        found.map_err(|error| one_line(&error))
    };
    let (any, short, union) = (made(ANY_NUMBER)?, made(SHORT_NUMBER)?, made("a+|b+")?);
    let expressions = spec.regex_builder.exprset();
    let mut limited = vec![(any, RegexAst::ExprRef(short))]; // expressions, and what replaces them
    for id in 1..expressions.len() as u32 {
        let whole = ExprRef::new(id);
        if expressions.get_tag(whole) == expressions.get_tag(union) && expressions.get_args(whole).contains(&any) {
            let part = |part: &ExprRef| RegexAst::ExprRef(if *part == any { short } else { *part });
            limited.push((whole, RegexAst::Or(expressions.get_args(whole).iter().map(part).collect())));
        }
    }
    let mut classes: Vec<_> = spec.lexemes.iter().map(|lexeme| lexeme.class()).collect();
    classes.dedup();
    let first = spec.current_class;
    for class in classes {
        spec.current_class = class;
        for (whole, shorter) in &limited {
            let add = |spec: &mut LexerSpec, expression| {
                let added = spec.add_greedy_lexeme(String::new(), expression, false, None, usize::MAX);
                added.map_err(|error| one_line(&error))
            };
            // The same lexeme is found, and another one is appended.
            let (count, place) = (spec.lexemes.len(), add(spec, RegexAst::ExprRef(*whole))?.as_usize());
            let mut after = spec.lexemes.split_off(place);
            if place < count {
                add(spec, shorter.clone())?;
                after.drain(..spec.lexemes.len() - place); // its number is that of the lexeme that it replaces
                spec.lexemes.append(&mut after);
            }
        }
    }
    spec.current_class = first;
    Ok(())
}

/// Writes a whole number that is no double, such as the largest of 64 bits, as the nearest double that excludes no less.
pub fn round(fields: &mut Map<String, Value>) {
    for name in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"] {
        let bound = fields.get(name).filter(|bound| !bound.is_f64());
        let whole = bound.and_then(|bound| bound.as_i64().map(i128::from).or_else(|| bound.as_u64().map(i128::from)));
        let Some(whole) = whole.filter(|whole| !is_exact(*whole)) else { continue };
        let nearest = whole as f64;
        let rounded = match name {
            "minimum" | "exclusiveMinimum" if (nearest as i128) < whole => nearest.next_up(),
            "maximum" | "exclusiveMaximum" if (nearest as i128) > whole => nearest.next_down(),
            _ => nearest,
        };
        fields.insert(name.to_owned(), Value::from(rounded));
    }
}

pub fn is_exact(whole: i128) -> bool {
    whole.unsigned_abs() <= 1 << 53
}

/// Writes an exclusive bound as the nearest number inside. Left as they are: bounds of type
/// `integer`, which the compiler reads correctly, and bounds that exclude everything, which its error then names.
pub fn spell(fields: &mut Map<String, Value>) {
    if fields.get("type").is_some_and(|kind| kind == "integer") {
        return;
    }
    let bound = |name: &str| fields.get(name).and_then(Value::as_f64);
    let (minimum, maximum) = (bound("minimum"), bound("maximum"));
    let least = bound("exclusiveMinimum").and_then(above);
    let most = bound("exclusiveMaximum").and_then(|bound| above(-bound)).map(|bound| -bound);
    let least = least.map(|least| minimum.map_or(least, |minimum| minimum.max(least)));
    let most = most.map(|most| maximum.map_or(most, |maximum| maximum.min(most)));
    if least.or(minimum) > most.or(maximum).or(Some(f64::INFINITY)) {
        return;
    }
    let replaced = [("exclusiveMinimum", "minimum", least), ("exclusiveMaximum", "maximum", most)];
    for (exclusive, inclusive, bound) in replaced {
        if let Some(bound) = bound {
            fields.shift_remove(exclusive);
            fields.insert(inclusive.to_owned(), Value::from(bound));
        }
    }
}

/// The neighbour of a bound away from zero; None where the compiler knows the bound itself.
fn above(bound: f64) -> Option<f64> {
    match bound {
        0.0 => Some(NEXT_TO_ZERO),
        _ if (1.0..MOST_WITH_NEIGHBOUR).contains(&bound) && bound.fract() == 0.0 => Some(bound.next_up()),
        _ => None,
    }
}
