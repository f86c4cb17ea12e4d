//! Control tokens in the text of a message are read as text, so that a message cannot inject the template's control
//! tokens.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use aho_corasick::AhoCorasick;
use tokenizers::{AddedToken, NormalizedString, Normalizer, Tokenizer};

use crate::jinja::is_space;

/// Separates a control token in a message into two parts, so that it is read as text. This noncharacter of Unicode does
/// not occur in text. It is removed from messages, and never reaches the tokenizer.
pub const CUT: char = '\u{fdd0}';

const REPLACEMENT: &str = "\u{fffd}"; // for a character that is a control token by itself
const RARE: &str = "\u{10fffd}\u{12000}\u{a66e}"; // characters that are not in a vocabulary without byte tokens

/// Words that are not cut.
pub type Kept = BTreeSet<String>;

/// The added tokens of a tokenizer that must not come from the text of a message.
///
/// These are the special tokens; added tokens in brackets, such as `</s>` or `<tool_call>`; those that occur in the
/// chat template; and `ends`, the tokens for the beginning and end of a text. Other added tokens (words that a
/// vocabulary was extended with, runs of spaces) are text, and the tokenizer reads them as usual.
pub struct ControlTokens {
    words: BTreeMap<u32, String>,
    spelt: Vec<String>, // words of more than one character, in the order of `finder`
    finder: Option<AhoCorasick>,
    beginnings: HashSet<String>, // proper prefixes of words, as written and normalized
    ends: HashSet<String>,
}

impl ControlTokens {
    pub fn new(tokenizer: &Tokenizer, chat_template: &str, ends: &[String]) -> Result<ControlTokens, String> {
        let added = tokenizer.get_added_tokens_decoder().into_iter();
        let mut words: BTreeMap<u32, String> = added
            .filter(|(_, token)| is_control(token, chat_template, ends))
            .map(|(id, token)| (id, token.content))
            .collect();
        if let Ok(rare) = tokenizer.encode_fast(RARE, false) {
            words.retain(|id, _| !rare.get_ids().contains(id)); // words that are not in the vocabulary are text
        }
        let spelt: Vec<String> = words.values().filter(|word| word.chars().nth(1).is_some()).cloned().collect();
        let finder = (!spelt.is_empty()).then(|| AhoCorasick::new(&spelt)).transpose();
        let forms = words.values().flat_map(|word| [word.clone(), normalized(tokenizer, word)]);
        let (mut beginnings, mut ends) = (HashSet::new(), HashSet::new());
        for form in forms.collect::<BTreeSet<_>>() {
            for (at, _) in form.char_indices().skip(1) {
                beginnings.insert(form[..at].to_owned());
                ends.insert(form[at..].to_owned());
            }
        }
        let finder = finder.map_err(|error| error.to_string())?;
        Ok(ControlTokens { words, finder, spelt, beginnings, ends })
    }

    pub fn has(&self, token: u32) -> bool {
        self.words.contains_key(&token)
    }

    /// The control tokens by their ids.
    pub fn words(&self) -> &BTreeMap<u32, String> {
        &self.words
    }

    /// The control tokens that occur in a text.
    pub fn in_text(&self, text: &str) -> Kept {
        self.words.values().filter(|word| text.contains(*word)).cloned().collect()
    }

    /// The text with a `CUT` in each control token that it contains, except those in `kept`.
    pub fn cut(&self, tokenizer: &Tokenizer, text: &str, kept: &Kept) -> String {
        let text = text.replace(CUT, "");
        let mut ends = Vec::new(); // ends of the tokens' first characters
        for found in self.finder.iter().flat_map(|finder| finder.find_overlapping_iter(&text)) {
            if !kept.contains(&self.spelt[found.pattern().as_usize()]) {
                ends.push(found.start() + text[found.start()..].chars().next().map_or(0, char::len_utf8));
            }
        }
        ends.sort_unstable();
        ends.dedup();
        ends.push(text.len());
        let (mut pieces, mut first) = (Vec::new(), 0);
        for end in ends {
            pieces.push(self.cut_as_read(tokenizer, &text[first..end], kept));
            first = end;
        }
        pieces.join(&CUT.to_string())
    }

    /// A cut text with a further `CUT` after the end of a control token at its beginning, and before the start of one
    /// at its end: text that the template adds there could complete these tokens.
    pub fn cut_edges(&self, tokenizer: &Tokenizer, text: &str) -> String {
        let core = text.trim_matches(is_space);
        let forms = [core.to_owned(), normalized(tokenizer, core)];
        let longest = self.ends.iter().map(String::len).max().unwrap_or(0);
        let (mut before, mut behind) = (false, false);
        for form in &forms {
            for (at, letter) in form.char_indices() {
                let end = at + letter.len_utf8();
                before |= end <= longest && self.ends.contains(&form[..end]);
                behind |= form.len() - at <= longest && self.beginnings.contains(&form[at..]);
            }
        }
        let start = text.len() - text.trim_start_matches(is_space).len();
        let mark = |is_cut| if is_cut { CUT.to_string() } else { String::new() };
        [&text[..start], &mark(before), core, &mark(behind), &text[start + core.len()..]].concat()
    }

    /// `text` with additional cuts: those cuts of `edged`, the same text with more cuts, that are inside a control
    /// token.
    pub fn cut_spanning(&self, tokenizer: &Tokenizer, text: &str, edged: &str) -> String {
        let (mut cuts, edges, whole) = (places(text), places(edged), text.replace(CUT, ""));
        while !edges.is_subset(&cuts) {
            let (mut spanned, mut first) = (BTreeSet::new(), 0);
            for last in cuts.iter().copied().chain([whole.len()]) {
                for span in self.spans(tokenizer, &whole[first..last], &Kept::new()) {
                    let (start, stop) = (first + span.start, first + span.end);
                    spanned.extend(edges.range(start + 1..stop.max(start + 1)));
                }
                first = last;
            }
            if spanned.is_empty() {
                break;
            }
            cuts.append(&mut spanned);
        }
        let (mut parts, mut first) = (Vec::new(), 0);
        for last in cuts.into_iter().chain([whole.len()]) {
            parts.push(&whole[first..last]);
            first = last;
        }
        parts.join(&CUT.to_string())
    }

