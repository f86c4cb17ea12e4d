//! What may be written where a model has tools: anything, until a call begins; then a call that fits its schema.

use std::sync::Arc;

use super::families::{Family, Form, Thoughts};
use super::marks::{after_mark, alone, end_of, may_begin, Alone};
use super::{grammar, parse, Tools};
use crate::constraint::vocabulary::Vocabulary;
use crate::constraint::{Constraint, Grammar, Restriction, MAY_END, MUST_END, UNRESTRICTED};
use crate::error::{bad_argument, Result};
use crate::language::Language;
use crate::tokenizer::Tokenizer;

/// Which calls an answer may or must contain.
#[derive(Clone, Copy, PartialEq)]
enum Choice {
    Auto,
    None,
    /// One, of some function or a named one, and nothing else but thoughts.
    Required,
}

/// Where a text is.
#[derive(Clone)]
enum Phase {
    /// Thoughts, up to their mark: no call is in them.
    Thoughts {
        close: &'static str,
        tail: Vec<u8>,
    },
    /// Anything, up to the mark of a call. A token that completes a mark begun earlier must begin a valid call.
    /// `is_first`: no text but white space stands before `tail`, which may become thoughts, or a call without marks.
    Free {
        tail: Vec<u8>,
        is_first: bool,
    },
    /// The control token in front of a call that is required; `spaces` stand before it.
    Mark {
        spaces: usize,
    },
    /// The tokens from `start` on are in the grammar, after `before`, which the token in front of them wrote.
    Call {
        start: usize,
        before: Vec<u8>,
    },
    /// The arguments of a call that is not JSON, up to its mark: the tokens from `start` on.
    Arguments {
        start: usize,
    },
    End,
}

const MOST_SPACES: usize = 4; // tokens of white space between thoughts and a call

pub struct ToolConstraint {
    language: Arc<Language>,
    vocabulary: Arc<Vocabulary>,
    family: &'static Family,
    choice: Choice,
    thoughts: Vec<Thoughts>,
    has_thoughts: bool, // that the prompt has opened
    mark: Option<u32>,  // the control token that a required call begins with
    phases: Vec<Phase>, // before the first token and after each
    tokens: Vec<u32>,
    call: Option<Constraint>, // None: there are to be no calls
    found: Vec<u32>,          // what was forced last
    entered: Option<Entered>, // what `call` has accepted
}

/// A call whose grammar has accepted tokens: those that spell `before`, then tokens of the text from `start` on.
struct Entered {
    start: usize,
    before: Vec<u8>,
    before_tokens: usize,
}

impl ToolConstraint {
    /// `choice` is auto, none, required, or the name of a function. `prompt` is the text that is answered.
    pub fn new(language: Arc<Language>, tools: &Tools, choice: &str, prompt: &str) -> Result<ToolConstraint> {
        let (choice, name) = match choice {
            "auto" => (Choice::Auto, None),
            "none" => (Choice::None, None),
            "required" => (Choice::Required, None),
            name => (Choice::Required, Some(name)),
        };
        let functions = grammar::chosen(tools.functions().collect(), name)?;
        let marks = language.marks(tools, prompt);
        let opened = marks.open_at(prompt);
        let Some(family) = marks.calls.filter(|_| !functions.is_empty()) else {
            return Err(bad_argument("tool choice: there are no tools; set them first"));
        };
        let has_open = choice == Choice::Required && !family.is_alone();
        let mark = has_open.then(|| language.tokenizer.control_id(family.open)).flatten();
        let call = if choice == Choice::None {
            None
        } else {
            let with_open = has_open && mark.is_none();
            let with_space = opened.is_some() && mark.is_none();
            let lead = grammar::Lead { with_open, with_space, is_auto: choice == Choice::Auto };
            let call = |schemas: Vec<String>| {
                let around = language.around();
                let lark = grammar::of_calls(&functions, &schemas, family, around, &language.tokenizer, &lead)?;
                Constraint::new(language.clone(), Grammar::of_calls(&lark)?)
            };
            let eased = |failure| grammar::eased(&language, &functions, failure).and_then(call);
            Some(call(grammar::schemas(&functions)).or_else(eased)?)
        };
        let first = match (choice, opened) {
            (_, Some((_, close))) => Phase::Thoughts { close, tail: Vec::new() },
            (Choice::Required, None) => required(mark, 0),
            _ => free(),
        };
        let vocabulary = language.vocabulary()?;
        let (tokens, found) = Default::default();
        Ok(ToolConstraint {
            language,
            vocabulary,
            family,
            choice,
            thoughts: marks.thoughts,
            has_thoughts: opened.is_some(),
            mark,
            phases: vec![first],
            tokens,
            call,
            found,
            entered: None,
        })
    }

