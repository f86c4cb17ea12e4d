//! The text of one sequence: its conversation, and the answer that is being generated.

use std::sync::Arc;

use crate::chat::{Conversation, Writer};
use crate::constraint::{Constraint, Grammar, Restriction};
use crate::control_tokens::CUT;
use crate::error::{bad_argument, Result};
use crate::json::Json;
use crate::language::Language;
use crate::limit::{Dropped, Limit};
use crate::message::Message;
use crate::stream::{shown, Stream};
use crate::tools::channels::{Channel, Channels, Part};
use crate::tools::constraint::ToolConstraint;
use crate::tools::either::AnswerOrCall;
use crate::tools::{self, Tools};

pub struct Text {
    pub language: Arc<Language>,
    conversation: Conversation,
    stream: Option<Stream>,
    channels: Option<Channels>, // of the stream, if it is an answer
    parts: Vec<Part>,           // of the last push or end
    is_dropped: bool,           // the last question was dropped, so there is no last answer
    first: Vec<Message>,        // what a conversation begins with
    limit: Limit,               // of later questions
}

impl Text {
    pub fn new(language: Arc<Language>) -> Text {
        let (conversation, parts, first, limit) = Default::default();
        Text { language, conversation, stream: None, channels: None, parts, is_dropped: false, first, limit }
    }

    pub fn encode(&self, text: &str, marks: bool) -> Result<Vec<u32>> {
        let tokenizer = &self.language.tokenizer;
        if marks {
            tokenizer.encode(text)
        } else {
            tokenizer.encode_rendered(text)
        }
    }

    pub fn encode_chat(&self, messages: &str) -> Result<Vec<u32>> {
        self.language.encode(&self.render_cut(messages)?)
    }

    pub fn decode(&self, ids: &[i64]) -> Result<String> {
        self.language.decode(&tokens(ids)?)
    }

    pub fn token_bytes(&self, id: i64) -> Result<Vec<u8>> {
        Ok(self.language.tokenizer.token_bytes(token(id)?))
    }

    pub fn render(&self, messages: &str) -> Result<String> {
        Ok(self.render_cut(messages)?.replace(CUT, ""))
    }

    pub fn render_cut(&self, messages: &str) -> Result<String> {
        self.language.render(&Message::list(messages)?, &self.conversation.setting)
    }

    /// What the conversation begins with, now and after `reset`.
    pub fn set_first(&mut self, system: Option<&str>, messages: Option<&str>) -> Result<()> {
        let mut first: Vec<Message> = system.map(|words| Message::new("system", words)).into_iter().collect();
        first.extend(messages.map_or_else(|| Ok(Vec::new()), Message::list)?);
        self.first = first;
        self.reset();
        Ok(())
    }

    pub fn reset(&mut self) {
        self.conversation = Conversation::new(self.first.clone(), self.conversation.setting.clone());
        self.stream = None;
    }

    pub fn ask(&mut self, question: &str) -> Result<&[u32]> {
        self.end(false);
        self.conversation.ask(vec![Message::new("user", question)], &self.limit, &*self.language)
    }

    /// Adds any turns, the last of which is answered; the whole context.
    pub fn ask_messages(&mut self, messages: &str) -> Result<&[u32]> {
        let turns = Message::list(messages)?;
        self.end(false);
        self.conversation.ask(turns, &self.limit, &*self.language)
    }

    pub fn set_limit(&mut self, limit: Limit) {
        self.limit = limit;
    }

    /// What was dropped for the last question, until it is answered.
    pub fn dropped(&self) -> Dropped {
        self.conversation.dropped()
    }

    /// The number of tokens of a text in a message, or of a raw text where there is no chat template.
    pub fn count(&self, text: &str) -> Result<usize> {
        let language = &self.language;
        Ok(if language.can_chat() { language.encode(&language.cut(text))? } else { language.encode(text)? }.len())
    }

    pub fn set_tools(&mut self, tools: Option<&str>) -> Result<()> {
        self.conversation.setting.tools = tools.map(Tools::parse).transpose()?.unwrap_or_default();
        Ok(())
    }

    pub fn set_variables(&mut self, variables: Option<&str>) -> Result<()> {
        self.conversation.setting.set_variables(variables.unwrap_or("{}"))
    }

    /// Adds the results of the last answer's calls; the whole context.
    pub fn ask_results(&mut self, results: &str) -> Result<&[u32]> {
        self.end(false);
        let turns = tools::results::results(results, self.conversation.calls())?;
        self.conversation.ask(turns, &self.limit, &*self.language)
    }

    /// A JSON list of {"id", "name", "arguments"}.
    pub fn tool_calls(&self) -> String {
        let call = |call: &Json| {
            let function = call.get("function");
            let field = |of: Option<&Json>, name: &str| of.and_then(|of| of.get(name)).cloned().unwrap_or(Json::Null);
            let fields = [("id", Some(call)), ("name", function), ("arguments", function)];
            Json::of_fields(fields.map(|(name, of)| (name, field(of, name))))
        };
        let calls = if self.is_dropped { &[] } else { self.conversation.calls() };
        let calls: Vec<Json> = calls.iter().map(call).collect();
        serde_json::to_string(&calls).expect("values are always JSON")
    }

