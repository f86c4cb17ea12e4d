//! sf_constraint as a trait: grammars, and what a model with tools may write.

use super::Constraint;
use crate::error::Result;

pub trait Restriction {
    fn accept(&mut self, token: i64) -> Result<()>;
    fn rollback(&mut self, n: i32) -> Result<()>;
    fn state(&mut self) -> Result<i32>;
    fn allows(&mut self, tokens: &[i64], allowed: &mut [u8]) -> Result<()>;
    /// The words of a mask: (vocabulary + 31) / 32.
    fn mask_words(&self) -> usize;
    fn mask(&mut self, words: &mut [u32]) -> Result<()>;
    fn forced(&mut self, room: usize) -> Result<&[u32]>;
}

impl Restriction for Constraint {
    fn accept(&mut self, token: i64) -> Result<()> {
        Constraint::accept(self, token)
    }

    fn rollback(&mut self, n: i32) -> Result<()> {
        Constraint::rollback(self, n)
    }

    fn state(&mut self) -> Result<i32> {
        Constraint::state(self)
    }

    fn allows(&mut self, tokens: &[i64], allowed: &mut [u8]) -> Result<()> {
        Constraint::allows(self, tokens, allowed)
    }

    fn mask_words(&self) -> usize {
        Constraint::mask_words(self)
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        Constraint::mask(self, words)
    }

    fn forced(&mut self, room: usize) -> Result<&[u32]> {
        Constraint::forced(self, room)
    }
}
