//! A grammar that restricts a text, token by token.

mod blame;
mod bounds;
mod breadth;
mod combinations;
mod disjoint;
mod drafts;
mod expand;
mod formats;
mod grammar;
mod lark;
mod limits;
mod outside;
mod restriction;
mod schema;
pub mod vocabulary;

use std::sync::Arc;

use llguidance::api::StopReason;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{SimpleVob, TokTrie};
use llguidance::TokenParser;

use crate::error::{bad_argument, bad_grammar, one_line, Result};
use crate::language::Language;
use drafts::Forced;
pub use grammar::{schema_in_lark, Grammar, JSON_SCHEMA};
pub use restriction::Restriction;
use vocabulary::Vocabulary;

pub const MAY_END: i32 = 1;
pub const MUST_END: i32 = 2;
pub const UNRESTRICTED: i32 = 4;
pub const MAY_GROW: i32 = 8;

/// sf_constraint. Its state is the list of accepted tokens.
pub struct Constraint {
    language: Arc<Language>,
    vocabulary: Arc<Vocabulary>,
    grammar: Grammar,
    parser: TokenParser,
    tokens: Vec<u32>,
    has_failed: bool,            // the parser has met an error: it is made anew before the next call
    mask: Option<SimpleVob>,     // after these tokens, once it is computed
    forced: Vec<Option<Forced>>, // before the first token and after each, once it is found
}

impl Constraint {
    pub fn new(language: Arc<Language>, grammar: Grammar) -> Result<Constraint> {
        let vocabulary = language.vocabulary()?;
        let parser = grammar.parser(&vocabulary)?;
        let tokens = Vec::new();
        let mut made = Constraint {
            language,
            vocabulary,
            grammar,
            parser,
            tokens,
            has_failed: false,
            mask: None,
            forced: vec![None],
        };
        if made.state()? == 0 {
            let mask = made.compute_mask()?; // the first call wants it too
            if mask.is_zero() {
                return Err(bad_grammar("no text fits the grammar, or none that this vocabulary can spell"));
            }
            made.mask = Some(mask);
        }
        Ok(made)
    }

    /// Number of accepted tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    fn allows_one(&mut self, token: u32) -> Result<bool> {
        if let Some(mask) = &self.mask {
            return Ok(mask.is_allowed(token));
        }
        let fits = self.parser.validate_token(token);
        self.checked(fits)
    }

    fn compute_mask(&mut self) -> Result<SimpleVob> {
        if self.parser.stopped() {
            return Ok(self.vocabulary.trie().alloc_token_set());
        }
        let mask = self.parser.compute_mask();
        if mask.is_err() && self.parser.stop_reason() == StopReason::NoExtensionBias {
            self.has_failed = true; // it has stopped, which is not what the text says
            return Ok(self.vocabulary.trie().alloc_token_set());
        }
        let mut mask = self.checked(mask)?;
        for &end in self.vocabulary.ends() {
            mask.disallow_token(end);
        }
        // In masks, but not for single tokens, the compiler lets a negation match the mark of control tokens.
        let vocabulary = self.vocabulary.clone();
        for &control in vocabulary.controls() {
            if mask.is_allowed(control) {
                let fits = self.parser.validate_token(control);
                if !self.checked(fits)? {
                    mask.disallow_token(control);
                }
            }
        }
        Ok(mask)
    }

    fn push(&mut self, token: u32) -> Result<()> {
        self.refuel();
        let pushed = self.parser.consume_token(token).and_then(|_| self.parser.check_stop());
        self.checked(pushed).map(|_| ())
    }

    /// What is forced here. If that meets a limit, the text before it still counts.
    fn force(&mut self) -> Result<Forced> {
        self.mend()?;
        if self.parser.stopped() {
            return Ok(Forced::none());
        }
        let found = Forced::of(&mut self.parser);
        self.has_failed = self.parser.parser.get_error().is_some();
        Ok(found)
    }

    /// Complete JSON is then a number.
    fn ends_with_digit(&self) -> bool {
        let last = self.tokens.last().and_then(|&token| self.vocabulary.trie().token(token).last());
        last.is_some_and(u8::is_ascii_digit)
    }

    /// Renews the lexer's budget ("fuel") for one step. The parser does so only when it computes a mask; without this, a
    /// greedy text that needs no mask would spend one budget on its whole length.
    fn refuel(&mut self) {
        // With a prefix, the parser does not cache this as its mask.
        self.parser.parser.compute_bias(&NoMask(self.vocabulary.trie()), b" ");
    }

    /// Calls the parser; if it meets a limit, a new one that has accepted the same tokens is asked again. Drafts spend
    /// budget too, and must not change the answer.
    fn ask<T>(&mut self, call: impl Fn(&mut Self) -> Result<T>) -> Result<T> {
        let is_new = self.has_failed;
        self.mend()?;
        let found = call(self);
        if found.is_ok() || !self.has_failed || is_new {
            return found;
        }
        self.mend()?;
        call(self)
    }

    /// A parser that has met an error does nothing any more, so a new one accepts the tokens again.
    fn mend(&mut self) -> Result<()> {
        if !self.has_failed {
            return Ok(());
        }
        self.parser = self.grammar.parser(&self.vocabulary)?;
        self.has_failed = false;
        for place in 0..self.tokens.len() {
            self.push(self.tokens[place])?;
        }
        Ok(())
    }

    fn checked<T>(&mut self, found: std::result::Result<T, impl std::fmt::Display>) -> Result<T> {
        match found {
            Ok(found) => self.check().map(|()| found),
            Err(error) => {
                self.has_failed = true;
                Err(bad_grammar(format!("the grammar cannot go on: {}", one_line(&error))))
            }
        }
    }

    /// A limit that the parser has met.
    fn check(&mut self) -> Result<()> {
        match self.parser.parser.get_error() {
            None => Ok(()),
            Some(error) => {
                self.has_failed = true;
                Err(bad_grammar(format!("the grammar cannot go on: {}", one_line(&error.message()))))
            }
        }
    }
}

