//! Tokens for a text that a grammar forces, as the tokenizer itself would write them.

use llguidance::toktrie::{Recognizer, TokTrie};
use llguidance::TokenParser;

use crate::tokenizer::Tokenizer;

const CONTEXT: usize = 4; // tokens in front that the tokenizer may merge with

/// What to write in front: nothing, or a character that merges with no other, where a tokenizer begins a text with a
/// space of its own.
const MARKS: [&str; 2] = ["", "\u{2}"];

/// What may follow, in the order of how often it does.
const LIKELY: &[u8] = b"a1A \"";

pub fn forced(parser: &mut TokenParser, tokenizer: &Tokenizer, trie: &TokTrie, before: &[u32]) -> Vec<u32> {
    let forced = parser.force_bytes();
    let Ok(text) = std::str::from_utf8(&forced) else {
        return Vec::new();
    };
    if text.is_empty() {
        return Vec::new();
    }
    let next = parser.parser.with_recognizer(|recognizer| {
        recognizer.trie_started("drafts");
        let next = LIKELY.iter().copied().chain(1..=127).find(|&byte| recognizer.byte_allowed(byte));
        recognizer.trie_finished();
        next
    });
    let next = next.map(char::from).into_iter().collect::<String>();
    let whole = [text, &next].concat();
    let first = before.len().saturating_sub(CONTEXT);
    for place in first..=before.len() {
        let Ok(context) = String::from_utf8(trie.decode_raw(&before[place..])) else { continue };
        for mark in MARKS {
            let encode = |text: &str| tokenizer.encode_rendered(text).unwrap_or_default();
            let known = [encode(mark), before[place..].to_owned()].concat();
            let ids = encode(&[mark, &context, &whole].concat());
            let found =
                ids.strip_prefix(known.as_slice()).map_or_else(Vec::new, |ids| within(trie, ids, text.as_bytes()));
            if !found.is_empty() {
                return found;
            }
        }
    }
    Vec::new()
}

/// The tokens that spell a beginning of a text.
fn within(trie: &TokTrie, ids: &[u32], text: &[u8]) -> Vec<u32> {
    let mut rest = text;
    let spells = |id: &&u32| match rest.strip_prefix(trie.token(**id)) {
        Some(left) if !trie.token(**id).is_empty() => {
            rest = left;
            true
        }
        _ => false,
    };
    ids.iter().take_while(spells).copied().collect()
}
