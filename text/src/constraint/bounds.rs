//! Bounds that the compiler would read in another way. It computes with doubles, and wrongly accepts an exclusive bound that
//! is a whole number if the other bound has the same whole part: 0 with `exclusiveMinimum: 0, maximum: 0.5`.

use serde_json::{Map, Value};

/// In place of zero's neighbour: a pattern is nested as deep as a bound has decimals, which takes time and has a limit.
const NEXT_TO_ZERO: f64 = 1e-20;

/// Above this, a number has no neighbour with the same whole part.
const MOST: f64 = (1_u64 << 52) as f64;

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
        _ if (1.0..MOST).contains(&bound) && bound.fract() == 0.0 => Some(bound.next_up()),
        _ => None,
    }
}
