//! Hugging Face's tokenizers, the library that Python uses, so that the ids are the same by construction.

use std::panic::catch_unwind;
use std::path::Path;

use aho_corasick::AhoCorasick;

use crate::error::{bad_argument, bad_file, one_line, Result};

/// Where a control token that a message spells is cut in two, so that it is read as text. A noncharacter of Unicode: no
/// text is meant to hold it. It is dropped from messages, and never reaches the tokenizer.
pub const CUT: char = '\u{fdd0}';

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    control: Option<AhoCorasick>, // finds control tokens that a text spells
}

impl Tokenizer {
    /// What the file says of lengths (truncation, padding) is for training, so it is dropped.
    pub fn new(file: &[u8], path: &Path) -> Result<Tokenizer> {
        let refuse = |reason: String| bad_file(format!("{}: not a tokenizer ({reason})", path.display()));
        // Some files that are none make the library panic.
        let mut inner = catch_unwind(|| tokenizers::Tokenizer::from_bytes(file))
            .map_err(|_| refuse("its library broke".to_owned()))?
            .map_err(|error| refuse(one_line(&error)))?;
        inner.with_truncation(None).map_err(|error| refuse(one_line(&error)))?.with_padding(None);
        let special = inner.get_added_tokens_decoder().into_values().filter(|token| token.special);
        let spelt: Vec<String> =
            special.map(|token| token.content).filter(|word| word.chars().nth(1).is_some()).collect();
        let control = (!spelt.is_empty()).then(|| AhoCorasick::new(spelt)).transpose();
        Ok(Tokenizer { inner, control: control.map_err(|error| refuse(one_line(&error)))? })
    }

    /// Token ids of a raw prompt, with the marks that the tokenizer itself puts around one.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.ids(text, true)
    }

    /// Token ids of text that a template wrote: the template has put every mark there already.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>> {
        let parts = text.split(CUT).map(|part| self.ids(part, false)).collect::<Result<Vec<_>>>()?;
        Ok(parts.concat())
    }

    /// Text with a `CUT` in each control token that it spells.
    pub fn cut(&self, text: &str) -> String {
        let text = text.replace(CUT, "");
        let Some(control) = &self.control else { return text };
        let mut starts: Vec<usize> = control.find_overlapping_iter(&text).map(|found| found.start()).collect();
        starts.sort_unstable();
        starts.dedup();
        let (mut out, mut done) = (String::with_capacity(text.len() + 3 * starts.len()), 0);
        for start in starts {
            let end = start + text[start..].chars().next().map_or(0, char::len_utf8);
            out += &text[done..end];
            out.push(CUT);
            done = end;
        }
        out + &text[done..]
    }

    fn ids(&self, text: &str, marks: bool) -> Result<Vec<u32>> {
        match self.inner.encode_fast(text, marks) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(bad_argument(format!("the tokenizer refuses this text ({})", one_line(&error)))),
        }
    }

    /// Without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner
            .decode(ids, true)
            .map_err(|error| bad_argument(format!("the tokenizer refuses these tokens ({})", one_line(&error))))
    }

    pub fn has(&self, id: u32) -> bool {
        self.inner.id_to_token(id).is_some()
    }

    /// The token's text in the vocabulary; empty where there is none.
    pub fn word(&self, id: Option<i64>) -> String {
        id.and_then(|id| u32::try_from(id).ok()).and_then(|id| self.inner.id_to_token(id)).unwrap_or_default()
    }
}
