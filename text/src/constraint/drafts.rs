//! Tokens for a text that a grammar forces, as the tokenizer itself would write them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use llguidance::toktrie::{parse_numeric_token, Recognizer, TokTrie};
use llguidance::TokenParser;

use crate::tokenizer::{Tokenizer, OPENER};

const MOST_CHOICES: usize = 40; // bytes: digits, punctuation and the first letters of keys
const CONTEXT: usize = 4; // tokens in front that the tokenizer may merge with
const WINDOW: usize = 512; // bytes of forced text that are tokenized at a time
const NEXT: usize = 16; // bytes behind them that the tokenizer may merge with

/// What to write in front: nothing, or what hides that the text begins there.
const MARKS: [&str; 2] = ["", OPENER];

/// What may follow, the likeliest first.
const LIKELY: &[u8] = b"a1A \"";

/// Text that a grammar forces, with the tokens of its beginning.
#[derive(Clone)]
pub struct Forced {
    bytes: Arc<[u8]>, // a control token is a mark and its id
    at: usize,        // bytes that are written already
    next: String,     // a byte that may follow, or nothing
    tokens: Vec<u32>,
    covered: usize, // bytes that the tokens spell
}

impl Forced {
    /// Leaves the parser as it was, or with an error where the text meets a limit: the bytes before it are forced too.
    pub fn of(parser: &mut TokenParser) -> Forced {
        let bytes = parser.force_bytes();
        let next = if bytes.is_empty() { None } else { next_byte(parser) };
        let _ = parser.parser.rollback(0); // an error is a limit, which the parser's next call reports
        let next = next.map(char::from).into_iter().collect();
        Forced { bytes: bytes.into(), at: 0, next, tokens: Vec::new(), covered: 0 }
    }

    pub fn none() -> Forced {
        Forced { bytes: Arc::new([]), at: 0, next: String::new(), tokens: Vec::new(), covered: 0 }
    }

    /// What is left after a token; nothing if the token is not a part of it, or its end.
    pub fn after(&self, token: u32, trie: &TokTrie) -> Option<Forced> {
        let rest = &self.bytes[self.at..];
        let size = match rest.first() {
            Some(&TokTrie::SPECIAL_TOKEN_MARKER) => {
                parse_numeric_token(&rest[1..]).filter(|&(_, id)| id == token).map(|(size, _)| size + 1)?
            }
            _ => Some(trie.token(token)).filter(|bytes| rest.starts_with(bytes)).map(<[u8]>::len)?,
        };
        if size == 0 || size == rest.len() {
            return None;
        }
        let mut left = Forced { at: self.at + size, tokens: Vec::new(), covered: 0, ..self.clone() };
        if self.tokens.first() == Some(&token) {
            left.tokens = self.tokens[1..].to_vec();
            left.covered = self.covered - size;
        }
        Some(left)
    }

    /// At most `room` of its first tokens, from the next `WINDOW` bytes. `before` are the tokens of the text so far.
    pub fn tokens(&mut self, room: usize, tokenizer: &Tokenizer, trie: &TokTrie, before: &[u32]) -> &[u32] {
        let rest = &self.bytes[self.at..];
        if self.tokens.len() < room && self.covered < rest.len() {
            let (text, behind) = rest.split_at(whole_characters(rest, WINDOW));
            let next = match std::str::from_utf8(&behind[..whole_characters(behind, NEXT)]) {
                _ if behind.is_empty() => &self.next,
                Ok(next) => next,
                Err(_) => "",
            };
            (self.tokens, self.covered) = tokens_of(text, next, tokenizer, trie, before);
        }
        &self.tokens[..self.tokens.len().min(room)]
    }
}

/// At most `most`, where no character is cut.
fn whole_characters(bytes: &[u8], most: usize) -> usize {
    let is_inside = |&size: &usize| bytes.get(size).is_some_and(|byte| byte & 0xC0 == 0x80);
    (0..=most.min(bytes.len())).rev().find(|size| !is_inside(size)).unwrap_or(0)
}

