//! Reports how much of a long call is done, and ends it on request.

use crate::error::{cancelled, Result};

pub struct Watch<'a> {
    /// Called with the bytes done and their total; false ends the call.
    pub step: &'a dyn Fn(u64, u64) -> bool,
    pub total: u64,
    pub done: u64,
}

impl Watch<'_> {
    pub fn add(&mut self, bytes: usize) -> Result<()> {
        self.done += bytes as u64;
        if (self.step)(self.done, self.total) {
            Ok(())
        } else {
            Err(cancelled("loading was cancelled"))
        }
    }
}
