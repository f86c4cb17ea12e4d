//! Rewrites the bounds of numbers in a schema before it is compiled.
//!
//! The compiler computes with doubles, and wrongly accepts an exclusive bound that is a whole number if the other bound
//! has the same whole part: 0 for `exclusiveMinimum: 0, maximum: 0.5`. `round` and `spell` work around this. And small
//! models may repeat digits without end, so `limit` and `limit_lexemes` bound the length of numbers.

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

/// Integers and bounded numbers are limited to [-MOST, MOST]. A round number just below 2^63.
const MOST: f64 = 9e18;

/// No bounds are added beside a larger `multipleOf`: the automaton would have too many states.
const MOST_DIVISOR: f64 = 1000.0;

/// The most decimals of a bounded number, and the `multipleOf` that enforces it.
const DECIMALS: usize = 10;
const LAST_DECIMAL: f64 = 1e-10;

/// The pattern of llguidance 1.9.1 for a number without bounds, which must match exactly, and its replacement.
const ANY_NUMBER: &str = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?";
const SHORT_NUMBER: &str = r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,3})?";

/// Whether no number in the schema needs more than `DECIMALS` decimals, and there is no `multipleOf`, which the compiler
/// would combine with that of `limit`.
pub fn can_limit_decimals(schema: &Value) -> bool {
    match schema {
        Value::Number(number) => {
            let text = number.to_string();
            !text.contains("e-") && text.split_once('.').is_none_or(|(_, decimals)| decimals.len() <= DECIMALS)
        }
        Value::Array(items) => items.iter().all(can_limit_decimals),
        Value::Object(fields) => !fields.contains_key("multipleOf") && fields.values().all(can_limit_decimals),
        _ => true,
    }
}

/// Adds bounds to integers, and to numbers that have a bound or a `multipleOf`. With `limit_decimals`, numbers also get a
/// `multipleOf`, unless their range is very small.
pub fn limit(fields: &mut Map<String, Value>, limit_decimals: bool) {
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
    let (has_lower, has_upper) = (LOWER.iter().any(has), UPPER.iter().any(has));
    let is_number = may_be("number") && (has_lower || has_upper || has(&"multipleOf"));
    let is_integer = types.is_some() && may_be("integer") && !may_be("number");
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
    if is_number && limit_decimals && most - least > 1e4 * LAST_DECIMAL {
        fields.insert("multipleOf".to_owned(), Value::from(LAST_DECIMAL));
    }
    for (is_bounded, name, bound) in [(has_lower, LOWER[0], -MOST), (has_upper, UPPER[0], MOST)] {
        if !is_bounded {
            fields.insert(name.to_owned(), Value::from(bound));
        }
    }
}

/// Replaces `ANY_NUMBER` by `SHORT_NUMBER` in the compiled lexemes, also where it is one of several alternatives.
/// llguidance has no option for this.
pub fn limit_lexemes(spec: &mut LexerSpec) -> Result<(), String> {
    let mut made = |pattern: &str| {
        let found = spec.regex_builder.mk(&RegexAst::Regex(pattern.to_owned()));
        found.map_err(|error| one_line(&error))
    };
    let (any, short) = (made(ANY_NUMBER)?, made(SHORT_NUMBER)?);
    let union = made("a+|b+")?; // for the tag of alternatives
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
            // It returns the index of a lexeme that is there, and otherwise appends one.
            let (count, place) = (spec.lexemes.len(), add(spec, RegexAst::ExprRef(*whole))?.as_usize());
            let mut after = spec.lexemes.split_off(place);
            if place < count {
                add(spec, shorter.clone())?;
                after.drain(..spec.lexemes.len() - place); // the new lexeme has the index that the grammar refers to
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
