//! Wraps Hugging Face's tokenizers, the library that transformers uses, so token ids are the same by construction.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use tokenizers::{DecoderWrapper, ModelWrapper};

use crate::control_tokens::{ControlTokens, Kept, CUT};
use crate::error::{bad_argument, bad_file, one_line, Result};
use crate::panics::caught;
use crate::spelling::{Spelling, Word};
use crate::stream::Decoder;

/// A character that merges with no other, in front of a text that is not to be the beginning of one: some tokenizers
/// write a space there.
pub const OPENER: &str = "\u{2}";

pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    control: ControlTokens,
    special: HashMap<u32, String>,
    byte_spelling: Spelling, // of `bytes`
    opening: Vec<u32>,       // what `continued` writes in front of a text, and removes
}

impl Tokenizer {
    /// Ignores the file's training settings: truncation, padding, BPE dropout. `ends` are the tokens for the beginning
    /// and the end of a text.
    pub fn new(file: &[u8], path: &Path, chat_template: &str, ends: &[i64]) -> Result<Tokenizer> {
        let refuse = |reason: String| bad_file(format!("{}: not a tokenizer ({reason})", path.display()));
        // Some invalid files make the library panic.
        let broke = |panic: String| refuse(format!("its library broke: {}", one_line(&panic)));
        let mut inner = caught(|| tokenizers::Tokenizer::from_bytes(file))
            .map_err(broke)?
            .map_err(|error| refuse(one_line(&error)))?;
        inner.with_truncation(None).map_err(|error| refuse(one_line(&error)))?.with_padding(None);
        if let ModelWrapper::BPE(model) = inner.get_model() {
            let mut model = model.clone();
            model.dropout = None;
            // Its cache is of the thread: up to 10,000 words of each tokenizer, which stay after the tokenizer is gone.
            model.resize_cache(0);
            inner.with_model(ModelWrapper::BPE(model));
        }
        Tokenizer::of(Arc::new(inner), path, chat_template, ends)
    }

    /// The same tokenizer for another chat template; the vocabulary is shared.
    pub fn with_template(&self, path: &Path, chat_template: &str, ends: &[i64]) -> Result<Tokenizer> {
        Tokenizer::of(self.inner.clone(), path, chat_template, ends)
    }

    fn of(inner: Arc<tokenizers::Tokenizer>, path: &Path, chat_template: &str, ends: &[i64]) -> Result<Tokenizer> {
        let refuse = |reason: String| bad_file(format!("{}: not a tokenizer ({reason})", path.display()));
        let ends: Vec<String> = ends.iter().map(|&id| word(&inner, id)).collect();
        let control = caught(|| ControlTokens::new(&inner, chat_template, &ends))
            .map_err(|panic| refuse(format!("its library broke: {}", one_line(&panic))))?
            .map_err(|error| refuse(one_line(&error)))?;
        let added = inner.get_added_tokens_decoder().into_iter();
        let special = added.filter(|(_, token)| token.special).map(|(id, token)| (id, token.content)).collect();
        let byte_spelling = byte_spelling(&inner);
        let mut made = Tokenizer { inner, control, special, byte_spelling, opening: Vec::new() };
        made.opening = caught(|| made.opening()).unwrap_or_default(); // its library may break at a text
        Ok(made)
    }

