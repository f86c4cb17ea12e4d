//! Grammars of three kinds, compiled for a vocabulary.

use std::panic::AssertUnwindSafe;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, TokenParser};
use serde_json::Value;

use super::limits::{LARK_LIMITS, LIMITS, MOST_BYTES, STACK_BYTES};
use super::vocabulary::Vocabulary;
use super::{blame, bounds, breadth, lark, schema};
use crate::error::{bad_argument, bad_grammar, one_line, Result};
use crate::stack::on_a_stack;

pub const JSON_SCHEMA: i32 = 1; // SF_JSON_SCHEMA
const REGEX: i32 = 2; // SF_REGEX
const LARK: i32 = 3; // SF_LARK

pub enum Grammar {
    JsonSchema { original: Value, prepared: Value },
    Regex(String),
    Lark(String, ParserLimits),
}

impl Grammar {
    /// `kind` is SF_JSON_SCHEMA, SF_REGEX or SF_LARK.
    pub fn new(kind: i32, text: &str) -> Result<Grammar> {
        let name = match kind {
            JSON_SCHEMA => "schema",
            REGEX => "regular expression",
            LARK => "grammar",
            _ => return Err(bad_argument(format!("{kind} is no kind of grammar: SF_JSON_SCHEMA, SF_REGEX, SF_LARK"))),
        };
        check_size(name, text)?;
        Ok(match kind {
            JSON_SCHEMA => on_its_stack(|| {
                let original = schema::read(text)?;
                Ok(Grammar::JsonSchema { prepared: schema::prepared(&original)?, original })
            })?,
            REGEX => Grammar::Regex(text.to_owned()),
            _ => Grammar::Lark(on_its_stack(|| lark::prepared(text))?, LARK_LIMITS),
        })
    }

    /// Lark that this crate writes around the schemas of tools, with the limits of schemas.
    pub fn of_calls(lark: &str) -> Result<Grammar> {
        check_size("grammar", lark)?;
        Ok(Grammar::Lark(on_its_stack(|| lark::prepared(lark))?, LIMITS))
    }

    /// A parser at the beginning of a text.
    pub fn parser(&self, vocabulary: &Vocabulary) -> Result<TokenParser> {
        on_its_stack(|| match self {
            Grammar::JsonSchema { original, prepared } => {
                let compile = |schema: &Value| {
                    compiled(vocabulary, LIMITS, TopLevelGrammar::from_json_schema(schema.clone()), true)
                };
                compile(prepared).map_err(|message| {
                    schema::located(original, blame::found(prepared, message, |part| compile(part).err()))
                })
            }
            Grammar::Regex(regex) => compiled(vocabulary, LIMITS, TopLevelGrammar::from_regex(regex), false)
                .map_err(|message| bad_grammar(format!("the regular expression: {message}"))),
            Grammar::Lark(lark, limits) => {
                let has_schemas = lark.contains("%json");
                compiled(vocabulary, limits.clone(), TopLevelGrammar::from_lark(lark.clone()), has_schemas)
                    .map_err(|message| bad_grammar(format!("the grammar: {message}")))
            }
        })
    }
}

fn check_size(name: &str, text: &str) -> Result<()> {
    if text.len() > MOST_BYTES {
        return Err(bad_grammar(format!("the {name} has {} bytes; at most {MOST_BYTES} are allowed", text.len())));
    }
    Ok(())
}

fn compiled(
    vocabulary: &Vocabulary,
    limits: ParserLimits,
    grammar: TopLevelGrammar,
    has_schemas: bool,
) -> std::result::Result<TokenParser, String> {
    let factory = &vocabulary.factory;
    let env = factory.tok_env().clone();
    let read = AssertUnwindSafe(|| GrammarInit::Serialized(grammar).to_internal(Some(env), limits.clone()));
    let (grammar, mut lexemes) = catch_unwind(read).map_err(|error| one_line(&error))?;
    if has_schemas {
        bounds::limit_lexemes(&mut lexemes)?;
    }
    breadth::check(lexemes.regex_builder.exprset())?;
    let init = GrammarInit::Internal(grammar, lexemes);
    let made = factory.create_parser_from_init_ext(init, Logger::new(0, 0), InferenceCapabilities::default(), limits);
    let mut parser = made.map_err(|error| one_line(&error))?;
    parser.start_without_prompt();
    let spec = parser.parser.grammar().lexer_spec();
    spec.check_rollback().map_err(|error| one_line(&error))?;
    parser.check_stop().map_err(|error| one_line(&error))?; // only the empty text may fit
    Ok(parser)
}

fn on_its_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    on_a_stack("grammar", STACK_BYTES, work).unwrap_or_else(|error| Err(bad_grammar(error)))
}

/// A schema for `%json` in a Lark grammar, with these separators in place of its own.
pub fn schema_in_lark(text: &str, item_separator: &str, key_separator: &str) -> Result<String> {
    let mut schema = on_its_stack(|| schema::prepared(&schema::read(text)?))?;
    if let Some(options) = schema.get_mut("x-guidance").and_then(Value::as_object_mut) {
        options.insert("item_separator".to_owned(), item_separator.into());
        options.insert("key_separator".to_owned(), key_separator.into());
    }
    Ok(schema.to_string())
}
