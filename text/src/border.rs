//! The C interface: pointers become slices here, failures become codes, and a panic becomes SF_BROKEN.
#![allow(unsafe_code)]

mod bundle;
mod constraint;
mod text;

use std::ffi::{c_char, c_int, CString};

use crate::error::{bad_argument, one_line, Failure, Result, BROKEN};
use crate::panics::caught;

/// Runs `body`; its failure, or its panic, becomes a code with the sentence in `error`.
fn guarded(error: &mut CString, body: impl FnOnce() -> Result<c_int>) -> c_int {
    let failure = match caught(body) {
        Ok(Ok(code)) => return code,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure { code: BROKEN, sentence: format!("an internal check failed ({})", one_line(&panic)) },
    };
    *error = CString::new(failure.sentence.replace('\0', "\u{fffd}")).unwrap_or_default();
    failure.code
}

fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        let owned = unsafe { Box::from_raw(handle) };
        let _ = caught(move || drop(owned));
    }
}

fn need<T>(place: *mut T) -> Result<()> {
    if place.is_null() {
        Err(bad_argument("a place for a result is a null pointer"))
    } else {
        Ok(())
    }
}

fn count(n: impl Into<i64>) -> Result<usize> {
    let n = n.into();
    usize::try_from(n).map_err(|_| bad_argument(format!("{n} is no number of tokens")))
}

unsafe fn slice<'a, T>(data: *const T, count: usize) -> Result<&'a [T]> {
    match (data.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(bad_argument("the data are a null pointer")),
        _ if count > isize::MAX as usize / std::mem::size_of::<T>() => {
            Err(bad_argument(format!("{count} is more than there can be")))
        }
        _ => Ok(unsafe { std::slice::from_raw_parts(data, count) }),
    }
}

unsafe fn utf8<'a>(text: *const c_char, bytes: usize) -> Result<&'a str> {
    std::str::from_utf8(unsafe { slice(text.cast(), bytes) }?)
        .map_err(|error| bad_argument(format!("the text is not UTF-8 ({error})")))
}

unsafe fn optional_utf8<'a>(text: *const c_char, bytes: usize) -> Result<Option<&'a str>> {
    if text.is_null() && bytes == 0 {
        Ok(None)
    } else {
        unsafe { utf8(text, bytes) }.map(Some)
    }
}
