//! What may be written where a model has tools: anything, until a call begins; then a call that fits its schema.

use std::sync::Arc;

use super::families::{Family, Form, Thoughts};
use super::{grammar, Tools};
use crate::constraint::vocabulary::Vocabulary;
use crate::constraint::{Constraint, Restriction, LARK, MAY_END, MUST_END, UNRESTRICTED};
use crate::error::{bad_argument, Result};
use crate::language::Language;

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
    /// Thoughts that the prompt has opened, up to their mark.
    Thoughts {
        tail: Vec<u8>,
    },
    /// Anything, up to the mark of a call; without `tail` no call can begin any more.
    Free {
        tail: Option<Vec<u8>>,
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
    /// The arguments of a call that is not JSON, up to its mark.
    Arguments {
        tail: Vec<u8>,
    },
    End,
}

const MOST_SPACES: usize = 4; // tokens of white space between thoughts and a call

pub struct ToolConstraint {
    language: Arc<Language>,
    vocabulary: Arc<Vocabulary>,
    family: &'static Family,
    choice: Choice,
    thoughts: Option<Thoughts>, // that are open
    mark: Option<u32>,          // the control token that a required call begins with
    phases: Vec<Phase>,         // before the first token and after each
    tokens: Vec<u32>,
    call: Option<Constraint>,         // None: there are to be no calls
    found: Vec<u32>,                  // what was forced last
    in_call: (usize, Vec<u8>, usize), // the call whose tokens it has, and how many of them spell `before`
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
        if functions.is_empty() {
            return Err(bad_argument("tool choice: there are no tools; set them first"));
        }
        let marks = language.marks(tools);
        let thoughts = marks.open_at(prompt).filter(|_| choice == Choice::Required);
        let Some(family) = marks.calls.filter(|_| !functions.is_empty()) else {
            return Err(bad_argument("tool choice: there are no tools; set them first"));
        };
        let is_marked = choice == Choice::Required && family.form != Form::JsonAlone;
        let mark = is_marked.then(|| language.tokenizer.control_id(family.open)).flatten();
        let call = if choice == Choice::None {
            None
        } else {
            let with_open = choice == Choice::Required && family.form != Form::JsonAlone && mark.is_none();
            let with_space = thoughts.is_some() && mark.is_none();
            let lark = grammar::of_calls(&functions, family, &language.tokenizer, with_open, with_space)?;
            let call = Constraint::new(language.clone(), LARK, &lark);
            Some(call.map_err(|failure| grammar::blamed(&language, &functions, failure))?)
        };
        let first = match choice {
            Choice::Required if thoughts.is_some() => Phase::Thoughts { tail: Vec::new() },
            Choice::Required => required(mark, 0),
            _ => Phase::Free { tail: Some(Vec::new()) },
        };
        let vocabulary = language.vocabulary()?;
        let (tokens, found, in_call) = Default::default();
        Ok(ToolConstraint {
            language,
            vocabulary,
            family,
            choice,
            thoughts,
            mark,
            phases: vec![first],
            tokens,
            call,
            found,
            in_call,
        })
    }

    /// What comes after a token in a place where anything may be written; nothing where the token begins a call that
    /// is not wanted.
    fn after_free(&mut self, tail: Option<Vec<u8>>, text: &[u8]) -> Result<Option<Phase>> {
        let Some(tail) = tail else { return Ok(Some(Phase::Free { tail: None })) };
        let written = [tail.as_slice(), text].concat();
        let (opened, tail) = match self.family.form {
            Form::JsonAlone => alone(&written, self.family.open.as_bytes()),
            _ => (after_mark(&written, self.family.open), Some(end_of(&written, self.family.open))),
        };
        let Some(before) = opened else { return Ok(Some(Phase::Free { tail })) };
        if self.choice == Choice::None {
            return Ok(None);
        }
        let start = self.tokens.len() + 1;
        Ok(Some(if self.begin(start, &before)? {
            Phase::Call { start, before }
        } else {
            Phase::Free { tail } // no call, and text like any other
        }))
    }

    /// Whether a call may begin with this text.
    fn begin(&mut self, start: usize, before: &[u8]) -> Result<bool> {
        let Some(call) = &mut self.call else { return Ok(false) };
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
        self.in_call = (start, before.to_owned(), ids.len());
        Ok(true)
    }

    /// The grammar of the call that is being written, with its tokens.
    fn call(&mut self, start: usize, before: &[u8]) -> Result<&mut Constraint> {
        if (self.in_call.0, self.in_call.1.as_slice()) != (start, before) {
            self.begin(start, before)?;
        }
        let Some(call) = &mut self.call else { return Err(bad_argument("there is no grammar of calls")) };
        let (written, known) = (self.tokens.len() - start, call.len() - self.in_call.2);
        if known > written {
            call.rollback((known - written) as i32)?;
        }
        for &token in self.tokens.get(start + known..).unwrap_or_default() {
            call.accept(token.into())?;
        }
        Ok(call)
    }

    fn after_call(&self) -> Phase {
        match self.choice {
            Choice::Auto if !self.family.close.is_empty() => Phase::Free { tail: Some(Vec::new()) },
            _ => Phase::End,
        }
    }

    fn spelt(&self, token: u32) -> Vec<u8> {
        match self.language.tokenizer.control_word(token) {
            Some(word) => word.as_bytes().to_owned(),
            None => self.vocabulary.trie().token(token).to_owned(),
        }
    }

    fn phase(&self) -> Phase {
        self.phases.last().cloned().unwrap_or(Phase::End)
    }

    /// What comes after a token; nothing where it may not be written.
    fn after(&mut self, token: u32) -> Result<Option<Phase>> {
        let text = self.spelt(token);
        Ok(match self.phase() {
            Phase::End => None,
            Phase::Free { tail } => self.after_free(tail, &text)?,
            Phase::Thoughts { tail } => {
                let close = self.thoughts.map_or("", |(_, close)| close);
                let written = [tail.as_slice(), &text].concat();
                Some(match after_mark(&written, close) {
                    Some(_) => required(self.mark, self.tokens.len() + 1),
                    None => Phase::Thoughts { tail: end_of(&written, close) },
                })
            }
            Phase::Mark { .. } if self.mark == Some(token) => Some(required(None, self.tokens.len() + 1)),
            Phase::Mark { spaces } => {
                let is_space = self.thoughts.is_some() && spaces < MOST_SPACES && !text.is_empty();
                (is_space && text.trim_ascii().is_empty()).then_some(Phase::Mark { spaces: spaces + 1 })
            }
            Phase::Arguments { tail } => {
                let written = [tail.as_slice(), &text].concat();
                Some(match after_mark(&written, self.family.close) {
                    Some(_) => self.after_call(),
                    None => Phase::Arguments { tail: end_of(&written, self.family.close) },
                })
            }
            Phase::Call { start, before } => {
                let is_json = self.family.is_json();
                let call = self.call(start, &before)?;
                let mut allowed = [0];
                call.allows(&[token.into()], &mut allowed)?;
                if allowed == [0] {
                    return Ok(None);
                }
                call.accept(token.into())?;
                match call.state()? & MUST_END {
                    0 => Some(Phase::Call { start, before }),
                    _ if is_json => Some(self.after_call()),
                    _ => Some(Phase::Arguments { tail: Vec::new() }),
                }
            }
        })
    }

    /// Whether each token must be tried to know where it leads.
    fn is_tried(&self) -> bool {
        self.choice == Choice::None || matches!(self.phase(), Phase::Mark { .. })
    }

    fn known(&self, token: i64) -> Option<u32> {
        u32::try_from(token).ok().filter(|&token| self.vocabulary.has(token))
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
            Phase::Thoughts { .. } => UNRESTRICTED,
            Phase::Mark { .. } => 0,
            Phase::Free { .. } if self.choice == Choice::None => MAY_END,
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
        self.vocabulary.size.div_ceil(32)
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        match self.phase() {
            Phase::Call { start, before } => return self.call(start, &before)?.mask(words),
            Phase::End => words.fill(0),
            _ if !self.is_tried() => words.fill(u32::MAX),
            _ => {
                words.fill(0);
                for token in 0..self.vocabulary.size as u32 {
                    if self.vocabulary.has(token) && self.after(token)?.is_some() {
                        words[token as usize / 32] |= 1 << (token % 32);
                    }
                }
            }
        }
        Ok(())
    }

    fn forced(&mut self, room: usize) -> Result<&[u32]> {
        match self.phase() {
            Phase::Call { start, before } => self.call(start, &before)?.forced(room),
            Phase::Mark { .. } if self.thoughts.is_none() && room > 0 => {
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
}

/// Where a call that is required begins.
fn required(mark: Option<u32>, start: usize) -> Phase {
    match mark {
        Some(_) => Phase::Mark { spaces: 0 },
        None => Phase::Call { start, before: Vec::new() },
    }
}

/// What follows a mark, if it is there.
fn after_mark(text: &[u8], mark: &str) -> Option<Vec<u8>> {
    let place = text.windows(mark.len().max(1)).position(|window| window == mark.as_bytes())?;
    Some(text[place + mark.len()..].to_owned())
}

/// The end of a text that may be the beginning of a mark.
fn end_of(text: &[u8], mark: &str) -> Vec<u8> {
    text[text.len().saturating_sub(mark.len().saturating_sub(1))..].to_owned()
}

/// A call without marks is an answer that begins like one: what is written of it, and else what may become one.
fn alone(written: &[u8], open: &[u8]) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let text = written.trim_ascii_start();
    if let Some(call) = text.strip_prefix(open) {
        return (Some(call.to_owned()), None);
    }
    const BEGINNING: &[u8] = b"{\"name\"";
    if text.starts_with(BEGINNING) {
        return (Some(text.to_owned()), None);
    }
    let may_be = open.starts_with(text) || BEGINNING.starts_with(text);
    (None, may_be.then(|| written.to_owned()))
}
