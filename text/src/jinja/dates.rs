//! strftime_now: the local time, in the format codes that are the same in every C library.

use chrono::Local;

use super::{fault, Result};

const MOST_FORM: usize = 256;

pub fn now(form: &str) -> Result<String> {
    use std::fmt::Write;
    let mut characters = form.chars();
    let mut is_fine = form.len() <= MOST_FORM && !form.contains('\0');
    while let Some(c) = characters.next() {
        if c != '%' {
            continue;
        }
        is_fine &= match characters.next() {
            Some('-') => matches!(characters.next(), Some('d' | 'm' | 'H' | 'I' | 'M' | 'S' | 'j')),
            Some(letter) => "aAbBdeHIjmMpSyYFTDRuwUWVGn%t".contains(letter),
            None => false,
        };
    }
    let mut text = String::new();
    if !is_fine || write!(text, "{}", Local::now().naive_local().format(form)).is_err() {
        return fault(format!("strftime_now cannot write {form:?}"));
    }
    Ok(text)
}