    /// Whether thoughts that the prompt has begun go on.
    pub fn is_thinking(&self) -> bool {
        matches!(self.phases.last(), Some(Phase::Thoughts { .. }))
    }

    /// What comes after a token in a place where anything may be written; nothing where the token begins a call that
    /// is not wanted.
    /// Thoughts begin as in `Channels`.
    fn after_free(&mut self, tail: &[u8], is_first: bool, token: u32) -> Result<Option<Phase>> {
        let written = [tail, &self.spelt(token)].concat();
        let begun = written.trim_ascii_start();
        let is_control = self.language.tokenizer.control_word(token).is_some();
        for &(open, close) in &self.thoughts {
            let at_first = || begun.strip_prefix(open.as_bytes()).filter(|_| is_first).map(<[u8]>::to_owned);
            let found = if is_control { after_mark(&written, open) } else { at_first() };
            if let Some(tail) = found {
                return Ok(Some(Phase::Thoughts { close, tail: end_of(&tail, close.len()) }));
            }
        }
        let may_think = self.thoughts.iter().any(|(open, _)| open.as_bytes().starts_with(begun));
        let stays_first = is_first && (may_think || begun.is_empty());
        let open = self.family.open;
        let is_alone = is_first && self.family.is_alone();
        let written = if is_alone { written.trim_ascii_start().to_owned() } else { written };
        let found = if is_alone { alone(&written, self.family) } else { Alone::Text };
        let opened = match found {
            Alone::Call(call) => Some(call),
            Alone::Undecided => return Ok(Some(Phase::Free { tail: written, is_first: true })),
            Alone::Text => after_mark(&written, open),
        };
        let longest = self.thoughts.iter().map(|(open, _)| open.len()).fold(open.len(), usize::max);
        let next = Phase::Free { tail: end_of(&written, longest), is_first: stays_first };
        let Some(before) = opened else { return Ok(Some(next)) };
        if self.choice == Choice::None {
            return Ok(None);
        }
        let start = self.tokens.len() + 1;
        Ok(if self.begin(start, &before)? {
            Some(self.in_call(start, before)?)
        } else if self.is_tried() {
            None
        } else {
            Some(next) // JSON that is no call, or a mark and more in one token: ordinary text
        })
    }

    /// Whether a call may begin with this text.
    fn begin(&mut self, start: usize, before: &[u8]) -> Result<bool> {
        let Some(call) = &mut self.call else { return Ok(false) };
        self.entered = None;
        call.rollback(call.len() as i32)?;
        let ids = self.vocabulary.trie().greedy_tokenize(before);
        for &id in &ids {
            let mut allowed = [0];
            call.allows(&[i64::from(id)], &mut allowed)?;
            if allowed == [0] {
                return Ok(false);
            }
            call.accept(id.into())?;
        }
        self.entered = Some(Entered { start, before: before.to_owned(), before_tokens: ids.len() });
        Ok(true)
    }

    /// The grammar of the call that is being written, with its tokens.
    fn call(&mut self, start: usize, before: &[u8]) -> Result<&mut Constraint> {
        if self.entered.as_ref().is_none_or(|call| (call.start, call.before.as_slice()) != (start, before)) {
            self.begin(start, before)?;
        }
        let (Some(call), Some(entered)) = (&mut self.call, &self.entered) else {
            return Err(bad_argument("no call begins here"));
        };
        let (written, known) = (self.tokens.len() - start, call.len() - entered.before_tokens);
        if known > written {
            call.rollback((known - written) as i32)?;
        }
        for &token in self.tokens.get(start + known..).unwrap_or_default() {
            call.accept(token.into())?;
        }
        Ok(call)
    }

    /// Where a text is behind the tokens of a call that the grammar has accepted.
    fn in_call(&mut self, start: usize, before: Vec<u8>) -> Result<Phase> {
        let state = self.call.as_mut().map_or(Ok(MUST_END), Constraint::state)?;
        Ok(match state & MUST_END {
            0 => Phase::Call { start, before },
            _ if self.family.is_json() => self.after_call(),
            _ => Phase::Arguments { start: self.tokens.len() + 1 },
        })
    }

