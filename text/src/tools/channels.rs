//! An answer as it is written, told apart into what is for the reader, thoughts, and calls.

use super::families::{is_open, Family, Thoughts};
use super::{marks, parse, Tools};
use crate::jinja::is_space;
use crate::json::Json;
use crate::stream::Segment;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Channel {
    Answer = 0,
    Thinking = 1,
    ToolCall = 2,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    pub channel: Channel,
    pub text: String,
}

/// A part with the marks around it and the white space beside it: what is shown of it, and all of it.
struct Whole {
    channel: Channel,
    shown: String,
    spelt: String,
    calls: Option<Vec<Call>>, // once it has ended
}

impl Whole {
    fn new(channel: Channel) -> Whole {
        Whole { channel, shown: String::new(), spelt: String::new(), calls: None }
    }
}

/// A whole answer.
#[derive(Default)]
pub struct Answer {
    /// What is shown, without the calls.
    pub content: String,
    pub calls: Vec<Call>,
    /// All of it, calls and special tokens too.
    pub spelt: String,
}

/// A call: a function's name, and an object of arguments.
pub type Call = (String, Json);

/// The marks that a model writes.
#[derive(Clone)]
pub struct Marks {
    pub thoughts: Vec<Thoughts>,
    /// None: the model has no tools.
    pub calls: Option<&'static Family>,
}

impl Marks {
    /// The thoughts that a prompt has opened.
    pub fn open_at(&self, prompt: &str) -> Option<Thoughts> {
        self.thoughts.iter().find(|(open, _)| is_open(prompt, open)).copied()
    }

    /// Those of an answer that a regex or a grammar of this text restricts: no calls, and only the thoughts whose end
    /// the text spells. Without their end, all of the answer would be thoughts.
    pub fn within(mut self, restriction: &str) -> Marks {
        let spelt = restriction.replace('\\', ""); // as in `<\/think>`
        self.thoughts.retain(|(_, close)| spelt.contains(close));
        self.calls = None;
        self
    }

    fn none(&self) -> bool {
        self.thoughts.is_empty() && self.calls.is_none()
    }
}

/// Splits an answer at the marks, which are in no part, nor is the white space beside them. What may become a mark is
/// held back.
pub struct Channels {
    marks: Marks,
    channel: Channel,
    close: &'static str, // what ends this channel
    held: Vec<(char, bool)>,
    is_first: bool, // nothing was answered so far, or since the last call
    after_mark: bool,
    parts: Vec<Part>,
    wholes: Vec<Whole>,
    has_thought: bool, // thoughts began or went on since the parts were last taken
}

enum Found {
    Mark { place: usize, length: usize, channel: Channel, close: &'static str },
    Nothing { ready: usize },
}

impl Channels {
    /// `prompt` is the end of what the model answers, which may have opened its thoughts already.
    pub fn new(marks: Marks, prompt: &str) -> Channels {
        let open = marks.open_at(prompt);
        let (channel, close) = open.map_or((Channel::Answer, ""), |(_, close)| (Channel::Thinking, close));
        let (held, parts) = Default::default();
        let wholes = vec![Whole::new(channel)];
        let has_thought = open.is_some();
        Channels { marks, channel, close, held, is_first: true, after_mark: has_thought, parts, wholes, has_thought }
    }

    pub fn push(&mut self, (text, is_shown): &Segment, tools: &Tools) {
        self.held.extend(text.chars().map(|c| (c, *is_shown)));
        loop {
            let (place, length, channel, close) = match self.find() {
                Found::Mark { place, length, channel, close } => (place, length, channel, close),
                Found::Nothing { ready } => return self.give(ready),
            };
            self.give_before(place);
            if channel != Channel::Answer {
                self.begin(channel);
            }
            self.consume_mark(length);
            if channel == Channel::Answer {
                self.close_call(tools);
                self.begin(channel);
            }
            (self.channel, self.close, self.after_mark) = (channel, close, true);
        }
    }

    /// What was held back as the beginning of a mark.
    pub fn end(&mut self, tools: &Tools) {
        self.give(self.held.len());
        self.close_call(tools);
    }

    /// The parts that were completed since the last call.
    pub fn take(&mut self) -> Vec<Part> {
        std::mem::take(&mut self.parts)
    }

    /// The same after a token. One of thoughts or of their marks that completes no text has an empty part, so that it
    /// is not taken for a token of the answer.
    pub fn take_of_token(&mut self) -> Vec<Part> {
        let has_thought = std::mem::replace(&mut self.has_thought, self.channel == Channel::Thinking);
        let mut parts = self.take();
        if parts.is_empty() && has_thought {
            parts.push(Part { channel: Channel::Thinking, text: String::new() });
        }
        parts
    }

    /// The first mark in what is held, or how much of it is none.
    fn find(&mut self) -> Found {
        if self.marks.none() {
            return Found::Nothing { ready: self.held.len() };
        }
        if self.after_mark {
            let space = self.held.iter().take_while(|(c, _)| is_space(*c)).count();
            self.consume(space);
            self.after_mark = self.held.is_empty();
        }
        let text: Vec<char> = self.held.iter().map(|(c, _)| *c).collect();
        let mut ready = text.len();
        let mut found: Option<Found> = None;
        for (mark, channel, close) in self.possible() {
            let mark: Vec<char> = mark.chars().collect();
            let is_of_thoughts = channel == Channel::Thinking;
            for place in 0..text.len() {
                let tail = &text[place..];
                if is_of_thoughts && !self.may_think(place) {
                    continue;
                }
                if tail.starts_with(&mark) && !self.is_inside_text(&text[..place]) {
                    let earlier = matches!(found, Some(Found::Mark { place: first, .. }) if first <= place);
                    if !earlier {
                        found = Some(Found::Mark { place, length: mark.len(), channel, close });
                    }
                    break;
                }
                if mark.starts_with(tail) {
                    ready = ready.min(place);
                    break;
                }
            }
        }
        let ready = text[..ready].iter().rposition(|c| !is_space(*c)).map_or(0, |last| last + 1);
        found.unwrap_or_else(|| self.alone(&text, ready))
    }