    /// Token ids of a raw prompt, with the special tokens that the tokenizer adds around it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.ids(text, true)
    }

    /// Token ids of text rendered by a template, which already contains all special tokens. What stands behind a cut
    /// continues a text, also at the beginning.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for (number, part) in text.split(CUT).enumerate().filter(|(_, part)| !part.is_empty()) {
            ids.append(&mut if number == 0 { self.ids(part, false)? } else { self.continued(part)? });
        }
        Ok(ids)
    }

    /// Token ids of a text that continues another: without the space that some tokenizers write in front of a text.
    fn continued(&self, text: &str) -> Result<Vec<u32>> {
        if !self.opening.is_empty() {
            let ids = self.ids(&[OPENER, text].concat(), false)?;
            if let Some(ids) = ids.strip_prefix(self.opening.as_slice()) {
                return Ok(ids.to_vec());
            }
        }
        self.ids(text, false)
    }

    /// The tokens of `OPENER`; none where a text behind it has the tokens that it has alone, or cannot be told from it.
    fn opening(&self) -> Vec<u32> {
        let ids = |text: &str| self.ids(text, false).unwrap_or_default();
        let opening = ids(OPENER);
        let is_known = !opening.is_empty() && self.unknown().is_none_or(|unknown| !opening.contains(&unknown));
        let behind = ids(&[OPENER, "a"].concat());
        let differs = behind.strip_prefix(opening.as_slice()).is_some_and(|behind| behind != ids("a"));
        if is_known && differs {
            opening
        } else {
            Vec::new()
        }
    }

    /// The control tokens that occur in a text.
    pub fn control_in(&self, text: &str) -> Kept {
        self.control.in_text(text)
    }

    /// The text with a `CUT` inserted into each control token except those in `kept`.
    pub fn cut(&self, text: &str, kept: &Kept) -> String {
        self.control.cut(&self.inner, text, kept)
    }

    pub fn cut_edges(&self, text: &str) -> String {
        self.control.cut_edges(&self.inner, text)
    }

    pub fn cut_spanning(&self, text: &str, edged: &str) -> String {
        self.control.cut_spanning(&self.inner, text, edged)
    }

    pub fn cut_name(&self, name: &str, edges: bool) -> String {
        self.control.cut_name(&self.inner, name, edges)
    }

    fn ids(&self, text: &str, marks: bool) -> Result<Vec<u32>> {
        match self.inner.encode_fast(text, marks) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(bad_argument(format!("the tokenizer refuses this text ({})", one_line(&error)))),
        }
    }

    /// One more than the highest id.
    pub fn size(&self) -> usize {
        self.inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1)
    }

    /// All tokens.
    pub fn words(&self) -> impl Iterator<Item = (u32, Word)> + '_ {
        let added = self.inner.get_added_tokens_decoder();
        let unknown = self.unknown();
        let mut ids: Vec<(String, u32)> = self.inner.get_vocab(true).into_iter().collect();
        ids.sort_unstable_by_key(|&(_, id)| id);
        ids.into_iter().map(move |(word, id)| {
            let is_control = self.special.contains_key(&id) || self.control.has(id) || unknown == Some(id);
            match added.get(&id) {
                _ if is_control => (id, Word::Control(word)),
                Some(added) => (id, Word::Added(added.content.clone())),
                None => (id, Word::Plain(word)),
            }
        })
    }

    /// How words spell texts; None where they are parts of words, whose spaces the decoder adds.
    pub fn spelling(&self) -> Option<Spelling> {
        let mut spelling = Spelling::Text { space: None, bytes: false };
        let mut is_known = false;
        for decoder in decoders(&self.inner) {
            let Spelling::Text { space, bytes } = &mut spelling else { break };
            match decoder {
                DecoderWrapper::ByteLevel(_) => (spelling, is_known) = (Spelling::ByteLevel, true),
                DecoderWrapper::Metaspace(metaspace) => {
                    (*space, is_known) = (Some(metaspace.get_replacement()), true);
                }
                DecoderWrapper::Replace(replace) if replace.content == " " => (*space, is_known) = (Some('▁'), true),
                DecoderWrapper::ByteFallback(_) => (*bytes, is_known) = (true, true),
                DecoderWrapper::Fuse(_) => is_known = true,
                DecoderWrapper::Strip(_) => (),
                _ => return None,
            }
        }
        is_known.then_some(spelling)
    }

    /// The token for what is not in the vocabulary.
    fn unknown(&self) -> Option<u32> {
        let word = match self.inner.get_model() {
            ModelWrapper::BPE(model) => model.get_unk_token().clone(),
            ModelWrapper::WordPiece(model) => Some(model.unk_token.clone()),
            ModelWrapper::WordLevel(model) => Some(model.unk_token.clone()),
            ModelWrapper::Unigram(_) => Some("<unk>".to_owned()),
        };
        self.inner.token_to_id(&word?)
    }

    /// The control token of this word.
    pub fn control_id(&self, word: &str) -> Option<u32> {
        self.control.words().iter().find(|(_, known)| *known == word).map(|(&id, _)| id)
    }

    /// The word of a control token.
    pub fn control_word(&self, id: u32) -> Option<&str> {
        self.control.words().get(&id).map(String::as_str)
    }

    pub fn has(&self, id: u32) -> bool {
        self.inner.id_to_token(id).is_some()
    }

    /// The bytes that a token stands for, its name if it is special; none if there is no such token.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        match self.special(id) {
            "" => self.spelled(id, self.spelling().unwrap_or(self.byte_spelling)),
            name => name.as_bytes().to_owned(),
        }
    }

    fn spelled(&self, id: u32, spelling: Spelling) -> Vec<u8> {
        let word = self.inner.id_to_token(id).unwrap_or_default();
        if self.inner.get_added_vocabulary().get_added_tokens_decoder().contains_key(&id) {
            return word.into_bytes();
        }
        spelling.bytes(&word)
    }

    /// The token's text in the vocabulary; empty if there is none.
    pub fn word(&self, id: Option<i64>) -> String {
        id.map_or_else(String::new, |id| word(&self.inner, id))
    }
}

impl Decoder for Tokenizer {
    fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner
            .decode(ids, true)
            .map_err(|error| bad_argument(format!("the tokenizer refuses these tokens ({})", one_line(&error))))
    }

    fn bytes(&self, id: u32) -> Vec<u8> {
        self.spelled(id, self.byte_spelling)
    }

    fn special(&self, id: u32) -> &str {
        self.special.get(&id).map_or("", String::as_str)
    }
}

/// How words spell bytes, whatever the decoders are: `Tokenizer::spelling` is None where it does not know one.
fn byte_spelling(tokenizer: &tokenizers::Tokenizer) -> Spelling {
    let has = |is: fn(&DecoderWrapper) -> bool| decoders(tokenizer).iter().any(is);
    if has(|decoder| matches!(decoder, DecoderWrapper::ByteLevel(_))) {
        return Spelling::ByteLevel;
    }
    Spelling::Text { space: None, bytes: has(|decoder| matches!(decoder, DecoderWrapper::ByteFallback(_))) }
}

fn decoders(tokenizer: &tokenizers::Tokenizer) -> &[DecoderWrapper] {
    match tokenizer.get_decoder() {
        None => &[],
        Some(DecoderWrapper::Sequence(decoders)) => decoders.get_decoders(),
        Some(decoder) => std::slice::from_ref(decoder),
    }
}

fn word(tokenizer: &tokenizers::Tokenizer, id: i64) -> String {
    u32::try_from(id).ok().and_then(|id| tokenizer.id_to_token(id)).unwrap_or_default()
}
