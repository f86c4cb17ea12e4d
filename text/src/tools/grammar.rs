//! The text of a call as a grammar.

use std::sync::Arc;

use serde_json::Value;

use super::around::Around;
use super::families::{Family, Form, ARGS};
use super::Function;
use crate::constraint::{schema_in_lark, Constraint, Grammar, JSON_SCHEMA};
use crate::error::{bad_argument, Failure, Result};
use crate::json::{Json, Object};
use crate::language::Language;
use crate::tokenizer::Tokenizer;

const ANY_OBJECT: &str = r#"{"type": "object"}"#;
const MOST_EASED: usize = 8; // keywords; then arguments are any object

/// How a call may begin, and a list of calls go on.
pub struct Lead {
    /// The mark.
    pub with_open: bool,
    /// White space before it.
    pub with_space: bool,
    /// No call is required. Then JSON without marks may have the field "type", which Llama 3.2 often writes, and
    /// there may be several calls in lists, or in `name[ARGS]{...}`.
    pub is_auto: bool,
}

/// A Lark grammar of a call to one of these functions, whose arguments have these schemas. It covers all of a call in
/// JSON, and of another one what stands before its arguments.
pub fn of_calls(
    functions: &[Function],
    schemas: &[String],
    family: &Family,
    around: &Around,
    tokenizer: &Tokenizer,
    lead: &Lead,
) -> Result<String> {
    let mark = |mark: &str| match tokenizer.control_id(mark) {
        Some(id) => format!("<[{id}]>"),
        None => literal(mark),
    };
    let mut rules = Vec::new();
    let mut names = Vec::new();
    for (number, (function, schema)) in functions.iter().zip(schemas).enumerate() {
        let name = Json::Text(function.name.to_owned()).spaced();
        let rule = match family.form {
            Form::Json { .. } | Form::JsonAlone | Form::Actions | Form::Args => {
                let schema = schema_in_lark(schema, ", ", ": ")?; // as models write it
                rules.push(format!("a{number}: %json {schema}"));
                if family.form == Form::Args {
                    format!("{} {} a{number}", literal(function.name), mark(ARGS))
                } else if family.form == Form::Actions {
                    let before = literal(&format!("\", \"tool_name\": {name}, \"parameters\": "));
                    format!("{} /[0-9]{{1,9}}/ {before} a{number} {}", literal("{\"tool_call_id\": \""), literal("}"))
                } else {
                    let field = if family.form == Form::JsonAlone { "parameters" } else { "arguments" };
                    let before = literal(&format!("\"name\": {name}, \"{field}\": "));
                    let is_typed = family.form == Form::JsonAlone && lead.is_auto;
                    let kind = if is_typed { literal("\"type\": \"function\", ") + "?" } else { String::new() };
                    format!("{} {kind} {before} a{number} {}", literal("{"), literal("}"))
                }
            }
            Form::Braces { .. } => literal(&format!("call:{}{{", function.name)),
            Form::Python { .. } | Form::PythonAlone => literal(&format!("{}(", function.name)),
            Form::Xml => literal(&format!("<function={}>\n", function.name)),
        };
        rules.push(format!("c{number}: {rule}"));
        names.push(format!("c{number}"));
    }
    let mut start: Vec<String> = lead.with_space.then(|| "/[ \\n]{0,4}/".to_owned()).into_iter().collect();
    if lead.with_open {
        start.push(literal(family.open));
    }
    start.extend((!around.before.is_empty()).then(|| literal(&around.before)));
    start.push("call".to_owned());
    let between = match family.form {
        Form::Json { is_list: true } | Form::Actions => Some(literal(&around.between)),
        Form::Args => Some(mark(family.open)),
        _ => None,
    };
    start.extend(between.filter(|_| lead.is_auto).map(|between| format!("({between} call)*")));
    if family.is_json() {
        start.extend((!around.behind.is_empty()).then(|| literal(&around.behind)));
        let is_optional = if family.is_alone() { "?" } else { "" };
        start.extend((!family.close.is_empty()).then(|| mark(family.close) + is_optional));
    }
    Ok(format!("start: {}\ncall: {}\n{}\n", start.join(" "), names.join(" | "), rules.join("\n")))
}

