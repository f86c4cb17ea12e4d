//! Jinja's lexer with trim_blocks and lstrip_blocks, as in transformers.

use std::sync::Arc;

use super::ast::Literal;
use super::python::is_space;
use super::{fault, Result};

#[derive(Clone)]
pub enum Kind {
    Data(Arc<str>),
    PrintBegin,
    PrintEnd,
    TagBegin,
    TagEnd,
    Name(Arc<str>),
    Literal(Literal),
    Operator(&'static str),
    End,
}

#[derive(Clone)]
pub struct Token {
    pub kind: Kind,
    pub line: usize,
}

const OPERATORS: [&str; 26] = [
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",", ";",
];

pub fn tokens(source: &str) -> Result<Vec<Token>> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { source, at: 0, line: 1, counted: 0, tokens: Vec::new(), line_starts: true };
    lexer.root()?;
    lexer.push(Kind::End);
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
    counted: usize, // position up to which lines are counted
    tokens: Vec<Token>,
    line_starts: bool, // whether the last token ends a line
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn push(&mut self, kind: Kind) {
        let line = self.line_here();
        self.tokens.push(Token { kind, line });
    }

    fn line_here(&mut self) -> usize {
        if self.at > self.counted {
            self.line += self.source[self.counted..self.at].matches('\n').count();
            self.counted = self.at;
        }
        self.line
    }

    fn wrong<T>(&mut self, what: &str) -> Result<T> {
        let line = self.line_here();
        fault(format!("{what} (line {line})"))
    }

    fn step(&mut self, length: usize) {
        self.at += length;
        self.line_starts = self.source[..self.at].ends_with('\n');
    }

    fn spaces(text: &str) -> usize {
        text.len() - text.trim_start_matches(is_space).len()
    }

