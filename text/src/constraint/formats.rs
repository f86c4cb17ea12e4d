//! Formats whose texts llguidance does not know exactly, as patterns.

use serde_json::{Map, Value};

/// Those that restrict a text; others are annotations.
pub const FORMATS: [&str; 16] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "uri-reference",
    "iri",
    "iri-reference",
    "uri-template",
    "json-pointer",
    "relative-json-pointer",
];

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

const HEX: &str = "%[0-9a-fA-F]{2}";

/// RFC 6901.
const JSON_POINTER: &str = "(?:/(?:[^/~]|~[01])*)*";

/// RFC 6570.
const URI_TEMPLATE: &str =
    concat!(r#"(?:[^\x00-\x20\x7f-\x9f"%<>\\^`{|}]|%[0-9a-fA-F]{2}|\{[+#./;?&=,!@|]?"#, r"VARIABLE(?:,VARIABLE)*\})*");
const VARIABLE: &str =
    concat!("(?:[0-9a-zA-Z_]|%[0-9a-fA-F]{2})(?:\\.?(?:[0-9a-zA-Z_]|%[0-9a-fA-F]{2}))*", r"(?:\*|:[1-9][0-9]{0,3})?");

/// RFC 3987: characters that an IRI may have beside those of a URI, anywhere and in a query only.
const OTHER_SCRIPTS: &str = concat!(
    r"\xa0-\x{d7ff}\x{f900}-\x{fdcf}\x{fdf0}-\x{ffef}\x{10000}-\x{1fffd}\x{20000}-\x{2fffd}\x{30000}-\x{3fffd}",
    r"\x{40000}-\x{4fffd}\x{50000}-\x{5fffd}\x{60000}-\x{6fffd}\x{70000}-\x{7fffd}\x{80000}-\x{8fffd}",
    r"\x{90000}-\x{9fffd}\x{a0000}-\x{afffd}\x{b0000}-\x{bfffd}\x{c0000}-\x{cfffd}\x{d0000}-\x{dfffd}",
    r"\x{e1000}-\x{efffd}"
);
const PRIVATE: &str = r"\x{e000}-\x{f8ff}\x{f0000}-\x{ffffd}\x{100000}-\x{10fffd}";

/// RFC 3986: a URI, or a reference that may leave out its beginning.
fn uri(is_reference: bool, other: &str, private: &str) -> String {
    let plain = format!("0-9a-zA-Z._~!$&'()*+,;={other}-"); // unreserved, and the delimiters that have no meaning here
    let character = format!("(?:[:@{plain}]|{HEX})");
    let path = format!("(?:/{character}*)*");
    let host = format!(r"(?:\[(?:{}|[vV][0-9a-fA-F]+\.[:{plain}]+)\]|(?:[{plain}]|{HEX})*)", ipv6());
    let authority = format!("//(?:(?:[:{plain}]|{HEX})*@)?{host}(?::[0-9]*)?");
    let absolute = format!("{authority}{path}|/(?:{character}+{path})?");
    let whole = format!("[a-zA-Z][0-9a-zA-Z+.-]*:(?:{absolute}|{character}+{path}|)");
    let relative = format!("{absolute}|(?:[@{plain}]|{HEX})+{path}|");
    let beginning = if is_reference { format!("(?:{whole}|{relative})") } else { whole };
    format!(r"{beginning}(?:\?(?:[/?{private}]|{character})*)?(?:#(?:[/?]|{character})*)?")
}

/// The patterns that a text of this format matches, all of them; none where llguidance knows the format.
fn patterns(format: &str) -> Vec<String> {
    match format {
        "date" => vec![DATE.to_owned()],
        "time" => vec![TIME.to_owned()],
        "date-time" => vec![format!("{DATE}[tT]{TIME}")],
        "hostname" => vec![format!(r"{LABEL}(?:\.{LABEL})*"), ".{1,253}".to_owned()],
        "ipv6" => vec![ipv6()],
        "uri-reference" => vec![uri(true, "", "")],
        "iri" => vec![uri(false, OTHER_SCRIPTS, PRIVATE)],
        "iri-reference" => vec![uri(true, OTHER_SCRIPTS, PRIVATE)],
        "uri-template" => vec![URI_TEMPLATE.replace("VARIABLE", VARIABLE)],
        "json-pointer" => vec![JSON_POINTER.to_owned()],
        "relative-json-pointer" => vec![format!("(?:0|[1-9][0-9]*)(?:#|{JSON_POINTER})")],
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

/// Writes a schema's `format` as what it means, where it is one of these, and removes one that says nothing.
pub fn spell(fields: &mut Map<String, Value>) {
    let Some(format) = fields.get("format").and_then(Value::as_str) else { return };
    let found = patterns(format);
    if found.is_empty() && FORMATS.contains(&format) {
        return; // the compiler knows it
    }
    fields.shift_remove("format");
    for pattern in found {
        let pattern = Value::String(format!("^(?:{pattern})$"));
        if !fields.contains_key("pattern") {
            fields.insert("pattern".to_owned(), pattern);
        } else if let Value::Array(all) = fields.entry("allOf").or_insert_with(|| Value::Array(Vec::new())) {
            all.push(serde_json::json!({ "pattern": pattern }));
        }
    }
}
