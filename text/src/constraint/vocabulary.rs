//! The bytes of every token, as a prefix tree: what a grammar is matched against.

use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, INVALID_TOKEN};
use llguidance::ParserFactory;

use crate::error::{bad_argument, one_line, Result};
use crate::spelling::Word;
use crate::tokenizer::Tokenizer;

const LONGEST_TOKEN: usize = 1000; // bytes; the tree is at most 1,024 deep
const MOST_BYTES: usize = 1 << 22; // of all tokens; the tree has fewer nodes
const MOST_TOKENS: usize = 1 << 22;

/// Parts of the vocabulary that are allowed as a whole in most texts of JSON: tokens within a string, short ones and
/// all.
const SLICES: [&str; 2] = [r#"[^"\\\x00-\x1F\x7F]{1,10}"#, r#"[^"\\\x00-\x1F\x7F]+"#];

pub struct Vocabulary {
    pub factory: ParserFactory,
    /// Number of logits of the model.
    pub size: usize,
    ends: Vec<u32>,
    controls: Vec<u32>,
}

impl Vocabulary {
    /// `size` is that of the model, which may have fewer or more tokens than the tokenizer. `ends` are the
    /// end-of-sequence tokens.
    pub fn new(tokenizer: &Tokenizer, size: usize, ends: &[i64]) -> Result<Vocabulary> {
        for (of, size) in [("model", size), ("tokenizer", tokenizer.size())] {
            if size > MOST_TOKENS {
                return Err(bad_argument(format!(
                    "the vocabulary of the {of} has {size} tokens; constraints support at most {MOST_TOKENS}"
                )));
            }
        }
        let mut words = words_of(tokenizer)?;
        words.resize(size, Vec::new());
        if words.iter().map(Vec::len).sum::<usize>() >= MOST_BYTES {
            return Err(bad_argument("the vocabulary is too large for constraints: its tokens have 4 MiB or more"));
        }
        let ends: Vec<u32> = ends.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
        for &end in &ends {
            if let Some(word) = words.get_mut(end as usize) {
                word.clear();
            }
        }
        let is_control = |id: &u32| words[*id as usize].first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER);
        let controls = (0..words.len() as u32).filter(is_control).collect();
        // Without an end token: a grammar says where a text may end, and the core does the rest.
        let trie = TokTrie::from(&TokRxInfo::new(size as u32, INVALID_TOKEN), &words);
        // Not canonical: a mask then has every token that fits, and not only the first of a text that is forced.
        let env: TokEnv = std::sync::Arc::new(ApproximateTokEnv::new(trie));
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &SLICES.map(str::to_owned))
            .map_err(|error| bad_argument(format!("the vocabulary cannot be constrained ({})", one_line(&error))))?;
        Ok(Vocabulary { factory, size, ends, controls })
    }

    pub fn trie(&self) -> &TokTrie {
        self.factory.tok_env().tok_trie()
    }

    /// Whether a grammar may ask for this token: it exists and is no end token.
    pub fn has(&self, token: u32) -> bool {
        (token as usize) < self.size && !self.ends.contains(&token)
    }

    /// The tokens that only a grammar reaches that names them.
    pub fn controls(&self) -> &[u32] {
        &self.controls
    }

    /// The 32-bit words of a mask, which has a bit for each token.
    pub fn mask_words(&self) -> usize {
        self.size.div_ceil(32)
    }

    pub fn ends(&self) -> &[u32] {
        &self.ends
    }
}

/// The bytes of each token; none for one that is no text. A control token has the mark 0xff in front, which no text
/// contains: only a grammar that names it reaches it.
fn words_of(tokenizer: &Tokenizer) -> Result<Vec<Vec<u8>>> {
    let spelling = tokenizer.spelling().ok_or_else(|| {
        bad_argument("constraints need a tokenizer whose tokens are texts: byte-level, or with spaces as marks (▁)")
    })?;
    let mut words = Vec::new();
    for (id, word) in tokenizer.words() {
        let mut bytes = match word {
            Word::Control(name) if name.starts_with('<') && name.ends_with('>') => {
                [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
            }
            Word::Control(_) => Vec::new(),
            Word::Added(text) => text.into_bytes(),
            Word::Plain(word) => spelling.bytes(&word),
        };
        if bytes.len() > LONGEST_TOKEN {
            bytes.clear();
        }
        let id = id as usize;
        if words.len() <= id {
            words.resize(id + 1, Vec::new());
        }
        words[id] = bytes;
    }
    Ok(words)
}
