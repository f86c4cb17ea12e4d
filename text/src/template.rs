//! The chat template, as Hugging Face transformers renders it.

use std::sync::Arc;

use indexmap::IndexMap;

use crate::error::{bad_argument, bad_file, one_line, Result};
use crate::jinja::{self, Fault, Program, Value};
use crate::json::{length, quoted, Json, Object};
use crate::message::Message;
use crate::tools::Tools;

/// What a template reads besides the messages.
#[derive(Clone, Default)]
pub struct Setting {
    pub tools: Tools,
    variables: Object, // `documents` among them
}

impl Setting {
    /// `json` is an object of variables for the template, such as {"enable_thinking": false}.
    pub fn set_variables(&mut self, json: &str) -> Result<()> {
        const OWN: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];
        let value =
            Json::parse_given(json).map_err(|error| bad_argument(format!("template variables: not JSON ({error})")))?;
        let Json::Object(variables) = value else {
            return Err(bad_argument("template variables must be a JSON object"));
        };
        if let Some(name) = OWN.iter().find(|name| variables.contains_key(**name)) {
            return Err(bad_argument(format!("template variables: {} cannot be set here", quoted(name))));
        }
        let documents = variables.get("documents").filter(|value| **value != Json::Null);
        let is_list = |value: &Json| value.list().is_some_and(|list| list.iter().all(|item| item.object().is_some()));
        if documents.is_some_and(|value| !is_list(value)) {
            return Err(bad_argument("template variables: documents must be a list of objects with title and text"));
        }
        self.variables = *variables;
        Ok(())
    }

    pub fn without_tools(&self) -> Setting {
        Setting { tools: Tools::default(), variables: self.variables.clone() }
    }

    /// The same with other texts: `name` writes the names of fields, `text` the texts.
    pub fn map(&self, name: impl Fn(&str) -> String, text: impl Fn(&str) -> String) -> MappedSetting {
        let tools = self.tools.given().map(|tools| tools.iter().map(|tool| tool.map(&name, &text)).collect());
        let variable = |(key, value): (&String, &Json)| (key.clone(), value.map(&name, &text));
        MappedSetting { tools, variables: self.variables.iter().map(variable).collect() }
    }
}

/// A setting as a template sees it.
pub struct MappedSetting {
    tools: Option<Vec<Json>>,
    variables: Object,
}

pub struct Template {
    program: Program,
    bos_token: String,
    eos_token: String,
}

impl Template {
    pub fn new(source: String, bos_token: String, eos_token: String) -> Result<Template> {
        match Program::new(&source) {
            Ok(program) => Ok(Template { program, bos_token, eos_token }),
            Err(fault) => Err(bad_file(format!("the chat template is not valid Jinja ({})", one_line(&fault)))),
        }
    }

    /// The chat up to where its answer begins.
    pub fn render(&self, messages: &[Message], setting: &MappedSetting) -> Result<String> {
        let variables = || {
            let text = |text: &String| Value::text(text.as_str());
            let list = |items: Option<&[Json]>| match items {
                Some(items) => list_of(items.iter().map(value)),
                None => Ok(Value::None),
            };
            let mut variables = vec![
                ("messages", list_of(messages.iter().map(message))?),
                ("add_generation_prompt", Value::Bool(true)),
                ("tools", list(setting.tools.as_deref())?),
                ("documents", Value::None),
                ("bos_token", text(&self.bos_token)),
                ("eos_token", text(&self.eos_token)),
            ];
            for (name, own) in &setting.variables {
                variables.push((name, value(own)?)); // those behind replace those before
            }
            Ok(variables)
        };
        let objects = messages.iter().map(Message::fields).chain([&setting.variables]).map(length);
        let tools = setting.tools.iter().flatten().map(Json::length);
        self.program.render(objects.chain(tools).sum(), variables).map_err(|fault| {
            bad_argument(match fault {
                Fault::Refusal(reason) => format!("the chat template refuses these messages ({})", one_line(&reason)),
                Fault::MoreSteps { than } => format!(
                    "the chat template needs more than {than} steps for these messages, the most that their length \
                     allows; shorten them, or use another template"
                ),
            })
        })
    }
}

/// transformers gives the thoughts of a message under two names.
fn message(message: &Message) -> jinja::Result<Value> {
    const NAMES: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
    let fields = message.fields();
    let thoughts = NAMES.iter().filter_map(|name| fields.get(*name)).find(|value| **value != Json::Null);
    let Some(thoughts) = thoughts else { return dict_of(fields.iter()) };
    let mut all: IndexMap<&str, &Json> = IndexMap::from([("thinking", thoughts)]);
    all.extend(fields.iter().map(|(name, value)| (name.as_str(), value)));
    all.insert("reasoning_content", thoughts);
    dict_of(all)
}

fn value(json: &Json) -> jinja::Result<Value> {
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(value) => Value::Bool(*value),
        Json::Whole(value) => match (i64::try_from(*value), u64::try_from(*value)) {
            (Ok(value), _) => Value::Int(value),
            (_, Ok(value)) => Value::Large(value),
            _ => return Err(Fault::Refusal("a number has more than 64 bits".to_owned())),
        },
        Json::Real(value) => Value::Float(*value),
        Json::Text(text) => Value::text(text.as_str()),
        Json::List(items) => list_of(items.iter().map(value))?,
        Json::Object(fields) => dict_of(fields.iter())?,
    })
}

fn list_of(items: impl Iterator<Item = jinja::Result<Value>>) -> jinja::Result<Value> {
    Value::list(items.collect::<jinja::Result<_>>()?)
}

fn dict_of<'a, N: AsRef<str>>(fields: impl IntoIterator<Item = (N, &'a Json)>) -> jinja::Result<Value> {
    let field = |(name, own): (N, &Json)| Ok((Arc::from(name.as_ref()), value(own)?));
    Value::dict(fields.into_iter().map(field).collect::<jinja::Result<_>>()?)
}
