//! The turns of a chat, and the exact tokens of each, so that the cache of a session is never read again.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::error::{bad_argument, bad_file, Failure, Result};
use crate::json::Json;

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Message {
    pub role: String,
    pub content: String,
    #[serde(flatten)]
    pub others: IndexMap<String, String>, // fields that a template may read, such as reasoning_content
}

impl Message {
    pub fn list(json: &str) -> Result<Vec<Message>> {
        serde_json::from_str(json).map_err(|error| {
            bad_argument(format!("messages must be a JSON list of {{\"role\": text, \"content\": text}} ({error})"))
        })
    }

    fn new(role: &str, content: String) -> Message {
        Message { role: role.to_owned(), content, others: IndexMap::new() }
    }

    /// The same with other words: `role` writes the role, `text` every other field.
    pub fn map(&self, role: impl Fn(&str) -> String, text: impl Fn(&str) -> String) -> Message {
        Message {
            role: role(&self.role),
            content: text(&self.content),
            others: self.others.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
        }
    }
}

/// What a conversation needs of the text around it.
pub trait Writer {
    /// Text with a cut in each control token that it spells.
    fn cut(&self, text: &str) -> String;
    /// A chat for `encode`: control tokens that messages spell are cut in two.
    fn render(&self, messages: &[Message]) -> Result<String>;
    fn encode(&self, rendered: &str) -> Result<Vec<u32>>;
    fn decode(&self, ids: &[u32]) -> Result<String>;
    fn has(&self, id: u32) -> bool;
}

/// A change is made once all that it needs is there, so that a panic on the way leaves the conversation as it was.
///
/// A model may spell its answer in other tokens than the tokenizer would. The next prompt therefore continues from the
/// tokens that were generated wherever the template leaves the answer's text as it was.
#[derive(Default)]
pub struct Conversation {
    pub messages: Vec<Message>,
    read_text: String,
    read_ids: Vec<u32>,
    asked: Option<(String, Vec<u32>)>, // the last question, rendered and as tokens, until it is answered
}

impl Conversation {
    pub fn new(messages: Vec<Message>) -> Conversation {
        Conversation { messages, ..Default::default() }
    }

    pub fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Adds a turn of the user; the whole context as token ids.
    pub fn ask(&mut self, question: String, writer: &impl Writer) -> Result<&[u32]> {
        if self.is_asked() {
            return Err(bad_argument(
                "the last question is not answered: write its answer with sf_text_begin, sf_text_push and sf_text_end, \
                 or forget it with sf_text_take_back",
            ));
        }
        let mut messages = self.messages.clone();
        messages.push(Message::new("user", question));
        let asked = self.context(&messages, writer)?;
        self.messages = messages;
        let (_, ids) = self.asked.insert(asked);
        Ok(ids)
    }

    fn context(&self, messages: &[Message], writer: &impl Writer) -> Result<(String, Vec<u32>)> {
        let rendered = writer.render(messages)?;
        let ids = match rendered.strip_prefix(&self.read_text) {
            Some(new) if !self.read_ids.is_empty() => [self.read_ids.clone(), writer.encode(new)?].concat(),
            _ => writer.encode(&rendered)?,
        };
        Ok((rendered, ids))
    }

    /// Adds the model's turn, whole or cut short. Nothing happens where none was asked for.
    pub fn answer(&mut self, text: String, ids: &[u32], writer: &impl Writer) -> Result<()> {
        let Some((asked_text, asked_ids)) = &self.asked else {
            return Ok(());
        };
        let whole = writer.decode(ids).is_ok_and(|decoded| decoded == text);
        (self.read_text, self.read_ids) = if whole {
            (asked_text.clone() + &writer.cut(&text), [asked_ids, ids].concat())
        } else {
            // A stop string or an unfinished character is in the tokens and not in the text.
            Default::default()
        };
        self.asked = None;
        self.messages.push(Message::new("assistant", text));
        Ok(())
    }

    /// The last question was not answered: forgets it.
    pub fn take_back(&mut self) {
        if self.asked.take().is_some() {
            self.messages.pop();
        }
    }

    /// The conversation as JSON, without a question that is not answered.
    pub fn note(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Note<'a> {
            messages: &'a [Message],
            read_text: &'a str,
            read_ids: &'a [u32],
        }
        let answered = self.messages.len() - usize::from(self.is_asked());
        let note = Note { messages: &self.messages[..answered], read_text: &self.read_text, read_ids: &self.read_ids };
        serde_json::to_vec(&note).expect("texts and numbers are always JSON")
    }

    /// The conversation that `note` gave.
    pub fn of_note(note: &[u8], writer: &impl Writer) -> Result<Conversation> {
        std::str::from_utf8(note)
            .ok()
            .and_then(|text| Json::parse(text).ok())
            .and_then(|state| Conversation::of_state(&state, writer))
            .ok_or_else(not_a_note)
    }

    fn of_state(state: &Json, writer: &impl Writer) -> Option<Conversation> {
        let text = |value: &Json, name: &str| Some(value.get(name)?.text()?.to_owned());
        let message = |value: &Json| {
            let others = value.object()?.iter().filter(|(name, _)| !["role", "content"].contains(&name.as_str()));
            Some(Message {
                role: text(value, "role")?,
                content: text(value, "content")?,
                others: others
                    .map(|(name, value)| Some((name.clone(), value.text()?.to_owned())))
                    .collect::<Option<_>>()?,
            })
        };
        let id = |value: &Json| u32::try_from(value.whole()?).ok().filter(|&id| writer.has(id));
        Some(Conversation {
            messages: state.get("messages")?.list()?.iter().map(message).collect::<Option<_>>()?,
            read_text: text(state, "read_text")?,
            read_ids: state.get("read_ids")?.list()?.iter().map(id).collect::<Option<_>>()?,
            asked: None,
        })
    }
}

fn not_a_note() -> Failure {
    bad_file("the saved session holds no conversation; it was not saved by a chat")
}
