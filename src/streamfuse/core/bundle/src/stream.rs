//! Text from a stream of tokens: never a broken character, never the beginning of a stop string (runtime/text.py).

use crate::error::Result;

const BROKEN: char = '\u{fffd}'; // what a decoder writes for bytes that are not (yet) a character

/// Decodes token by token, and holds back the bytes of a character that is not complete.
#[derive(Default)]
struct Detokenized {
    window: Vec<u32>,
    clean: usize, // tokens of the window before the last clean boundary
    shown: usize, // characters of the window's text that were returned
}

impl Detokenized {
    fn push(&mut self, token: u32, decode: impl Fn(&[u32]) -> Result<String>) -> Result<String> {
        self.window.push(token);
        let text = decode(&self.window)?;
        let ready = text.trim_end_matches(BROKEN);
        let new = ready.chars().skip(self.shown).collect();
        self.shown = self.shown.max(ready.chars().count());
        if ready.len() == text.len() {
            self.window.drain(..self.clean);
            self.clean = self.window.len();
            self.shown = decode(&self.window)?.chars().count();
        }
        Ok(new)
    }
}

/// The text to show, cut before the first stop string.
pub struct Stream {
    detokenized: Detokenized,
    stops: Vec<String>,
    held: String,
    stopped: bool,
    ids: Vec<u32>,
    text: String,
}

impl Stream {
    pub fn new(stops: Vec<String>) -> Stream {
        let (detokenized, held, text) = Default::default();
        Stream { detokenized, stops, held, stopped: false, ids: Vec::new(), text }
    }

    /// Text that may be shown now. Afterwards `stopped` says whether a stop string is complete.
    pub fn push(&mut self, token: u32, decode: impl Fn(&[u32]) -> Result<String>) -> Result<String> {
        if self.stopped {
            return Ok(String::new());
        }
        let new = self.detokenized.push(token, decode)?;
        self.ids.push(token);
        self.held += &new;
        let end = match self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            Some(start) => {
                self.stopped = true;
                self.held.truncate(start);
                start
            }
            None => self.hold_from(),
        };
        Ok(self.release(end))
    }

    /// The end: what was held back as the possible beginning of a stop string.
    pub fn flush(&mut self) -> String {
        self.release(self.held.len())
    }

    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// All that was shown, and the tokens behind it.
    pub fn into_answer(self) -> (String, Vec<u32>) {
        (self.text, self.ids)
    }

    fn release(&mut self, end: usize) -> String {
        let text: String = self.held.drain(..end).collect();
        self.text += &text;
        text
    }

    /// Where the longest tail begins that could still become a stop string.
    fn hold_from(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let tails = self.held.char_indices().map(|(start, _)| start).filter(|start| self.held.len() - start < longest);
        let mut held = tails.filter(|&start| self.stops.iter().any(|stop| stop.starts_with(&self.held[start..])));
        held.next().unwrap_or(self.held.len())
    }
}
