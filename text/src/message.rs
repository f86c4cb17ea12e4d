//! A message of a chat.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Serialize, Serializer};

use crate::error::{bad_argument, Result};
use crate::json::{Json, Object};
use crate::tools::channels::Call;

pub const MODEL: &str = "assistant"; // the role of what the model wrote

/// {"role": text, "content": text}, with any other fields that a template may read, such as reasoning_content. Beside
/// tool_calls the content may be null or missing.
#[derive(Clone, Debug, PartialEq)]
pub struct Message(Object);

impl Message {
    pub fn list(json: &str) -> Result<Vec<Message>> {
        let read = || {
            let value = Json::parse_given(json)?;
            let items = value.list().ok_or("it is no list")?;
            let message = |(at, item): (usize, &Json)| {
                Message::of(item).map_err(|reason| format!("message {}: {reason}", at + 1))
            };
            items.iter().enumerate().map(message).collect::<Result<Vec<_>, String>>()
        };
        read().map_err(|error| {
            bad_argument(format!("messages must be a JSON list of {{\"role\": text, \"content\": text}} ({error})"))
        })
    }

    pub fn of(value: &Json) -> Result<Message, String> {
        let fields = value.object().ok_or("it is no object")?;
        fields.get("role").and_then(Json::text).ok_or("its role must be text")?;
        let mut message = Message(fields.clone());
        match fields.get("content") {
            Some(Json::Text(_)) => (),
            None | Some(Json::Null) if !message.calls().is_empty() => message.append(""), // templates add to it
            _ => return Err("its content must be text, or null beside tool_calls".to_owned()),
        }
        Ok(message)
    }

    pub fn new(role: &str, content: &str) -> Message {
        let field = |name: &str, text: &str| (name.to_owned(), Json::Text(text.to_owned()));
        Message(Object::from_iter([field("role", role), field("content", content)]))
    }

    /// The model's turn. Its calls are numbered from `first` on, in a form that every template takes: nine letters and
    /// digits.
    pub fn answer(content: &str, calls: Vec<Call>, first: usize) -> Message {
        let mut message = Message::new(MODEL, content);
        if !calls.is_empty() {
            let text = |text: String| Json::Text(text);
            let call = |(at, (name, arguments)): (usize, Call)| {
                Json::of_fields([
                    ("id", text(format!("call{:05}", first + at + 1))),
                    ("type", text("function".to_owned())),
                    ("function", Json::of_fields([("name", text(name)), ("arguments", arguments)])),
                ])
            };
            let calls = calls.into_iter().enumerate().map(call).collect();
            message.0.insert("tool_calls".to_owned(), Json::List(calls));
        }
        message
    }

    /// The number of the last call, where ids are those of `answer`; at least the number of calls.
    pub fn last_call(messages: &[Message]) -> usize {
        let calls = || messages.iter().flat_map(Message::calls);
        let number = |call: &Json| call.get("id")?.text()?.strip_prefix("call")?.parse().ok();
        calls().filter_map(number).fold(calls().count(), usize::max)
    }

    /// {"id", "type": "function", "function": {"name", "arguments"}}
    pub fn calls(&self) -> &[Json] {
        self.0.get("tool_calls").and_then(Json::list).unwrap_or_default()
    }

    /// The result of a call; `call` is one of `calls`.
    pub fn result(call: &Json, content: &str) -> Message {
        let mut message = Message::new("tool", content);
        let name = call.get("function").and_then(|function| function.get("name"));
        for (field, value) in [("name", name), ("tool_call_id", call.get("id"))] {
            if let Some(value) = value {
                message.0.insert(field.to_owned(), value.clone());
            }
        }
        message
    }

    /// The messages, with the tool's `name` in each tool message that has none, by `tool_call_id` among the calls before
    /// it; some templates read it. A result without a matching call is unchanged.
    pub fn with_names(messages: &[Message]) -> Cow<'_, [Message]> {
        let mut called = HashMap::new();
        let mut found = Vec::new(); // the results without a name, and their names
        for (at, message) in messages.iter().enumerate() {
            for call in message.calls() {
                if let (Some(id), Some(function)) = (call.get("id").and_then(Json::text), call.get("function")) {
                    called.extend(function.get("name").map(|name| (id, name)));
                }
            }
            let is_named = message.0.get("name").is_some_and(|name| *name != Json::Null);
            if message.role() == "tool" && !is_named {
                found.extend(called.get(message.text_of("tool_call_id")).map(|name| (at, (*name).clone())));
            }
        }
        if found.is_empty() {
            return messages.into();
        }
        let mut named = messages.to_vec();
        for (at, name) in found {
            named[at].0.insert("name".to_owned(), name);
        }
        named.into()
    }

    /// The same with arguments of calls as JSON text.
    pub fn with_text_arguments(&self) -> Message {
        let as_text = |call: &Json| {
            let (Some(call), Some(function)) = (call.object(), call.get("function").and_then(Json::object)) else {
                return call.clone();
            };
            let (mut call, mut function) = (call.clone(), function.clone());
            if let Some(arguments) = function.get_mut("arguments").filter(|arguments| arguments.object().is_some()) {
                *arguments = Json::Text(arguments.spaced());
            }
            call.insert("function".to_owned(), Json::Object(Box::new(function)));
            Json::Object(Box::new(call))
        };
        let mut message = self.clone();
        if !self.calls().is_empty() {
            let calls = self.calls().iter().map(as_text).collect();
            message.0.insert("tool_calls".to_owned(), Json::List(calls));
        }
        message
    }

    /// The same with its content as a list of one part of text.
    pub fn with_parts(&self) -> Message {
        let text = |text: &str| Json::Text(text.to_owned());
        let part = Json::of_fields([("type", text("text")), ("text", text(self.content()))]);
        let mut message = self.clone();
        message.0.insert("content".to_owned(), Json::List(vec![part]));
        message
    }

    pub fn append(&mut self, text: &str) {
        let content = self.content().to_owned() + text;
        self.0.insert("content".to_owned(), Json::Text(content));
    }

    pub fn prepend(&mut self, text: &str) {
        let content = text.to_owned() + self.content();
        self.0.insert("content".to_owned(), Json::Text(content));
    }

    pub fn fields(&self) -> &Object {
        &self.0
    }

    pub fn role(&self) -> &str {
        self.text_of("role")
    }

    /// Empty where there is none.
    pub fn content(&self) -> &str {
        self.text_of("content")
    }

    fn text_of(&self, name: &str) -> &str {
        self.0.get(name).and_then(Json::text).unwrap_or_default()
    }

    /// The same with other texts: `name` writes the role and the names of fields inside others, `own` the texts of the
    /// message, `inner` those inside its fields.
    pub fn map(
        &self,
        name: impl Fn(&str) -> String,
        own: impl Fn(&str) -> String,
        inner: impl Fn(&str) -> String,
    ) -> Message {
        let field = |(key, value): (&String, &Json)| {
            let value = match value {
                Json::Text(text) if key == "role" => Json::Text(name(text)),
                Json::Text(text) => Json::Text(own(text)),
                value => value.map(&name, &inner),
            };
            (key.clone(), value)
        };
        Message(self.0.iter().map(field).collect())
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_map(&self.0)
    }
}