/// Tokens for a text that `next` follows, and the number of its bytes that they spell.
fn tokens_of(text: &[u8], next: &str, tokenizer: &Tokenizer, trie: &TokTrie, before: &[u32]) -> (Vec<u32>, usize) {
    let drafter = Drafter { tokenizer, trie };
    let mut context = before[before.len().saturating_sub(CONTEXT)..].to_vec();
    let mut found = Vec::new();
    let mut rest = text;
    let mut covered = 0;
    while !rest.is_empty() {
        // Up to a control token, which is written as the mark and its number.
        let end = rest.iter().position(|&byte| byte == TokTrie::SPECIAL_TOKEN_MARKER).unwrap_or(rest.len());
        let next = if end == rest.len() { next } else { "" };
        let mut part = drafter.tokens(&rest[..end], next, &context);
        let size: usize = part.iter().map(|&id| trie.token(id).len()).sum();
        found.append(&mut part);
        covered += size;
        let control = rest.get(end + 1..).filter(|_| size == end).and_then(parse_numeric_token);
        let Some((size, token)) = control else { break };
        found.push(token);
        covered += 1 + size;
        context = vec![token];
        rest = &rest[end + 1 + size..];
    }
    (found, covered)
}

/// A byte that may follow, so that the last tokens of what is forced are those that the tokenizer writes before it.
fn next_byte(parser: &mut TokenParser) -> Option<u8> {
    parser.parser.with_recognizer(|recognizer| {
        recognizer.trie_started("drafts");
        let next = LIKELY.iter().copied().chain(1..=127).find(|&byte| recognizer.byte_allowed(byte));
        recognizer.trie_finished();
        next
    })
}

/// A hash of the bytes that may come next, which tells states of a grammar apart: inside a number, before a key. 0 where
/// they are more than `MOST_CHOICES`, as inside a string: what was written there before says little.
pub fn choice_key(parser: &mut TokenParser) -> u64 {
    parser.parser.with_recognizer(|recognizer| {
        recognizer.trie_started("drafts");
        let mut allowed = (b' '..=255).chain(0..b' ').filter(|&byte| recognizer.byte_allowed(byte));
        let found: Vec<u8> = allowed.by_ref().take(MOST_CHOICES + 1).collect();
        recognizer.trie_finished();
        if found.len() > MOST_CHOICES {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        found.hash(&mut hasher);
        hasher.finish() | 1
    })
}

struct Drafter<'a> {
    tokenizer: &'a Tokenizer,
    trie: &'a TokTrie,
}

impl Drafter<'_> {
    /// Tokens for `text`, or for its beginning where the last one reaches into `next`. As much of the context goes in
    /// front as the tokenizer reads in the tokens that it has.
    fn tokens(&self, text: &[u8], next: &str, context: &[u32]) -> Vec<u32> {
        let Ok(text) = std::str::from_utf8(text) else { return Vec::new() };
        if text.is_empty() {
            return Vec::new();
        }
        for place in 0..=context.len() {
            let context = &context[place..];
            let Ok(before) = String::from_utf8(self.trie.decode_raw(context)) else { continue };
            for mark in MARKS {
                let known = [self.encode(mark), context.to_owned()].concat();
                let ids = self.encode(&[mark, &before, text, next].concat());
                let found = ids.strip_prefix(known.as_slice()).map_or_else(Vec::new, |ids| self.within(ids, text));
                if !found.is_empty() {
                    return found;
                }
            }
        }
        Vec::new()
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode_rendered(text).unwrap_or_default()
    }

    /// The tokens that spell a beginning of a text.
    fn within(&self, ids: &[u32], text: &str) -> Vec<u32> {
        let mut rest = text.as_bytes();
        let spells = |id: &&u32| match rest.strip_prefix(self.trie.token(**id)) {
            Some(left) if left.len() < rest.len() => {
                rest = left;
                true
            }
            _ => false,
        };
        ids.iter().take_while(spells).copied().collect()
    }
}
