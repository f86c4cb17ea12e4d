//! Tokens for a text that a grammar forces, as the tokenizer itself would write them.

use std::hash::{DefaultHasher, Hash, Hasher};

use llguidance::toktrie::{parse_numeric_token, Recognizer, TokTrie};
use llguidance::TokenParser;

use crate::tokenizer::{Tokenizer, OPENER};

const MOST_CHOICES: usize = 40; // bytes: digits, punctuation and the first letters of keys
const CONTEXT: usize = 4; // tokens in front that the tokenizer may merge with

/// What to write in front: nothing, or what hides that the text begins there.
const MARKS: [&str; 2] = ["", OPENER];

/// What may follow, the likeliest first.
const LIKELY: &[u8] = b"a1A \"";

/// `before` are the tokens of the text so far. Leaves the parser as it was.
pub fn forced(parser: &mut TokenParser, tokenizer: &Tokenizer, trie: &TokTrie, before: &[u32]) -> Vec<u32> {
    let bytes = parser.force_bytes();
    let next = if bytes.is_empty() { None } else { next_byte(parser) };
    let _ = parser.parser.rollback(0); // an error is a limit, which the parser's next call reports
    let next = next.map(char::from).into_iter().collect::<String>();
    let drafter = Drafter { tokenizer, trie };
    let mut context = before[before.len().saturating_sub(CONTEXT)..].to_vec();
    let mut found = Vec::new();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        // Up to a control token, which is written as the mark and its number.
        let end = rest.iter().position(|&byte| byte == TokTrie::SPECIAL_TOKEN_MARKER).unwrap_or(rest.len());
        let next = if end == rest.len() { next.as_str() } else { "" };
        let mut part = drafter.tokens(&rest[..end], next, &context);
        let is_whole = part.iter().map(|&id| trie.token(id).len()).sum::<usize>() == end;
        found.append(&mut part);
        let Some((size, token)) = rest.get(end + 1..).filter(|_| is_whole).and_then(parse_numeric_token) else { break };
        found.push(token);
        context = vec![token];
        rest = &rest[end + 1 + size..];
    }
    found
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
