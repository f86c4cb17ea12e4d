//! The turns of a chat, and the exact tokens of each, so that the cache of a session is never read again.

use serde::Serialize;

use crate::control_tokens::{uncut, CUT};
use crate::error::{bad_argument, bad_file, Failure, Result};
use crate::json::Json;
use crate::limit::{Dropped, Limit, Policy, Turns};
use crate::message::Message;
use crate::template::Setting;
use crate::tools::channels::Answer;

/// What a conversation needs of the text around it.
pub trait Writer {
    /// Text with a cut in each control token that it spells.
    fn cut(&self, text: &str) -> String;
    /// A chat for `encode`: control tokens that messages spell are cut in two.
    fn render(&self, messages: &[Message], setting: &Setting) -> Result<String>;
    /// What begins with a cut continues a text.
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
    pub setting: Setting,
    read_text: String,
    read_ids: Vec<u32>,
    asked: Option<Asked>,
}

/// The last question until it is answered: the context, rendered and as tokens, and the messages before the question,
/// with those that were dropped for it.
struct Asked {
    text: String,
    ids: Vec<u32>,
    before: Vec<Message>,
    dropped: Dropped,
}

/// Messages as the model reads them, up to where its answer begins.
struct Context {
    dropped_turns: usize, // before them
    messages: Vec<Message>,
    text: String,
    ids: Vec<u32>,
}

impl Conversation {
    pub fn new(messages: Vec<Message>, setting: Setting) -> Conversation {
        Conversation { messages, setting, ..Default::default() }
    }

    pub fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// The context of the last question, up to where its answer begins.
    pub fn asked_text(&self) -> &str {
        self.asked.as_ref().map_or("", |asked| asked.text.as_str())
    }

    /// What was dropped for the last question, until it is answered.
    pub fn dropped(&self) -> Dropped {
        self.asked.as_ref().map_or_else(Dropped::default, |asked| asked.dropped)
    }

    /// Adds turns that the model answers; the whole context as token ids. Where it exceeds the limit, older turns are
    /// dropped or the question is refused.
    pub fn ask(&mut self, turns: Vec<Message>, limit: &Limit, writer: &impl Writer) -> Result<&[u32]> {
        if self.is_asked() {
            return Err(bad_argument(
                "the last question is not answered: end its answer or take the question back before the next one",
            ));
        }
        let messages = [self.messages.clone(), turns].concat();
        let (text, ids) = self.context(&messages, writer)?;
        let whole = Context { dropped_turns: 0, messages, text, ids };
        let length = whole.ids.len();
        let context = if limit.holds(length) { whole } else { self.shortened(whole, limit, writer)? };
        let Context { dropped_turns: turns, messages, text, ids } = context;
        let dropped = Dropped { turns, tokens: length.saturating_sub(ids.len()) };
        let before = std::mem::replace(&mut self.messages, messages);
        Ok(&self.asked.insert(Asked { text, ids, before, dropped }).ids)
    }

    /// A context that the limit does not hold, without the fewest oldest turns that leave room for an answer; without
    /// all turns but the last, where no number of them does. What follows dropped turns is encoded anew, as in a
    /// conversation that begins with the messages that are left.
    fn shortened(&self, whole: Context, limit: &Limit, writer: &impl Writer) -> Result<Context> {
        let turns = Turns::new(&whole.messages);
        let without = |dropped_turns: usize| -> Result<Context> {
            let messages = turns.without(dropped_turns);
            let text = writer.render(&messages, &self.setting)?;
            let ids = writer.encode(&text)?;
            Ok(Context { dropped_turns, messages, text, ids })
        };
        let shortest = if turns.droppable() > 0 { Some(without(turns.droppable())?) } else { None };
        let least = shortest.as_ref().map_or(whole.ids.len(), |shortest| shortest.ids.len());
        if least >= limit.capacity {
            return Err(limit.refusal(least, false));
        }
        let Some(mut found) = shortest else { return Ok(whole) };
        if limit.policy == Policy::Fail {
            return Err(limit.refusal(whole.ids.len(), true));
        }
        let mut fewest = 1; // fewer leave too little room; `found` may have too many dropped
        while fewest < found.dropped_turns {
            let tried = without((fewest + found.dropped_turns) / 2)?;
            if limit.holds(tried.ids.len()) {
                found = tried;
            } else {
                fewest = tried.dropped_turns + 1;
            }
        }
        Ok(found)
    }