/// The schemas of the arguments.
pub fn schemas(functions: &[Function]) -> Vec<String> {
    functions.iter().map(|function| arguments(function).spaced()).collect()
}

fn arguments(function: &Function) -> Json {
    let mut schema = match function.parameters {
        Some(Json::Object(fields)) => fields.as_ref().clone(),
        _ => Object::new(),
    };
    // Without a type a schema allows any value, but only an object is read as arguments.
    schema.entry("type".to_owned()).or_insert_with(|| Json::Text("object".to_owned()));
    Json::Object(Box::new(schema))
}

/// The schemas without the keywords that no grammar can follow: agents pass the tools of others, whose schemas describe
/// more than they restrict. The keyword's failure for a function that is strict, and `failure` if no keyword is at fault.
pub fn eased(language: &Arc<Language>, functions: &[Function], failure: Failure) -> Result<Vec<String>> {
    let mut schemas = schemas(functions);
    let mut is_changed = false;
    for (function, schema) in functions.iter().zip(&mut schemas) {
        let mut tries = 0;
        while let Some(failure) = failure_of(language, schema) {
            if function.is_strict {
                return Err(of_function(function, failure));
            }
            tries += 1;
            let shorter = without_keyword(schema, &failure.sentence).filter(|_| tries < MOST_EASED);
            let is_last = shorter.is_none() && *schema == ANY_OBJECT;
            *schema = shorter.unwrap_or_else(|| ANY_OBJECT.to_owned());
            is_changed = true;
            if is_last {
                return Err(failure);
            }
        }
    }
    if is_changed {
        Ok(schemas)
    } else {
        Err(failure)
    }
}

fn failure_of(language: &Arc<Language>, schema: &str) -> Option<Failure> {
    Grammar::new(JSON_SCHEMA, schema).and_then(|schema| Constraint::new(language.clone(), schema)).err()
}

/// A schema without the keyword that an error message names by its path.
fn without_keyword(schema: &str, sentence: &str) -> Option<String> {
    let (path, _) = sentence.strip_prefix('#')?.split_once(": ")?;
    let (outer, name) = path.rsplit_once('/')?;
    let mut schema: Value = serde_json::from_str(schema).ok()?;
    let name = name.replace("~1", "/").replace("~0", "~");
    let place = schema.pointer_mut(outer)?;
    match place {
        Value::Object(fields) => fields.shift_remove(&name).map(|_| ()),
        Value::Array(items) => items.get_mut(name.parse::<usize>().ok()?).map(|item| *item = Value::Bool(true)),
        _ => None,
    }?;
    schema.as_object_mut()?.entry("type").or_insert_with(|| "object".into());
    Some(schema.to_string())
}

fn of_function(function: &Function, failure: Failure) -> Failure {
    let sentence = format!(
        "the parameters of the function {}: {} (without \"strict\": true, such a keyword is ignored)",
        function.name, failure.sentence
    );
    Failure { sentence, ..failure }
}

/// A text as Lark quotes it.
fn literal(text: &str) -> String {
    Json::Text(text.to_owned()).spaced()
}

/// The functions that may be called.
pub fn chosen<'a>(functions: Vec<Function<'a>>, name: Option<&str>) -> Result<Vec<Function<'a>>> {
    let Some(name) = name else { return Ok(functions) };
    let names: Vec<&str> = functions.iter().map(|function| function.name).collect();
    let list = names.join(", ");
    let found: Vec<Function> = functions.into_iter().filter(|function| function.name == name).collect();
    if found.is_empty() {
        return Err(bad_argument(format!(
            "tool choice: no tool has the name {name}; it is auto, none, required, or one of: {list}"
        )));
    }
    Ok(found)
}