    /// The same for a role or the name of a field. Plain words are unchanged, since templates compare and write them.
    /// With `edges`, others are also cut at both ends, since templates write such names between brackets.
    pub fn cut_name(&self, tokenizer: &Tokenizer, name: &str, edges: bool) -> String {
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b" _-".contains(&byte));
        if plain {
            name.to_owned()
        } else {
            let edge = if edges { CUT.to_string() } else { String::new() };
            format!("{edge}{}{edge}", self.cut(tokenizer, name, &Kept::new()))
        }
    }

    /// Cuts control tokens that the tokenizer still finds: a normalizer may produce `</s>` from other characters.
    fn cut_as_read(&self, tokenizer: &Tokenizer, text: &str, kept: &Kept) -> String {
        let (mut done, mut left) = (Vec::new(), vec![text]);
        while let Some(piece) = left.pop() {
            let (mut parts, mut end) = (Vec::new(), 0);
            for span in self.spans(tokenizer, piece, kept) {
                if end < span.start {
                    parts.push(&piece[end..span.start]);
                }
                let letters = &piece[end.max(span.start)..end.max(span.end)];
                for (at, letter) in letters.char_indices() {
                    let letter = &letters[at..at + letter.len_utf8()];
                    let whole = self.spans(tokenizer, letter, kept).is_empty();
                    parts.push(if whole { letter } else { REPLACEMENT });
                }
                end = end.max(span.end);
            }
            if parts.is_empty() {
                done.push(piece);
                continue;
            }
            if end < piece.len() {
                parts.push(&piece[end..]);
            }
            left.extend(parts.into_iter().rev());
        }
        done.join(&CUT.to_string())
    }

    /// The byte ranges of control tokens that the tokenizer finds in a text; none if it rejects the text, which is
    /// reported when the text is encoded for the model.
    fn spans(&self, tokenizer: &Tokenizer, text: &str, kept: &Kept) -> Vec<Range<usize>> {
        if text.is_empty() || text == REPLACEMENT {
            return Vec::new();
        }
        let Ok(encoding) = tokenizer.encode(text, false) else { return Vec::new() };
        let found = encoding.get_ids().iter().zip(encoding.get_offsets());
        let control = found.filter(|(id, _)| self.words.get(id).is_some_and(|word| !kept.contains(word)));
        control
            .map(|(_, &(start, end))| start..end)
            .filter(|span| text.get(span.clone()).is_some_and(|word| !word.is_empty()))
            .collect()
    }
}

/// The text after the tokenizer's normalizer, without the space that it may prepend.
fn normalized(tokenizer: &Tokenizer, text: &str) -> String {
    let Some(normalizer) = tokenizer.get_normalizer() else { return text.to_owned() };
    let mut normal = NormalizedString::from(text);
    match normalizer.normalize(&mut normal) {
        Ok(()) => normal.get().strip_prefix('▁').unwrap_or(normal.get()).to_owned(),
        Err(_) => text.to_owned(),
    }
}

/// The characters of a text without its cuts, which are for the tokenizer alone.
pub fn uncut(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().filter(|c| *c != CUT)
}

/// The characters of a text, each with the cuts before it, and the last also with those behind it.
pub fn characters(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let c = uncut(rest).next()?;
        let end = rest.find(c)? + c.len_utf8();
        let is_last = uncut(&rest[end..]).next().is_none();
        let (character, behind) = rest.split_at(if is_last { rest.len() } else { end });
        rest = behind;
        Some(character)
    })
}

/// Takes parts of a text. A cut in what a part leaves out stays at that side of the part, since what a template writes
/// there may complete a control token.
pub struct Parts<'a> {
    text: &'a str,
    first: usize, // where the first cut begins, and the last one ends
    last: usize,
}

impl<'a> Parts<'a> {
    pub fn of(text: &'a str) -> Parts<'a> {
        let first = text.find(CUT).unwrap_or(text.len());
        Parts { text, first, last: text.rfind(CUT).map_or(0, |at| at + CUT.len_utf8()) }
    }

    /// The part in a range of bytes; an empty one has no cuts, as a template may ask whether it is empty.
    pub fn part(&self, range: Range<usize>) -> String {
        let part = &self.text[range.clone()];
        if uncut(part).next().is_none() {
            return String::new();
        }
        let cut = |is_cut| if is_cut { CUT.to_string() } else { String::new() };
        [cut(self.first < range.start).as_str(), part, cut(range.end < self.last).as_str()].concat()
    }
}

/// The positions of a text's cuts in the text without cuts.
fn places(text: &str) -> BTreeSet<usize> {
    text.match_indices(CUT).enumerate().map(|(earlier, (place, _))| place - earlier * CUT.len_utf8()).collect()
}

fn is_control(token: &AddedToken, chat_template: &str, ends: &[String]) -> bool {
    let word = token.content.as_str();
    if token.special || ends.iter().any(|end| end == word) {
        return true;
    }
    let in_brackets = word.strip_prefix('▁').unwrap_or(word).starts_with(['<', '[', '{', '|'])
        && word.ends_with(['>', ']', '}', '|']);
    let long = word.chars().nth(1).is_some();
    long && !word.trim().is_empty() && (in_brackets || chat_template.contains(word))
}