    fn context(&self, messages: &[Message], writer: &impl Writer) -> Result<(String, Vec<u32>)> {
        let rendered = writer.render(messages, &self.setting)?;
        let ids = match after(&rendered, &self.read_text) {
            Some(new) if !self.read_ids.is_empty() => {
                [self.read_ids.clone(), writer.encode(&format!("{CUT}{new}"))?].concat()
            }
            _ => writer.encode(&rendered)?,
        };
        Ok((rendered, ids))
    }

    /// Adds the model's turn, whole or cut short: its text without calls, as in `text`, the calls, and all of it as it
    /// was spelt. Nothing happens where none was asked for.
    pub fn answer(&mut self, text: String, answer: Answer, ids: &[u32], writer: &impl Writer) {
        let Some(Asked { text: asked_text, ids: asked_ids, .. }) = &self.asked else {
            return;
        };
        let is_known = ids.iter().all(|&id| writer.has(id));
        let whole = is_known && writer.decode(ids).is_ok_and(|decoded| decoded == text);
        let written = if answer.calls.is_empty() { &text } else { &answer.spelt };
        (self.read_text, self.read_ids) = if whole {
            (asked_text.clone() + &writer.cut(written), [asked_ids.as_slice(), ids].concat())
        } else {
            // A stop string or an unfinished character is in the tokens and not in the text. A model with more logits
            // than its tokenizer has tokens may write ids without text, which no note may contain.
            Default::default()
        };
        self.asked = None;
        let earlier = Message::last_call(&self.messages);
        self.messages.push(Message::answer(&answer.content, answer.calls, earlier));
    }

    /// The calls of the last message, if it is an answer.
    pub fn calls(&self) -> &[Json] {
        self.messages.last().map_or(&[], Message::calls)
    }

    /// Whether the last question was the results of calls.
    pub fn asks_results(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.before.last().is_some_and(|last| !last.calls().is_empty()))
            && self.messages.last().is_some_and(|last| last.role() != "user")
    }

    /// The last question was not answered: forgets it.
    pub fn take_back(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.messages = asked.before;
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
        let messages = self.asked.as_ref().map_or(&self.messages, |asked| &asked.before);
        let note = Note { messages, read_text: &self.read_text, read_ids: &self.read_ids };
        serde_json::to_vec(&note).expect("texts and numbers are always JSON")
    }

    /// The conversation that `note` gave.
    pub fn of_note(note: &[u8], setting: Setting, writer: &impl Writer) -> Result<Conversation> {
        std::str::from_utf8(note)
            .ok()
            .and_then(|text| Json::parse_lenient(text).ok())
            .and_then(|state| Conversation::of_state(&state, setting, writer))
            .ok_or_else(not_a_note)
    }

    fn of_state(state: &Json, setting: Setting, writer: &impl Writer) -> Option<Conversation> {
        let text = |value: &Json, name: &str| Some(value.get(name)?.text()?.to_owned());
        let id = |value: &Json| u32::try_from(value.whole()?).ok().filter(|&id| writer.has(id));
        Some(Conversation {
            messages: state
                .get("messages")?
                .list()?
                .iter()
                .map(|value| Message::of(value).ok())
                .collect::<Option<_>>()?,
            setting,
            read_text: text(state, "read_text")?,
            read_ids: state.get("read_ids")?.list()?.iter().map(id).collect::<Option<_>>()?,
            asked: None,
        })
    }
}

/// What follows `start`, which may be cut at other places.
fn after<'a>(text: &'a str, start: &str) -> Option<&'a str> {
    let mut rest = text;
    for c in uncut(start) {
        rest = rest.trim_start_matches(CUT).strip_prefix(c)?;
    }
    Some(rest)
}

fn not_a_note() -> Failure {
    bad_file("the saved session holds no conversation; it was not saved by a chat")
}