    fn after_call(&self) -> Phase {
        match self.choice {
            Choice::Auto if !self.family.close.is_empty() && !self.family.is_alone() => free(),
            _ => Phase::End,
        }
    }

    fn spelt(&self, token: u32) -> Vec<u8> {
        spelt(&self.language.tokenizer, &self.vocabulary, token).to_owned()
    }

    fn phase(&self) -> Phase {
        self.phases.last().cloned().unwrap_or(Phase::End)
    }

    /// What comes after a token; nothing where it may not be written.
    fn after(&mut self, token: u32) -> Result<Option<Phase>> {
        let text = self.spelt(token);
        Ok(match self.phase() {
            Phase::End => None,
            Phase::Free { tail, is_first } => self.after_free(&tail, is_first, token)?,
            Phase::Thoughts { close, tail } => {
                let written = [tail.as_slice(), &text].concat();
                Some(match after_mark(&written, close) {
                    None => Phase::Thoughts { close, tail: end_of(&written, close.len()) },
                    Some(_) if self.choice == Choice::Required => required(self.mark, self.tokens.len() + 1),
                    Some(_) => free(),
                })
            }
            Phase::Mark { .. } if self.mark == Some(token) => Some(required(None, self.tokens.len() + 1)),
            Phase::Mark { spaces } => {
                let is_space = self.has_thoughts && spaces < MOST_SPACES && !text.is_empty();
                (is_space && text.trim_ascii().is_empty()).then_some(Phase::Mark { spaces: spaces + 1 })
            }
            // Only a token with the last byte of a mark completes one.
            Phase::Arguments { start } if !text.iter().any(|byte| parse::last_of_call(self.family) == Some(*byte)) => {
                Some(Phase::Arguments { start })
            }
            Phase::Arguments { start } => {
                let before = self.tokens[start..].iter().flat_map(|&token| self.spelt(token));
                let written: Vec<u8> = before.chain(text.iter().copied()).collect();
                let written = String::from_utf8_lossy(&written);
                Some(if parse::is_closed(&written, self.family) {
                    self.after_call()
                } else {
                    Phase::Arguments { start }
                })
            }
            Phase::Call { start, before } => {
                let call = self.call(start, &before)?;
                let mut allowed = [0];
                call.allows(&[token.into()], &mut allowed)?;
                if allowed == [0] {
                    return Ok(None);
                }
                call.accept(token.into())?;
                Some(self.in_call(start, before)?)
            }
        })
    }

    /// Whether each token must be tried to know where it leads.
    fn is_tried(&self) -> bool {
        match self.phase() {
            Phase::Mark { .. } => true,
            Phase::Free { tail, .. } => self.choice == Choice::None || may_begin(&tail, self.family.open),
            _ => false,
        }
    }

    /// Adds those of these tokens to a mask that may be written.
    fn allow(&mut self, words: &mut [u32], tokens: impl Iterator<Item = u32>) -> Result<()> {
        for token in tokens {
            if self.vocabulary.has(token) && self.after(token)?.is_some() {
                words[token as usize / 32] |= 1 << (token % 32);
            }
        }
        Ok(())
    }

    /// Whether anything may be written here, end tokens too: they are like others where the caller ignores them.
    fn is_unrestricted(&self) -> bool {
        match self.phase() {
            Phase::Thoughts { .. } | Phase::Arguments { .. } => true,
            Phase::Free { .. } => !self.is_tried(),
            _ => false,
        }
    }

    fn known(&self, token: i64) -> Option<u32> {
        let is_known = |token: u32| {
            self.vocabulary.has(token) || (self.is_unrestricted() && (token as usize) < self.vocabulary.size)
        };
        u32::try_from(token).ok().filter(|&token| is_known(token))
    }
}

impl Restriction for ToolConstraint {
    fn accept(&mut self, token: i64) -> Result<()> {
        let token = self.known(token).ok_or_else(|| bad_argument(format!("{token} is no token of a text")))?;
        let next = self.after(token)?.ok_or_else(|| bad_argument(format!("token {token} is not allowed here")))?;
        self.phases.push(next);
        self.tokens.push(token);
        Ok(())
    }

    fn rollback(&mut self, n: i32) -> Result<()> {
        let left = usize::try_from(n).ok().and_then(|n| self.tokens.len().checked_sub(n));
        let left = left.ok_or_else(|| bad_argument(format!("{n} tokens cannot be dropped")))?;
        self.tokens.truncate(left);
        self.phases.truncate(left + 1);
        if let Phase::Call { start, before } = self.phase() {
            self.call(start, &before)?; // before other tokens take the place of those
        }
        Ok(())
    }