    /// What the next answer may contain. Without a choice: auto. None if there are no functions and none is required.
    pub fn constrain_calls(&self, choice: Option<&str>) -> Result<Option<ToolConstraint>> {
        let tools = &self.conversation.setting.tools;
        let choice = choice.unwrap_or("auto");
        if matches!(choice, "auto" | "none") && tools.functions().next().is_none() {
            return Ok(None);
        }
        ToolConstraint::new(self.language.clone(), tools, choice, &self.prompt()).map(Some)
    }

    /// What the next answer may be: what a grammar allows, or with `or_call` a call of one of the functions.
    pub fn constrain_answer(&self, kind: i32, grammar: &str, or_call: bool) -> Result<Box<dyn Restriction>> {
        let answer = Constraint::new(self.language.clone(), Grammar::new(kind, grammar)?)?;
        let tools = &self.conversation.setting.tools;
        if !or_call || tools.functions().next().is_none() {
            return Ok(Box::new(answer));
        }
        let call = ToolConstraint::new(self.language.clone(), tools, "required", &self.prompt())?;
        Ok(Box::new(AnswerOrCall::new(answer, call)))
    }

    /// The text that the next answer follows.
    fn prompt(&self) -> String {
        self.conversation.asked_text().replace(CUT, "")
    }

    fn new_channels(&self, restriction: Option<&str>) -> Channels {
        let prompt = self.prompt();
        let marks = self.language.marks(&self.conversation.setting.tools, &prompt);
        let marks = match restriction {
            Some(restriction) => marks.within(restriction),
            None => marks,
        };
        Channels::new(marks, &prompt)
    }

    /// The parts of the text that the last push or end gave.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub fn take_back(&mut self) {
        self.stream = None;
        self.conversation.take_back();
    }

    pub fn messages(&self) -> String {
        serde_json::to_string(&self.conversation.messages).expect("texts are always JSON")
    }

    pub fn save(&mut self) -> Vec<u8> {
        self.end(false);
        self.conversation.note()
    }

    pub fn restore(&mut self, note: &[u8]) -> Result<()> {
        self.conversation = Conversation::of_note(note, self.conversation.setting.clone(), &*self.language)?;
        (self.stream, self.is_dropped) = (None, false);
        Ok(())
    }

    /// Begins a stream that continues the tokens `before`. `restriction` is what restricts an answer: the text of a
    /// regex or a grammar, empty for another constraint.
    pub fn begin(&mut self, stops: Option<&str>, before: &[i64], restriction: Option<&str>) -> Result<()> {
        let stops = stops_of(stops)?;
        let before = tokens(before)?;
        self.end(false);
        let stream = Stream::new(stops, &before, &self.language.tokenizer)?;
        self.channels = self.conversation.is_asked().then(|| self.new_channels(restriction));
        (self.stream, self.is_dropped) = (Some(stream), false);
        self.parts.clear();
        Ok(())
    }

    /// Completes `parts`; whether a stop string is complete.
    pub fn push(&mut self, id: i64) -> Result<bool> {
        let Some(stream) = &mut self.stream else {
            return Err(bad_argument("no stream is running; start one with sf_text_begin"));
        };
        let segments = stream.push(token(id)?, &self.language.tokenizer)?;
        self.parts = match &mut self.channels {
            Some(channels) => {
                let tools = &self.conversation.setting.tools;
                segments.iter().for_each(|segment| channels.push(segment, tools));
                channels.take_of_token()
            }
            None => of_answer(shown(&segments)),
        };
        Ok(stream.stopped())
    }

    /// Completes `parts` with what was held back, and the turn with the answer; where it was `stopped` before its first
    /// token, its question is dropped.
    pub fn end(&mut self, stopped: bool) {
        self.parts.clear();
        let Some(mut stream) = self.stream.take() else {
            return;
        };
        let segments = stream.flush();
        let (text, ids) = stream.into_answer();
        match self.channels.take() {
            Some(_) if stopped && ids.is_empty() => {
                self.is_dropped = !self.conversation.asks_results(); // then their calls have no results again
                self.conversation.take_back();
            }
            Some(mut channels) => {
                let tools = &self.conversation.setting.tools;
                segments.iter().for_each(|segment| channels.push(segment, tools));
                channels.end(tools);
                self.parts = channels.take();
                let answer = channels.finish();
                self.conversation.answer(text, answer, &ids, &*self.language);
            }
            None => self.parts = of_answer(shown(&segments)),
        }
    }
}

fn of_answer(text: String) -> Vec<Part> {
    let is_empty = text.is_empty();
    (!is_empty).then_some(Part { channel: Channel::Answer, text }).into_iter().collect()
}

fn stops_of(json: Option<&str>) -> Result<Vec<String>> {
    let stops: Vec<String> = match json {
        Some(json) => serde_json::from_str(json)
            .map_err(|error| bad_argument(format!("stops must be a JSON list of strings ({error})")))?,
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
    u32::try_from(id).map_err(|_| bad_argument(format!("{id} is not a token id")))
}
