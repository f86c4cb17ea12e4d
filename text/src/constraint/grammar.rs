//! Grammars of three kinds, compiled for a vocabulary.

use llguidance::api::TopLevelGrammar;
use llguidance::TokenParser;

use super::limits::MOST_BYTES;
use super::vocabulary::Vocabulary;
use crate::error::{bad_argument, bad_grammar, one_line, Result};

#[derive(Clone)]
pub enum Grammar {
    JsonSchema(serde_json::Value),
    Regex(String),
    Lark(String),
}

impl Grammar {
    /// `kind` is SF_JSON_SCHEMA, SF_REGEX or SF_LARK.
    pub fn new(kind: i32, text: &str) -> Result<Grammar> {
        let name = match kind {
            1 => "schema",
            2 => "regular expression",
            3 => "grammar",
            _ => return Err(bad_argument(format!("{kind} is no kind of grammar: SF_JSON_SCHEMA, SF_REGEX, SF_LARK"))),
        };
        if text.len() > MOST_BYTES {
            return Err(bad_grammar(format!("the {name} has {} bytes; at most {MOST_BYTES} are read", text.len())));
        }
        Ok(match kind {
            1 => Grammar::JsonSchema(schema_of(text)?),
            2 => Grammar::Regex(text.to_owned()),
            _ => Grammar::Lark(text.to_owned()),
        })
    }

    /// A parser at the beginning of a text.
    pub fn parser(&self, vocabulary: &Vocabulary) -> Result<TokenParser> {
        let grammar = match self {
            Grammar::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Grammar::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        };
        let refuse = |reason: String| bad_grammar(format!("the {}: {reason}", self.name()));
        let mut parser = vocabulary.factory.create_parser(grammar).map_err(|error| refuse(one_line(&error)))?;
        parser.start_without_prompt();
        parser.parser.grammar().lexer_spec().check_rollback().map_err(|error| refuse(one_line(&error)))?;
        Ok(parser)
    }

    fn name(&self) -> &'static str {
        match self {
            Grammar::JsonSchema(_) => "schema",
            Grammar::Regex(_) => "regular expression",
            Grammar::Lark(_) => "grammar",
        }
    }
}

/// The schema with our options for white space where it has none.
fn schema_of(text: &str) -> Result<serde_json::Value> {
    let mut schema: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| bad_grammar(format!("the schema is not valid JSON ({})", one_line(&error))))?;
    if let Some(fields) = schema.as_object_mut() {
        let options = fields.entry("x-guidance").or_insert_with(|| serde_json::json!({}));
        let Some(options) = options.as_object_mut() else {
            return Err(bad_grammar("x-guidance: must be an object"));
        };
        if options.get("lenient").is_some_and(|lenient| lenient != false) {
            return Err(bad_grammar("x-guidance.lenient: must be false; keywords that are not supported are errors"));
        }
        options.entry("whitespace_flexible").or_insert(serde_json::Value::Bool(false));
    }
    Ok(schema)
}
