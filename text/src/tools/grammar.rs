//! The text of a call as a grammar.

use std::sync::Arc;

use super::families::{Family, Form, ARGS};
use super::Function;
use crate::constraint::{schema_in_lark, Constraint, Grammar, JSON_SCHEMA};
use crate::error::{bad_argument, Failure, Result};
use crate::json::{Json, Object};
use crate::language::Language;
use crate::tokenizer::Tokenizer;

/// How a call may begin, and a list of calls go on.
pub struct Lead {
    /// The mark.
    pub with_open: bool,
    /// White space before it.
    pub with_space: bool,
    /// No call is required. Then JSON without marks may have the field "type", which Llama 3.2 often writes, and
    /// formats with at most one closing mark may have several calls.
    pub is_auto: bool,
}

/// A Lark grammar of a call to one of these functions. It covers all of a call in JSON, and of another one what stands
/// before its arguments.
pub fn of_calls(functions: &[Function], family: &Family, tokenizer: &Tokenizer, lead: Lead) -> Result<String> {
    let mark = |mark: &str| match tokenizer.control_id(mark) {
        Some(id) => format!("<[{id}]>"),
        None => literal(mark),
    };
    let mut rules = Vec::new();
    let mut names = Vec::new();
    for (number, function) in functions.iter().enumerate() {
        let name = Json::Text(function.name.to_owned()).spaced();
        let rule = match family.form {
            Form::Json { .. } | Form::JsonAlone | Form::Args => {
                let schema = schema_in_lark(&arguments(function).spaced(), ", ", ": ") // as models write it
                    .map_err(|failure| of_function(function, failure))?;
                rules.push(format!("a{number}: %json {schema}"));
                if family.form == Form::Args {
                    format!("{} {} a{number}", literal(function.name), mark(ARGS))
                } else {
                    let field = if family.form == Form::JsonAlone { "parameters" } else { "arguments" };
                    let before = literal(&format!("\"name\": {name}, \"{field}\": "));
                    let is_typed = family.form == Form::JsonAlone && lead.is_auto;
                    let kind = if is_typed { literal("\"type\": \"function\", ") + "?" } else { String::new() };
                    format!("{} {kind} {before} a{number} {}", literal("{"), literal("}"))
                }
            }
            Form::Braces { .. } => literal(&format!("call:{}{{", function.name)),
            Form::Python { .. } => literal(&format!("{}(", function.name)),
            Form::Xml => literal(&format!("<function={}>\n", function.name)),
        };
        rules.push(format!("c{number}: {rule}"));
        names.push(format!("c{number}"));
    }
    let (before, behind) = match family.form {
        Form::Json { is_list: true, .. } => ("[", "]"),
        Form::Json { .. } => ("\n", "\n"),
        Form::Xml => ("\n", ""),
        Form::Python { is_list: true } => ("[", ""),
        _ => ("", ""),
    };
    let mut start: Vec<String> = lead.with_space.then(|| "/[ \\n]{0,4}/".to_owned()).into_iter().collect();
    if lead.with_open {
        start.push(literal(family.open));
    }
    start.extend((!before.is_empty()).then(|| literal(before)));
    start.push("call".to_owned());
    let between = match family.form {
        Form::Json { is_list: true, .. } => Some(literal(", ")),
        Form::Args => Some(mark(family.open)),
        _ => None,
    };
    start.extend(between.filter(|_| lead.is_auto).map(|between| format!("({between} call)*")));
    if family.is_json() {
        start.extend((!behind.is_empty()).then(|| literal(behind)));
        start.extend((!family.close.is_empty()).then(|| mark(family.close)));
    }
    Ok(format!("start: {}\ncall: {}\n{}\n", start.join(" "), names.join(" | "), rules.join("\n")))
}

/// The schema of a function's arguments.
fn arguments(function: &Function) -> Json {
    let mut schema = match function.parameters {
        Some(Json::Object(fields)) => fields.as_ref().clone(),
        _ => Object::new(),
    };
    // Without a type a schema allows any value, but only an object is read as arguments.
    schema.entry("type".to_owned()).or_insert_with(|| Json::Text("object".to_owned()));
    Json::Object(Box::new(schema))
}

/// The failure of a grammar of calls, as that of the function whose schema is at fault.
pub fn blamed(language: &Arc<Language>, functions: &[Function], failure: Failure) -> Failure {
    let own = |function: &Function| {
        let schema = Grammar::new(JSON_SCHEMA, &arguments(function).spaced());
        let failure = schema.and_then(|schema| Constraint::new(language.clone(), schema)).err()?;
        Some(of_function(function, failure))
    };
    functions.iter().find_map(own).unwrap_or(failure)
}

fn of_function(function: &Function, failure: Failure) -> Failure {
    let sentence = format!("the parameters of the function {}: {}", function.name, failure.sentence);
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
