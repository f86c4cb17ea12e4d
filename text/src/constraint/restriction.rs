//! sf_constraint as a trait, of grammars and of tool calls. core/streamfuse_core.h describes the functions.

use crate::error::Result;

pub trait Restriction {
    fn accept(&mut self, token: i64) -> Result<()>;
    /// Drops the last `n` accepted tokens.
    fn rollback(&mut self, n: i32) -> Result<()>;
    /// MAY_END, MUST_END, UNRESTRICTED and MAY_GROW, or'd.
    fn state(&mut self) -> Result<i32>;
    /// Whether each of `tokens` may follow, 1 or 0, into `allowed` of the same length.
    fn allows(&mut self, tokens: &[i64], allowed: &mut [u8]) -> Result<()>;
    /// The length of `words` in `mask`.
    fn mask_words(&self) -> usize;
    /// A bit for each token of the vocabulary: whether it may follow.
    fn mask(&mut self, words: &mut [u32]) -> Result<()>;
    /// The first `room` tokens of the only text that can follow.
    fn forced(&mut self, room: usize) -> Result<&[u32]>;
    /// A hash of the few bytes that may come next; 0 if they are many.
    fn choice_key(&mut self) -> Result<u64>;
}