    fn state(&mut self) -> Result<i32> {
        Ok(match self.phase() {
            Phase::Thoughts { .. } if self.choice == Choice::Required => UNRESTRICTED,
            Phase::Thoughts { .. } => MAY_END | UNRESTRICTED,
            Phase::Mark { .. } => 0,
            Phase::Free { .. } if self.is_tried() => MAY_END,
            Phase::Free { .. } | Phase::Arguments { .. } => MAY_END | UNRESTRICTED,
            Phase::Call { start, before } => self.call(start, &before)?.state()?,
            Phase::End => MAY_END | MUST_END,
        })
    }

    fn allows(&mut self, tokens: &[i64], allowed: &mut [u8]) -> Result<()> {
        if let Phase::Call { start, before } = self.phase() {
            return self.call(start, &before)?.allows(tokens, allowed);
        }
        for (token, allowed) in tokens.iter().zip(allowed) {
            *allowed = match self.known(*token) {
                Some(token) if self.is_tried() => self.after(token)?.is_some().into(),
                Some(_) => (!matches!(self.phase(), Phase::End)).into(),
                None => 0,
            };
        }
        Ok(())
    }

    fn mask_words(&self) -> usize {
        self.vocabulary.mask_words()
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        match self.phase() {
            Phase::Call { start, before } => return self.call(start, &before)?.mask(words),
            Phase::End => words.fill(0),
            _ if !self.is_tried() => words.fill(u32::MAX),
            Phase::Free { .. } => {
                let enders = self.language.enders()?;
                words.copy_from_slice(&enders.others);
                self.allow(words, enders.tokens.iter().copied())?;
            }
            _ => {
                words.fill(0);
                self.allow(words, 0..self.vocabulary.size as u32)?;
            }
        }
        Ok(())
    }

    fn forced(&mut self, room: usize) -> Result<&[u32]> {
        match self.phase() {
            Phase::Call { start, before } => self.call(start, &before)?.forced(room),
            Phase::Mark { .. } if !self.has_thoughts && room > 0 => {
                let mut found: Vec<u32> = self.mark.into_iter().collect();
                if self.begin(self.tokens.len() + 1, &[])? {
                    let behind = self.call.as_mut().map(|call| call.forced(room - 1)).transpose()?;
                    found.extend_from_slice(behind.unwrap_or_default());
                }
                self.found = found;
                Ok(&self.found)
            }
            _ => Ok(&[]),
        }
    }

    fn choice_key(&mut self) -> Result<u64> {
        match self.phase() {
            Phase::Call { start, before } => self.call(start, &before)?.choice_key(),
            _ => Ok(0),
        }
    }
}

fn spelt<'a>(tokenizer: &'a Tokenizer, vocabulary: &'a Vocabulary, token: u32) -> &'a [u8] {
    tokenizer.control_word(token).map_or_else(|| vocabulary.trie().token(token), str::as_bytes)
}

/// The tokens that may complete the mark of a call: those with its last byte.
pub struct Enders {
    tokens: Vec<u32>,
    others: Vec<u32>, // a mask of all other tokens of a text
}

impl Enders {
    pub fn new(tokenizer: &Tokenizer, vocabulary: &Vocabulary, family: &Family) -> Enders {
        let begun = match family.form {
            Form::JsonAlone => Some(b'"'), // the last byte of a call's beginning
            Form::PythonAlone => Some(b'('),
            _ => None,
        };
        let last = [family.open.bytes().last(), begun];
        let (mut tokens, mut others) = (Vec::new(), vec![0; vocabulary.mask_words()]);
        for token in (0..vocabulary.size as u32).filter(|&token| vocabulary.has(token)) {
            if spelt(tokenizer, vocabulary, token).iter().any(|byte| last.contains(&Some(*byte))) {
                tokens.push(token);
            } else {
                others[token as usize / 32] |= 1 << (token % 32);
            }
        }
        Enders { tokens, others }
    }
}

/// Where no text was written so far.
fn free() -> Phase {
    Phase::Free { tail: Vec::new(), is_first: true }
}

/// Where a call that is required begins.
fn required(mark: Option<u32>, start: usize) -> Phase {
    match mark {
        Some(_) => Phase::Mark { spaces: 0 },
        None => Phase::Call { start, before: Vec::new() },
    }
}
