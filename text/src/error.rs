//! Errors: a code of core/streamfuse_core.h and a one-sentence message.

pub const OK: i32 = 0;
pub const BAD_ARGUMENT: i32 = 1;
pub const CONTEXT_FULL: i32 = 4;
pub const BROKEN: i32 = 8;
pub const BAD_TABLES: i32 = 9;
pub const BAD_FILE: i32 = 10;
pub const BAD_GRAMMAR: i32 = 11;
pub const CANCELLED: i32 = 12;
pub const END: i32 = 100;

#[derive(Debug)]
pub struct Failure {
    pub code: i32,
    pub sentence: String,
}

pub type Result<T, E = Failure> = std::result::Result<T, E>;

pub fn bad_argument(sentence: impl Into<String>) -> Failure {
    Failure { code: BAD_ARGUMENT, sentence: sentence.into() }
}

pub fn cancelled(sentence: impl Into<String>) -> Failure {
    Failure { code: CANCELLED, sentence: sentence.into() }
}

pub fn context_full(sentence: impl Into<String>) -> Failure {
    Failure { code: CONTEXT_FULL, sentence: sentence.into() }
}

pub fn bad_file(sentence: impl Into<String>) -> Failure {
    Failure { code: BAD_FILE, sentence: sentence.into() }
}

pub fn bad_grammar(sentence: impl Into<String>) -> Failure {
    Failure { code: BAD_GRAMMAR, sentence: sentence.into() }
}

/// An error of a library, as one line of at most 200 characters.
pub fn one_line(error: &dyn std::fmt::Display) -> String {
    let words: Vec<String> = error.to_string().split_whitespace().map(str::to_owned).collect();
    words.join(" ").chars().take(200).collect()
}

/// The message of a system error, without its number.
pub fn of_system(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
