//! What happens to a conversation that outgrows the model's context.

use crate::error::{context_full, Failure};
use crate::message::Message;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Policy {
    /// The question is refused.
    #[default]
    Fail,
    /// The oldest turns are dropped.
    DropOldest,
}

/// The context of a model, and the longest answer to the next question, both in tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limit {
    pub capacity: usize, // 0: not known, so nothing is refused or dropped
    pub max_new_tokens: usize,
    pub policy: Policy,
}

/// Turns that were dropped for a question, and how much shorter that makes its context.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Dropped {
    pub turns: usize,
    pub tokens: usize,
}

impl Limit {
    /// Whether a context of `n` tokens can be used as it is. It leaves room for at least one token of the answer.
    pub fn holds(&self, n: usize) -> bool {
        let room = if self.policy == Policy::DropOldest { self.room().max(1) } else { 1 };
        self.capacity == 0 || n + room <= self.capacity
    }

    /// Tokens that dropping leaves for an answer: the longest one, or a quarter of the context if that is as long as
    /// the context itself.
    fn room(&self) -> usize {
        if self.max_new_tokens < self.capacity {
            self.max_new_tokens
        } else {
            self.capacity / 4
        }
    }

    pub fn refusal(&self, n: usize, can_drop: bool) -> Failure {
        let capacity = self.capacity;
        context_full(if can_drop {
            format!(
                "the conversation has {n} tokens and needs room for an answer, but this bundle's context holds \
                 {capacity}; reset the chat, or let it drop its oldest turns with the context policy drop_oldest"
            )
        } else {
            format!(
                "the question has {n} tokens together with the system message and tools and needs room for an answer, \
                 but this bundle's context holds {capacity}; shorten it, or export the bundle with a larger \
                 --max-context-len"
            )
        })
    }
}

/// The conversation as turns: a question with all that follows it belongs together, and so does what precedes the first
/// question. The system message at the beginning is no turn.
pub struct Turns<'a> {
    messages: &'a [Message],
    starts: Vec<usize>, // of the turns
}

impl Turns<'_> {
    pub fn new(messages: &[Message]) -> Turns<'_> {
        let is_system = |message: &&Message| ["system", "developer"].contains(&message.role());
        let first = messages.iter().take_while(is_system).count();
        let asks = |at: &usize| *at == first || messages[*at].role() == "user";
        Turns { messages, starts: (first..messages.len()).filter(asks).collect() }
    }

    /// How many can be dropped: all but the last.
    pub fn droppable(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// The messages without the `count` oldest turns.
    pub fn without(&self, count: usize) -> Vec<Message> {
        let (first, kept) = (self.starts[0], self.starts[count]);
        [&self.messages[..first], &self.messages[kept..]].concat()
    }
}