/// Computes no mask. `compute_bias` is called for its side effect, a new budget for the lexer.
struct NoMask<'a>(&'a TokTrie);

impl BiasComputer for NoMask<'_> {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        self.0.alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.0
    }
}

impl Restriction for Constraint {
    fn accept(&mut self, token: i64) -> Result<()> {
        let token = u32::try_from(token).ok().filter(|&token| self.vocabulary.has(token));
        let Some(token) = token else {
            return Err(bad_argument("only tokens of the vocabulary can be accepted, without end tokens"));
        };
        self.mask = None;
        self.ask(|own| own.push(token))?;
        // Within forced text that is the rest of it: only the whole text is expensive to find.
        let forced = self.forced.last().and_then(Option::as_ref);
        self.forced.push(forced.and_then(|forced| forced.after(token, self.vocabulary.trie())));
        self.tokens.push(token);
        Ok(())
    }

    fn rollback(&mut self, n: i32) -> Result<()> {
        let Some(left) = usize::try_from(n).ok().and_then(|n| self.tokens.len().checked_sub(n)) else {
            return Err(bad_argument(format!("{n} tokens cannot be dropped of {}", self.tokens.len())));
        };
        self.mask = None;
        let n = self.tokens.len() - left;
        self.tokens.truncate(left);
        self.forced.truncate(left + 1);
        if !self.has_failed && self.parser.rollback(n).is_err() {
            self.has_failed = true;
        }
        self.parser.invalidate_bias_cache(); // its key does not tell apart texts of the same length
        self.mend()
    }

    fn state(&mut self) -> Result<i32> {
        self.ask(|own| {
            if own.parser.stopped() {
                return Ok(MAY_END | MUST_END);
            }
            let may_end = own.parser.is_accepting();
            own.check()?;
            let may_grow = matches!(own.grammar, Grammar::JsonSchema { .. }) && own.ends_with_digit();
            Ok(i32::from(may_end) * (MAY_END | i32::from(may_grow) * MAY_GROW))
        })
    }

    fn allows(&mut self, tokens: &[i64], allowed: &mut [u8]) -> Result<()> {
        for (token, allowed) in tokens.iter().zip(allowed) {
            let token = u32::try_from(*token).ok().filter(|&token| self.vocabulary.has(token));
            *allowed = match token {
                Some(token) => self.ask(|own| own.allows_one(token))?.into(),
                None => 0,
            };
        }
        Ok(())
    }

    fn mask_words(&self) -> usize {
        self.vocabulary.mask_words()
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => self.ask(Self::compute_mask)?,
        };
        words.copy_from_slice(&mask.as_slice()[..words.len()]);
        self.mask = Some(mask);
        Ok(())
    }

    fn forced(&mut self, room: usize) -> Result<&[u32]> {
        let place = self.tokens.len();
        if self.forced[place].is_none() {
            self.forced[place] = Some(self.force()?);
        }
        let Some(found) = &mut self.forced[place] else { return Ok(&[]) };
        Ok(found.tokens(room, &self.language.tokenizer, self.vocabulary.trie(), &self.tokens))
    }

    fn choice_key(&mut self) -> Result<u64> {
        self.ask(|own| {
            if own.parser.stopped() {
                return Ok(0);
            }
            let key = drafts::choice_key(&mut own.parser);
            own.check()?;
            Ok(key)
        })
    }
}
