//! Text from a stream of tokens, without incomplete characters and without parts of stop strings.

use crate::error::Result;

const BROKEN: char = '\u{fffd}'; // the decoder's output for bytes that are not (yet) a character

const MOST_BEFORE: usize = 32; // tokens of the prompt that affect how the first new token is decoded

const MOST_BYTES: usize = 4; // of a character

/// The operations on tokens that a stream needs.
pub trait Decoder {
    /// The text without special tokens.
    fn decode(&self, ids: &[u32]) -> Result<String>;
    /// The bytes of a token that is not special. Spaces may be spelled as the tokenizer's space marker.
    fn bytes(&self, id: u32) -> Vec<u8>;
    /// The text of a special token; empty for any other.
    fn special(&self, id: u32) -> &str;
}

/// Decodes token by token, and holds back the bytes of an incomplete character.
#[derive(Default)]
struct Detokenized {
    window: Vec<u32>,
    clean: usize,  // tokens of the window before the last clean boundary
    shown: usize,  // characters of the window's text that were returned
    tail: Vec<u8>, // the incomplete character at the end of the window
}

impl Detokenized {
    fn push(&mut self, token: u32, decoder: &impl Decoder) -> Result<String> {
        if !decoder.special(token).is_empty() {
            return Ok(String::new());
        }
        let mut new = String::new();
        let is_begun = !self.tail.is_empty();
        let mut bytes = [std::mem::take(&mut self.tail), decoder.bytes(token)].concat();
        if is_begun && starts_invalid(&bytes) {
            new = self.settle(&decoder.decode(&self.window)?, decoder)?; // the character never completes
        }
        self.tail = bytes.split_off(bytes.len() - incomplete(&bytes));
        self.window.push(token);
        let text = decoder.decode(&self.window)?;
        new += &if self.tail.is_empty() {
            self.settle(&text, decoder)?
        } else {
            self.new_of(text.trim_end_matches(BROKEN))
        };
        Ok(new)
    }

    /// What is new in the window's text, all of which is final.
    fn settle(&mut self, text: &str, decoder: &impl Decoder) -> Result<String> {
        let new = self.new_of(text);
        self.window.drain(..self.clean);
        self.clean = self.window.len();
        self.shown = decoder.decode(&self.window)?.chars().count();
        Ok(new)
    }

    fn new_of(&mut self, ready: &str) -> String {
        let new = ready.chars().skip(self.shown).collect();
        self.shown = self.shown.max(ready.chars().count());
        new
    }
}

/// Whether no valid character can begin with these bytes.
fn starts_invalid(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_some())
}

/// The number of bytes at the end that are the beginning of a character.
fn incomplete(bytes: &[u8]) -> usize {
    let is_begun = |&count: &usize| {
        let found = std::str::from_utf8(&bytes[bytes.len() - count..]);
        found.is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..MOST_BYTES.min(bytes.len() + 1)).find(is_begun).unwrap_or(0)
}

/// The text to show, up to the first stop string. A stop string may contain whole special tokens, which are not shown
/// themselves.
pub struct Stream {
    detokenized: Detokenized,
    stops: Vec<String>,
    held: Vec<Segment>, // with stop strings, of a character or a special token each
    stopped: bool,
    ids: Vec<u32>,
    text: String,
}

/// Text, and whether it is shown: a special token is not.
pub type Segment = (String, bool);

/// What is shown of segments.
pub fn shown(segments: &[Segment]) -> String {
    segments.iter().filter(|(_, shown)| *shown).map(|(text, _)| text.as_str()).collect()
}

impl Stream {
    /// `before`: the tokens of a prompt that the text continues.
    pub fn new(stops: Vec<String>, before: &[u32], decoder: &impl Decoder) -> Result<Stream> {
        let mut detokenized = Detokenized::default();
        for &token in &before[before.len().saturating_sub(MOST_BEFORE)..] {
            detokenized.push(token, decoder)?;
        }
        let (held, ids, text) = Default::default();
        Ok(Stream { detokenized, stops, held, stopped: false, ids, text })
    }

    /// Text that may be shown now. Afterwards `stopped` says whether a stop string is complete.
    pub fn push(&mut self, token: u32, decoder: &impl Decoder) -> Result<Vec<Segment>> {
        if self.stopped {
            return Ok(Vec::new());
        }
        self.ids.push(token);
        let new = self.detokenized.push(token, decoder)?;
        match decoder.special(token) {
            "" if self.stops.is_empty() => self.held.push((new, true)),
            "" => self.held.extend(new.chars().map(|c| (c.to_string(), true))),
            word => self.held.push((word.to_owned(), false)),
        }
        if self.stops.is_empty() {
            return Ok(self.release(1));
        }
        // Stop strings are looked for in what is shown, and in the same with special tokens.
        let all: Vec<&str> = self.held.iter().map(|(part, _)| part.as_str()).collect();
        let places: Vec<usize> = (0..all.len()).filter(|&place| self.held[place].1).collect();
        let shown: Vec<&str> = places.iter().map(|&place| all[place]).collect();
        let place_of = |count: usize| places.get(count).copied().unwrap_or(all.len());
        let end = match [self.find(&all), self.find(&shown).map(place_of)].into_iter().flatten().min() {
            Some(place) => {
                self.stopped = true;
                self.held.truncate(place);
                place
            }
            None => self.hold_from(&all).min(place_of(self.hold_from(&shown))),
        };
        Ok(self.release(end))
    }

    /// The end: what was held back as the possible beginning of a stop string.
    pub fn flush(&mut self) -> Vec<Segment> {
        self.release(self.held.len())
    }

    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// All text that was shown, and its tokens.
    pub fn into_answer(self) -> (String, Vec<u32>) {
        (self.text, self.ids)
    }

    fn release(&mut self, end: usize) -> Vec<Segment> {
        let released: Vec<Segment> = self.held.drain(..end).collect();
        self.text += &shown(&released);
        released
    }

    /// The start of the first stop string.
    fn find(&self, parts: &[&str]) -> Option<usize> {
        (0..parts.len()).find(|&start| self.stops.iter().any(|stop| after(stop, &parts[start..]) == Some(true)))
    }

    /// The start of the longest suffix that could still become a stop string.
    fn hold_from(&self, parts: &[&str]) -> usize {
        let open = |&start: &usize| self.stops.iter().any(|stop| after(stop, &parts[start..]) == Some(false));
        (0..parts.len()).find(open).unwrap_or(parts.len())
    }
}

/// Whether a text that begins with `parts` begins with a whole stop string (true), or may after more text (false).
fn after(stop: &str, parts: &[&str]) -> Option<bool> {
    let mut left = stop;
    for part in parts {
        left = left.strip_prefix(part)?;
        if left.is_empty() {
            return Some(true);
        }
    }
    Some(false)
}