    /// The marks that end this channel or begin another.
    fn possible(&self) -> Vec<(&'static str, Channel, &'static str)> {
        if self.channel != Channel::Answer {
            return if self.close.is_empty() { Vec::new() } else { vec![(self.close, Channel::Answer, "")] };
        }
        let thoughts = self.marks.thoughts.iter().map(|(open, close)| (*open, Channel::Thinking, *close));
        let calls = self.marks.calls.iter().map(|family| (family.open, Channel::ToolCall, family.close));
        thoughts.chain(calls).collect()
    }

    /// Whether thoughts may begin at this place of what is held: before any text of an answer, or at a special token.
    /// A text that only mentions the mark, such as a regular expression, stays an answer.
    fn may_think(&self, place: usize) -> bool {
        let (_, is_shown) = self.held[place];
        !is_shown || (self.is_first && self.held[..place].iter().all(|(c, _)| is_space(*c)))
    }

    /// A mark in a text of a call is none.
    fn is_inside_text(&self, more: &[char]) -> bool {
        let Some(family) = self.marks.calls.filter(|_| self.channel == Channel::ToolCall) else { return false };
        let whole = self.wholes.last().map_or("", |whole| whole.spelt.as_str());
        let written = whole.strip_prefix(family.open).unwrap_or(whole).chars().chain(more.iter().copied());
        parse::is_inside_text(&written.collect::<String>(), family.form)
    }

    /// A call without marks is an answer that begins like one.
    fn alone(&self, text: &[char], ready: usize) -> Found {
        let Some(family) = self.marks.calls.filter(|family| family.is_alone()) else { return Found::Nothing { ready } };
        if self.channel != Channel::Answer || !self.is_first {
            return Found::Nothing { ready };
        }
        match marks::is_alone(text.iter().collect::<String>().as_bytes(), family.form) {
            Some(true) => Found::Mark { place: 0, length: 0, channel: Channel::ToolCall, close: family.close },
            None => Found::Nothing { ready: 0 },
            Some(false) => Found::Nothing { ready },
        }
    }

    /// What stands before a mark, without the space beside it.
    fn give_before(&mut self, place: usize) {
        let space = self.held[..place].iter().rev().take_while(|(c, _)| is_space(*c)).count();
        self.give(place - space);
        self.consume(space);
    }

    fn begin(&mut self, channel: Channel) {
        self.has_thought |= channel == Channel::Thinking;
        self.wholes.push(Whole::new(channel));
    }

    fn consume(&mut self, count: usize) -> String {
        let mut shown = String::new();
        let whole = self.wholes.last_mut().expect("there is one from the beginning");
        for (c, is_shown) in self.held.drain(..count) {
            whole.spelt.push(c);
            if is_shown {
                whole.shown.push(c);
                shown.push(c);
            }
        }
        shown
    }

    /// Consumes a mark. One of thoughts stays in the message, even if it is a special token, to tell templates and readers
    /// what was thought.
    fn consume_mark(&mut self, length: usize) {
        let mark: String = self.held[..length].iter().filter(|(_, is_shown)| !is_shown).map(|(c, _)| c).collect();
        self.consume(length);
        let whole = self.wholes.last_mut().expect("there is one from the beginning");
        if whole.channel == Channel::Thinking {
            whole.shown += &mark;
        }
    }

    fn give(&mut self, count: usize) {
        self.is_first &= self.channel != Channel::Answer || self.held[..count].iter().all(|(c, _)| is_space(*c));
        let text = self.consume(count);
        if text.is_empty() {
            return;
        }
        match self.parts.last_mut() {
            Some(part) if part.channel == self.channel => part.text += &text,
            _ => self.parts.push(Part { channel: self.channel, text }),
        }
    }

    /// The calls in a part; None: it is text.
    fn calls(&self, whole: &Whole, tools: &Tools) -> Option<Vec<Call>> {
        let family = self.marks.calls.filter(|_| whole.channel == Channel::ToolCall)?;
        let calls = parse::calls(&whole.spelt, family, tools)?;
        // Without a mark, a text of another meaning looks like a call too.
        let is_marked = !family.is_alone() || whole.spelt.trim_start().starts_with(family.open);
        let is_tool = |(name, _): &Call| tools.functions().any(|function| function.name == name);
        (is_marked || calls.iter().all(is_tool)).then_some(calls)
    }

    /// At the end of a call. What is none is part of the answer too.
    fn close_call(&mut self, tools: &Tools) {
        let whole = self.wholes.last().expect("there is one from the beginning");
        let calls = self.calls(whole, tools);
        if whole.channel == Channel::ToolCall && calls.is_none() && !whole.shown.is_empty() {
            self.parts.push(Part { channel: Channel::Answer, text: whole.shown.clone() });
        }
        if whole.channel == Channel::ToolCall {
            self.is_first = calls.is_some();
        }
        self.wholes.last_mut().expect("there is one from the beginning").calls = calls;
    }

    /// The answer, once it has ended. What is no valid call is text.
    pub fn finish(self) -> Answer {
        let mut answer = Answer::default();
        for whole in self.wholes {
            answer.spelt += &whole.spelt;
            match whole.calls {
                Some(calls) => answer.calls.extend(calls),
                None => answer.content += &whole.shown,
            }
        }
        if !answer.calls.is_empty() {
            answer.content.truncate(answer.content.trim_end().len());
        }
        answer
    }
}
