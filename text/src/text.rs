//! The text of one sequence: its conversation, and the answer that is being written.

use std::sync::Arc;

use crate::chat::{Conversation, Writer};
use crate::control_tokens::CUT;
use crate::error::{bad_argument, Result};
use crate::language::Language;
use crate::message::Message;
use crate::stream::Stream;
use crate::tools::Tools;

pub struct Text {
    pub language: Arc<Language>,
    conversation: Conversation,
    stream: Option<Stream>,
    prompt: Vec<u32>, // the raw prompt that was encoded last, until a stream continues it
}

impl Text {
    pub fn new(language: Arc<Language>) -> Text {
        Text { language, conversation: Conversation::default(), stream: None, prompt: Vec::new() }
    }

    pub fn encode(&mut self, text: &str, marks: bool) -> Result<Vec<u32>> {
        if !marks {
            return self.language.tokenizer.encode_rendered(text);
        }
        self.prompt = self.language.tokenizer.encode(text)?;
        Ok(self.prompt.clone())
    }

    pub fn encode_chat(&self, messages: &str) -> Result<Vec<u32>> {
        self.language.encode(&self.render_cut(messages)?)
    }

    pub fn decode(&self, ids: &[i64]) -> Result<String> {
        self.language.decode(&tokens(ids)?)
    }

    pub fn render(&self, messages: &str) -> Result<String> {
        Ok(self.render_cut(messages)?.replace(CUT, ""))
    }

    pub fn render_cut(&self, messages: &str) -> Result<String> {
        self.language.render(&Message::list(messages)?, &self.conversation.setting)
    }

    pub fn reset(&mut self, messages: Option<&str>) -> Result<()> {
        let messages = messages.map_or_else(|| Ok(Vec::new()), Message::list)?;
        self.conversation = Conversation::new(messages, self.conversation.setting.clone());
        self.stream = None;
        Ok(())
    }

    pub fn ask(&mut self, question: &str) -> Result<&[u32]> {
        self.end()?;
        self.conversation.ask(vec![Message::new("user", question)], &*self.language)
    }

    pub fn set_tools(&mut self, tools: Option<&str>) -> Result<()> {
        self.conversation.setting.tools = tools.map(Tools::parse).transpose()?;
        Ok(())
    }

    pub fn set_variables(&mut self, variables: Option<&str>) -> Result<()> {
        self.conversation.setting.set_variables(variables.unwrap_or("{}"))
    }

    /// Closes the turn with an answer that another text has streamed.
    pub fn answer(&mut self, text: &str, ids: &[i64]) -> Result<()> {
        if !self.conversation.is_asked() {
            return Err(bad_argument("no question waits for an answer"));
        }
        let ids = tokens(ids)?;
        self.stream = None;
        self.conversation.answer(text.to_owned(), &ids, &*self.language)
    }

    /// Forgets a stream that may be half changed.
    pub fn drop_stream(&mut self) {
        self.stream = None;
    }

    pub fn take_back(&mut self) {
        self.stream = None;
        self.conversation.take_back();
    }

    pub fn messages(&self) -> String {
        serde_json::to_string(&self.conversation.messages).expect("texts are always JSON")
    }

    pub fn save(&mut self) -> Result<Vec<u8>> {
        self.end()?;
        Ok(self.conversation.note())
    }

    pub fn restore(&mut self, note: &[u8]) -> Result<()> {
        self.conversation = Conversation::of_note(note, self.conversation.setting.clone(), &*self.language)?;
        self.stream = None;
        Ok(())
    }

    pub fn begin(&mut self, stops: Option<&str>) -> Result<()> {
        let stops = stops_of(stops)?;
        self.end()?;
        let prompt = std::mem::take(&mut self.prompt);
        let before = if self.conversation.is_asked() { &[] } else { prompt.as_slice() };
        self.stream = Some(Stream::new(stops, before, &self.language.tokenizer)?);
        Ok(())
    }

    pub fn begin_after(&mut self, stops: Option<&str>, before: &[i64]) -> Result<()> {
        let stops = stops_of(stops)?;
        let before = tokens(before)?;
        self.end()?;
        self.stream = Some(Stream::new(stops, &before, &self.language.tokenizer)?);
        Ok(())
    }

    /// The text to show, and whether a stop string is complete.
    pub fn push(&mut self, id: i64) -> Result<(String, bool)> {
        let Some(stream) = &mut self.stream else {
            return Err(bad_argument("no stream runs: begin one with sf_text_begin"));
        };
        let text = stream.push(token(id)?, &self.language.tokenizer)?;
        Ok((text, stream.stopped()))
    }

    pub fn end(&mut self) -> Result<String> {
        let Some(mut stream) = self.stream.take() else {
            return Ok(String::new());
        };
        let tail = stream.flush();
        let (text, ids) = stream.into_answer();
        self.conversation.answer(text, &ids, &*self.language)?;
        Ok(tail)
    }
}

fn stops_of(json: Option<&str>) -> Result<Vec<String>> {
    let stops: Vec<String> = match json {
        Some(json) => serde_json::from_str(json)
            .map_err(|error| bad_argument(format!("stops must be a JSON list of texts ({error})")))?,
        None => Vec::new(),
    };
    if stops.iter().any(String::is_empty) {
        return Err(bad_argument("a stop string must not be empty"));
    }
    Ok(stops)
}

fn tokens(ids: &[i64]) -> Result<Vec<u32>> {
    ids.iter().map(|&id| token(id)).collect()
}

fn token(id: i64) -> Result<u32> {
    u32::try_from(id).map_err(|_| bad_argument(format!("{id} is no token id")))
}
