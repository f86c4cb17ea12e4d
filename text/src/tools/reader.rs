//! Shared parsing code of the call formats that are not JSON.

use super::Tools;

/// Nesting of brackets.
pub const MOST_DEPTH: usize = 64;

pub struct Reader<'a> {
    pub rest: &'a str,
}

impl<'a> Reader<'a> {
    pub fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Whether the text continues with `word`, which is then consumed.
    pub fn eat(&mut self, word: &str) -> bool {
        self.space();
        match self.rest.strip_prefix(word) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    pub fn need(&mut self, word: &str) -> Option<()> {
        self.eat(word).then_some(())
    }

    /// The text up to one of these characters; None if there is none.
    pub fn until(&mut self, ends: &[char]) -> Option<&'a str> {
        self.space();
        let end = self.rest.find(ends)?;
        let (found, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(found.trim_end())
    }

    /// The name of a function, which `open` follows: that of a tool, or another that may be one.
    pub fn function(&mut self, tools: &Tools, open: &str) -> Option<&'a str> {
        self.space();
        let Some(name) = tools.called(self.rest, open) else { return self.name() };
        self.rest = &self.rest[name.len()..];
        Some(name)
    }

    /// A name of letters, digits and some punctuation.
    pub fn name(&mut self) -> Option<&'a str> {
        self.space();
        let is_name = |c: char| c.is_alphanumeric() || "_.-".contains(c);
        let end = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    /// Comma-separated items up to the closing bracket; the opening one is already consumed.
    pub fn items<T>(&mut self, close: &str, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut items = Vec::new();
        while !self.eat(close) {
            items.push(item(self)?);
            if !self.eat(",") {
                self.need(close)?;
                break;
            }
        }
        Some(items)
    }
}