    fn data(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Kind::Data(text.into()));
        }
    }

    fn root(&mut self) -> Result<()> {
        loop {
            let rest = self.rest();
            let Some(begin) = (0..rest.len().saturating_sub(1))
                .find(|&i| rest.as_bytes()[i] == b'{' && matches!(rest.as_bytes()[i + 1], b'{' | b'%' | b'#'))
            else {
                self.data(rest);
                self.at = self.source.len();
                return Ok(());
            };
            let (text, kind) = (&rest[..begin], rest.as_bytes()[begin + 1]);
            let sign = rest[begin + 2..].chars().next().filter(|sign| matches!(sign, '-' | '+'));
            let inside = &rest[begin + 2 + usize::from(sign.is_some())..];
            let raw = if kind == b'%' { raw_begin(inside) } else { None };
            self.data(left_of(text, sign, kind != b'{', self.line_starts));
            self.step(begin + 2 + usize::from(sign.is_some()));
            match (kind, raw) {
                (_, Some(length)) => {
                    self.step(length);
                    self.raw()?;
                }
                (b'#', _) => self.comment()?,
                (b'{', _) => {
                    self.push(Kind::PrintBegin);
                    self.code("}}", Kind::PrintEnd)?;
                }
                _ => {
                    self.push(Kind::TagBegin);
                    self.code("%}", Kind::TagEnd)?;
                }
            }
        }
    }

    fn comment(&mut self) -> Result<()> {
        let rest = self.rest();
        let Some(end) = rest.find("#}") else {
            return self.wrong("a comment has no end");
        };
        let after = &rest[end + 2..];
        let more = match rest[..end].chars().next_back() {
            Some('+') => 0,
            Some('-') => Self::spaces(after),
            _ => usize::from(after.starts_with('\n')),
        };
        self.step(end + 2 + more);
        Ok(())
    }

    fn raw(&mut self) -> Result<()> {
        let rest = self.rest();
        let mut from = 0;
        while let Some(found) = rest[from..].find("{%") {
            let begin = from + found;
            let sign = rest[begin + 2..].chars().next().filter(|sign| matches!(sign, '-' | '+'));
            let tag = begin + 2 + usize::from(sign.is_some());
            if let Some(length) = raw_end(&rest[tag..]) {
                self.data(left_of(&rest[..begin], sign, true, self.line_starts));
                self.step(tag + length);
                return Ok(());
            }
            from = begin + 2;
        }
        self.wrong("a raw block has no end")
    }

    /// The tokens inside a tag or an expression.
    fn code(&mut self, end: &str, kind: Kind) -> Result<()> {
        let is_tag = end == "%}";
        let mut open = Vec::new();
        loop {
            let rest = self.rest();
            let Some(first) = rest.chars().next() else {
                return Ok(()); // the parser reports the unexpected end of the template
            };
            if open.is_empty() {
                let sign = usize::from(rest.starts_with('-') || (is_tag && rest.starts_with('+')));
                if let Some(after) = rest[sign..].strip_prefix(end) {
                    let more = match first {
                        '-' => Self::spaces(after),
                        '+' => 0,
                        _ => usize::from(is_tag && after.starts_with('\n')),
                    };
                    self.push(kind);
                    self.step(sign + 2 + more);
                    return Ok(());
                }
            }
            if is_space(first) {
                self.step(Self::spaces(rest));
            } else if first.is_ascii_digit() {
                self.number()?;
            } else if first == '_' || first.is_alphanumeric() {
                let length = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
                if first.is_numeric() {
                    return self.wrong("a character that no name has");
                }
                self.push(Kind::Name(rest[..length].into()));
                self.step(length);
            } else if first == '\'' || first == '"' {
                self.text(first)?;
            } else if let Some(&operator) = OPERATORS.iter().find(|&&operator| rest.starts_with(operator)) {
                match operator {
                    "(" => open.push(")"),
                    "[" => open.push("]"),
                    "{" => open.push("}"),
                    ")" | "]" | "}" if open.pop() != Some(operator) => {
                        return self.wrong(&format!("unexpected '{operator}'"))
                    }
                    _ => (),
                }
                self.push(Kind::Operator(operator));
                self.step(operator.len());
            } else {
                return self.wrong(&format!("unexpected {first:?}"));
            }
        }
    }

    fn number(&mut self) -> Result<()> {
        let rest = self.rest();
        let digits = |from: usize| {
            let length = rest[from..].find(|c: char| c != '_' && !c.is_ascii_digit()).unwrap_or(rest.len() - from);
            let found = &rest[from..from + length];
            let fine =
                found.starts_with(|c: char| c.is_ascii_digit()) && !found.ends_with('_') && !found.contains("__");
            if fine {
                from + length
            } else {
                from
            }
        };
        let (whole, after_dot) = (digits(0), self.source[..self.at].ends_with('.'));
        let mut end = whole;
        if !after_dot && rest[end..].starts_with('.') && digits(end + 1) > end + 1 {
            end = digits(end + 1);
        }
        if !after_dot && rest[end..].starts_with(['e', 'E']) {
            let exponent = end + 1 + usize::from(rest[end + 1..].starts_with(['+', '-']));
            if digits(exponent) > exponent {
                end = digits(exponent);
            }
        }
        let text = rest[..end].replace('_', "");
        let zeros = text.len() > 1 && text.starts_with('0') && text.contains(|c| c != '0');
        let other_base = text == "0" && rest[1..].starts_with(['x', 'X', 'o', 'O', 'b', 'B']);
        let literal = if end > whole {
            text.parse().ok().map(Literal::Float)
        } else if zeros || other_base || end == 0 {
            None
        } else {
            text.parse().ok().map(Literal::Int)
        };
        match literal {
            Some(literal) => self.push(Kind::Literal(literal)),
            None => return self.wrong("a number of a form or size that is not supported"),
        }
        self.step(end);
        Ok(())
    }

    fn text(&mut self, quote: char) -> Result<()> {
        let rest = self.rest();
        let (mut text, mut characters) = (String::new(), rest.char_indices().skip(1));
        while let Some((i, c)) = characters.next() {
            if c == quote {
                self.push(Kind::Literal(Literal::Text(text.into())));
                self.step(i + 1);
                return Ok(());
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let Some((at, escaped)) = characters.next() else { break };
            let digits = match escaped {
                'x' => Some((2, 16)),
                'u' => Some((4, 16)),
                'U' => Some((8, 16)),
                '0'..='7' => Some((0, 8)),
                _ => None,
            };
            if let Some((count, base)) = digits {
                let from = at + usize::from(base == 16);
                let count = if base == 16 { count } else { octal_digits(&rest[from..]) };
                let found = rest.get(from..from + count).and_then(|digits| u32::from_str_radix(digits, base).ok());
                let Some(found) = found.and_then(char::from_u32).filter(|&c| base == 16 || c < '\u{100}') else {
                    return self.wrong("a text has an escape that stands for no character");
                };
                text.push(found);
                for _ in 0..count - usize::from(base == 8) {
                    characters.next();
                }
                continue;
            }
            match escaped {
                '\n' => (),
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                'a' => text.push('\x07'),
                'b' => text.push('\x08'),
                'f' => text.push('\x0c'),
                'v' => text.push('\x0b'),
                '\\' | '\'' | '"' => text.push(escaped),
                'N' => return self.wrong("a text has an escape that is not supported"),
                _ if !escaped.is_ascii() => return self.wrong("a text has an escape that is not supported"),
                _ => text.extend(['\\', escaped]),
            }
        }
        self.wrong("a text has no end")
    }
}

fn octal_digits(text: &str) -> usize {
    text.bytes().take(3).take_while(|c| (b'0'..=b'7').contains(c)).count()
}

/// The text before a tag, without the white space that the tag removes.
fn left_of(text: &str, sign: Option<char>, is_block: bool, line_starts: bool) -> &str {
    if sign == Some('-') {
        return text.trim_end_matches(is_space);
    }
    let line = text.rfind('\n').map_or(0, |end| end + 1);
    let indented = (line > 0 || line_starts) && !text[line..].is_empty() && text[line..].chars().all(is_space);
    if sign.is_none() && is_block && indented {
        &text[..line]
    } else {
        text
    }
}

fn word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    Some(text.trim_start_matches(is_space).strip_prefix(word)?.trim_start_matches(is_space))
}

/// The length of the rest of a `{% raw %}` tag; None if it is not one.
fn raw_begin(text: &str) -> Option<usize> {
    let after = word(text, "raw")?;
    if let Some(after) = after.strip_prefix("-%}") {
        return Some(text.len() - after.trim_start_matches(is_space).len());
    }
    Some(text.len() - after.strip_prefix("%}")?.len())
}

fn raw_end(text: &str) -> Option<usize> {
    let after = word(text, "endraw")?;
    if let Some(after) = after.strip_prefix("-%}") {
        return Some(text.len() - after.trim_start_matches(is_space).len());
    }
    if let Some(after) = after.strip_prefix("+%}") {
        return Some(text.len() - after.len());
    }
    let after = after.strip_prefix("%}")?;
    Some(text.len() - after.strip_prefix('\n').unwrap_or(after).len())
}
