//! Hugging Face's tokenizers, the library that Python uses, so that the ids are the same by construction.

use std::path::Path;

use crate::error::{bad_argument, bad_file, one_line, Result};

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    pub fn new(file: &[u8], path: &Path) -> Result<Tokenizer> {
        match tokenizers::Tokenizer::from_bytes(file) {
            Ok(inner) => Ok(Tokenizer { inner }),
            Err(error) => Err(bad_file(format!("{}: not a tokenizer ({})", path.display(), one_line(&error)))),
        }
    }

    /// `marks`: with those that the tokenizer itself puts around a prompt.
    pub fn encode(&self, text: &str, marks: bool) -> Result<Vec<u32>> {
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
