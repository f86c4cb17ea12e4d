//! The constraint of an answer that fits a grammar or is a call.

use super::constraint::ToolConstraint;
use crate::constraint::{Constraint, Restriction, MAY_END, MUST_END};
use crate::error::{bad_argument, Result};

/// The tokens so far fit the answer's grammar, or the beginning of a call, or both. Thoughts come before either.
pub struct AnswerOrCall {
    answer: Constraint,
    call: ToolConstraint,
    tokens: Vec<i64>,
    thoughts: Option<usize>, // their number of tokens, once they have ended
    fits: [usize; 2],        // tokens that fit an answer and a call, from the first one on
}

impl AnswerOrCall {
    /// `call` is of a call that is required.
    pub fn new(answer: Constraint, call: ToolConstraint) -> AnswerOrCall {
        let thoughts = (!call.is_thinking()).then_some(0);
        AnswerOrCall { answer, call, tokens: Vec::new(), thoughts, fits: [0, 0] }
    }

    /// Those of the two that all tokens fit, which may be asked about the next.
    fn open(&mut self) -> Vec<&mut dyn Restriction> {
        let count = self.tokens.len();
        let mut open: Vec<&mut dyn Restriction> = Vec::new();
        if self.thoughts.is_some() && self.fits[0] == count {
            open.push(&mut self.answer);
        }
        if self.fits[1] == count {
            open.push(&mut self.call);
        }
        open
    }
}

/// Whether a token may follow.
fn allows(one: &mut dyn Restriction, token: i64) -> Result<bool> {
    let mut allowed = [0];
    one.allows(&[token], &mut allowed)?;
    Ok(allowed != [0])
}

impl Restriction for AnswerOrCall {
    fn accept(&mut self, token: i64) -> Result<()> {
        let count = self.tokens.len();
        let fits_answer = self.thoughts.is_some() && self.fits[0] == count && allows(&mut self.answer, token)?;
        let fits_call = self.fits[1] == count && allows(&mut self.call, token)?;
        if !fits_answer && !fits_call {
            return Err(bad_argument(format!("token {token} is not allowed here")));
        }
        if fits_answer {
            self.answer.accept(token)?;
        }
        if fits_call {
            self.call.accept(token)?;
        }
        self.tokens.push(token);
        if self.thoughts.is_none() {
            self.thoughts = (!self.call.is_thinking()).then_some(count + 1);
            self.fits = [count + 1; 2];
        } else {
            self.fits[0] += usize::from(fits_answer);
            self.fits[1] += usize::from(fits_call);
        }
        Ok(())
    }

    fn rollback(&mut self, n: i32) -> Result<()> {
        let left = usize::try_from(n).ok().and_then(|n| self.tokens.len().checked_sub(n));
        let left = left.ok_or_else(|| bad_argument(format!("{n} tokens cannot be dropped")))?;
        let [answer, call] = self.fits;
        let thoughts = self.thoughts.unwrap_or(answer);
        self.answer.rollback(answer.saturating_sub(left.max(thoughts)) as i32)?;
        self.call.rollback(call.saturating_sub(left) as i32)?;
        self.tokens.truncate(left);
        self.fits = [answer.min(left), call.min(left)];
        self.thoughts = self.thoughts.filter(|&thoughts| thoughts <= left);
        Ok(())
    }

    fn state(&mut self) -> Result<i32> {
        let states = self.open().into_iter().map(|one| one.state()).collect::<Result<Vec<i32>>>()?;
        let all = states.iter().fold(-1, |all, state| all & state);
        let any = states.iter().fold(0, |any, state| any | state);
        let must_end = all & MUST_END;
        Ok(if states.is_empty() { MAY_END | MUST_END } else { (any & !MUST_END) | must_end })
    }

    fn allows(&mut self, tokens: &[i64], allowed: &mut [u8]) -> Result<()> {
        allowed.fill(0);
        let mut found = vec![0; allowed.len()];
        for one in self.open() {
            one.allows(tokens, &mut found)?;
            allowed.iter_mut().zip(&found).for_each(|(allowed, found)| *allowed |= found);
        }
        Ok(())
    }

    fn mask_words(&self) -> usize {
        self.call.mask_words()
    }

    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        words.fill(0);
        let mut found = vec![0; words.len()];
        for one in self.open() {
            one.mask(&mut found)?;
            words.iter_mut().zip(&found).for_each(|(word, found)| *word |= found);
        }
        Ok(())
    }

    fn forced(&mut self, room: usize) -> Result<&[u32]> {
        let count = self.tokens.len();
        match (self.thoughts.is_some() && self.fits[0] == count, self.fits[1] == count) {
            (true, false) => self.answer.forced(room),
            (false, true) => self.call.forced(room),
            _ => Ok(&[]),
        }
    }

    fn choice_key(&mut self) -> Result<u64> {
        match self.open().as_mut_slice() {
            [one] => one.choice_key(),
            _ => Ok(0),
        }
    }
}
