//! Formats whose texts llguidance does not know exactly, as patterns.

use serde_json::{Map, Value};

const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)" // leap years
);

/// A leap second only at the end of a day of UTC, written as UTC. Small models do not end fractions, so these have at most
/// fifteen digits, the longest in the JSON Schema Test Suite.
const TIME: &str = concat!(
    r"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,15})?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
    r"|23:59:60(?:\.[0-9]{1,15})?(?:[zZ]|[+-]00:00))"
);

/// At most 63 characters, and no `--` in the third and fourth place, which marks names in other scripts.
const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9]|[a-zA-Z0-9-][a-zA-Z0-9]|[a-zA-Z0-9-][a-zA-Z0-9-][a-zA-Z0-9]\
    |[a-zA-Z0-9-](?:[a-zA-Z0-9][a-zA-Z0-9-]|-[a-zA-Z0-9])[a-zA-Z0-9-]{0,58}[a-zA-Z0-9])?";

const IPV4: &str =
    r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

/// The patterns that a text of this format matches, all of them; none where llguidance knows the format.
fn patterns(format: &str) -> Vec<String> {
    match format {
        "date" => vec![DATE.to_owned()],
        "time" => vec![TIME.to_owned()],
        "date-time" => vec![format!("{DATE}[tT]{TIME}")],
        "hostname" => vec![format!(r"{LABEL}(?:\.{LABEL})*"), ".{1,253}".to_owned()],
        "ipv6" => vec![ipv6()],
        _ => Vec::new(),
    }
}

/// RFC 4291: eight groups, of which one run is left out as `::`; the last two may be an IPv4 address.
fn ipv6() -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let last = format!("(?:{group}:{group}|{IPV4})");
    let mut forms = vec![format!("(?:{group}:){{6}}{last}")];
    for after in 0..=7 {
        // Groups behind `::`, of which the last two may be an address, and at most as many in front as are left.
        let behind = match after {
            0 => String::new(),
            1 => group.to_owned(),
            _ => format!("(?:{group}:){{{}}}{last}", after - 2),
        };
        let front = match 7 - after {
            0 => String::new(),
            most => format!("(?:(?:{group}:){{0,{}}}{group})?", most - 1),
        };
        forms.push(format!("{front}::{behind}"));
    }
    format!("(?:{})", forms.join("|"))
}

/// Writes a schema's `format` as what it means, where it is one of these.
pub fn spell(fields: &mut Map<String, Value>) {
    let found = fields.get("format").and_then(Value::as_str).map(patterns).unwrap_or_default();
    if found.is_empty() {
        return;
    }
    fields.shift_remove("format");
    for pattern in found {
        let pattern = Value::String(format!("^{pattern}$"));
        if !fields.contains_key("pattern") {
            fields.insert("pattern".to_owned(), pattern);
        } else if let Value::Array(all) = fields.entry("allOf").or_insert_with(|| Value::Array(Vec::new())) {
            all.push(serde_json::json!({ "pattern": pattern }));
        }
    }
}
