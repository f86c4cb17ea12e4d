//! sf_text: the text of one sequence.

use std::ffi::{c_char, c_int, c_void, CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use super::bundle::{opened, BundleHandle};
use super::constraint::{give, give_none, CConstraint};
use super::{count, free, guarded, need, optional_utf8, slice, utf8};
use crate::bundle::MOST_TOKENIZER_BYTES;
use crate::error::{bad_argument, Failure, Result, BAD_ARGUMENT, BROKEN, END, OK};
use crate::files;
use crate::language::Language;
use crate::limit::{Limit, Policy};
use crate::text::Text;
use crate::tools::channels::Part;

/// sf_text
pub struct TextHandle {
    text: Option<Text>, // None where it could not be made
    error: CString,
    shown: Vec<u8>,
    ids: Vec<i64>,
    parts: Vec<TextPart>, // of `shown`
}

/// sf_text_part
#[repr(C)]
pub struct TextPart {
    text: *const c_char,
    bytes: usize,
    channel: i32,
    reserved: i32,
}

/// The fields of a manifest's `model` that concern text.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Model {
    chat_template: Option<String>,
    bos_token_id: Option<i64>,
    eos_token_ids: Vec<i64>,
    vocab_size: Option<usize>,
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_open(
    tokenizer: *const c_char,
    model: *const c_char,
    bytes: usize,
    out: *mut *mut TextHandle,
) -> c_int {
    unsafe {
        make(out, || {
            if tokenizer.is_null() {
                return Err(bad_argument("the tokenizer's path is a null pointer"));
            }
            let path = Path::new(OsStr::from_bytes(CStr::from_ptr(tokenizer).to_bytes()));
            let model = match optional_utf8(model, bytes)? {
                Some(json) => serde_json::from_str(json)
                    .map_err(|error| bad_argument(format!("the facts of the model are not as expected ({error})")))?,
                None => Model::default(),
            };
            let file = files::read_bounded(path, MOST_TOKENIZER_BYTES)?;
            let Model { chat_template, bos_token_id, eos_token_ids, vocab_size } = model;
            Ok(Arc::new(Language::new(&file, path, chat_template, bos_token_id, &eos_token_ids, vocab_size)?))
        })
    }
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_clone(text: *const TextHandle, out: *mut *mut TextHandle) -> c_int {
    unsafe {
        make(out, || match text.as_ref().and_then(|handle| handle.text.as_ref()) {
            Some(text) => Ok(text.language.clone()),
            None => Err(bad_argument("the text to clone could not be made, or is a null pointer")),
        })
    }
}

#[no_mangle]
pub unsafe extern "C" fn sf_new_text(bundle: *mut BundleHandle, out: *mut *mut TextHandle) -> c_int {
    unsafe {
        make(out, || match opened(bundle) {
            Ok(open) => Ok(open.bundle.language.clone()),
            Err(code) => Err(Failure { code, sentence: "the bundle is not open".to_owned() }),
        })
    }
}

unsafe fn make(out: *mut *mut TextHandle, body: impl FnOnce() -> Result<Arc<Language>>) -> c_int {
    if out.is_null() {
        return BAD_ARGUMENT;
    }
    let (shown, ids, parts) = Default::default();
    let mut handle = Box::new(TextHandle { text: None, error: CString::default(), shown, ids, parts });
    let code = guarded(&mut handle.error, || {
        handle.text = Some(Text::new(body()?));
        Ok(OK)
    });
    unsafe { *out = Box::into_raw(handle) };
    code
}

#[no_mangle]
pub unsafe extern "C" fn sf_free_text(handle: *mut TextHandle) {
    free(handle);
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_error(handle: *const TextHandle) -> *const c_char {
    match unsafe { handle.as_ref() } {
        Some(handle) => handle.error.as_ptr(),
        None => c"the text is a null pointer".as_ptr(),
    }
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_encode(
    handle: *mut TextHandle,
    text: *const c_char,
    bytes: usize,
    marks: i32,
    ids: *mut *const i64,
    n: *mut i64,
) -> c_int {
    on(handle, |own, out| {
        let found = own.encode(unsafe { utf8(text, bytes) }?, marks != 0)?;
        unsafe { out.give_ids(&found, ids, n) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_encode_chat(
    handle: *mut TextHandle,
    messages: *const c_char,
    bytes: usize,
    ids: *mut *const i64,
    n: *mut i64,
) -> c_int {
    on(handle, |own, out| {
        let found = own.encode_chat(unsafe { utf8(messages, bytes) }?)?;
        unsafe { out.give_ids(&found, ids, n) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_can_chat(handle: *const TextHandle) -> i32 {
    let text = unsafe { handle.as_ref() }.and_then(|handle| handle.text.as_ref());
    text.is_some_and(|text| text.language.can_chat()).into()
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_decode(
    handle: *mut TextHandle,
    ids: *const i64,
    n: i64,
    text: *mut *const c_char,
    bytes: *mut usize,
) -> c_int {
    on(handle, |own, out| {
        let found = own.decode(unsafe { slice(ids, count(n)?) }?)?;
        unsafe { out.give_text(found, text, bytes) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_token(
    handle: *mut TextHandle,
    id: i64,
    text: *mut *const c_char,
    bytes: *mut usize,
) -> c_int {
    on(handle, |own, out| unsafe { out.give_bytes(own.token_bytes(id)?, text, bytes) })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_render(
    handle: *mut TextHandle,
    messages: *const c_char,
    bytes: usize,
    text: *mut *const c_char,
    text_bytes: *mut usize,
) -> c_int {
    on(handle, |own, out| {
        let found = own.render(unsafe { utf8(messages, bytes) }?)?;
        unsafe { out.give_text(found, text, text_bytes) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_render_cut(
    handle: *mut TextHandle,
    messages: *const c_char,
    bytes: usize,
    text: *mut *const c_char,
    text_bytes: *mut usize,
) -> c_int {
    on(handle, |own, out| {
        let found = own.render_cut(unsafe { utf8(messages, bytes) }?)?;
        unsafe { out.give_text(found, text, text_bytes) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_reset(handle: *mut TextHandle) -> c_int {
    on(handle, |own, _| {
        own.reset();
        Ok(OK)
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_set_first(
    handle: *mut TextHandle,
    system: *const c_char,
    system_bytes: usize,
    messages: *const c_char,
    bytes: usize,
) -> c_int {
    on(handle, |own, _| {
        let (system, messages) = unsafe { (optional_utf8(system, system_bytes)?, optional_utf8(messages, bytes)?) };
        own.set_first(system, messages).map(|()| OK)
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_set_tools(handle: *mut TextHandle, tools: *const c_char, bytes: usize) -> c_int {
    on(handle, |own, _| own.set_tools(unsafe { optional_utf8(tools, bytes) }?).map(|()| OK))
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_set_variables(
    handle: *mut TextHandle,
    variables: *const c_char,
    bytes: usize,
) -> c_int {
    on(handle, |own, _| own.set_variables(unsafe { optional_utf8(variables, bytes) }?).map(|()| OK))
}

/// Adds turns with `ask`, which gives the ids of the whole context. Nothing is added if they have no place.
unsafe fn asked(
    handle: *mut TextHandle,
    given: *const c_char,
    bytes: usize,
    (ids, n): (*mut *const i64, *mut i64),
    ask: for<'a> fn(&'a mut Text, &str) -> Result<&'a [u32]>,
) -> c_int {
    on(handle, |own, out| {
        need(ids)?;
        need(n)?;
        let found = ask(own, unsafe { utf8(given, bytes) }?)?;
        unsafe { out.give_ids(found, ids, n) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_ask(
    handle: *mut TextHandle,
    text: *const c_char,
    bytes: usize,
    ids: *mut *const i64,
    n: *mut i64,
) -> c_int {
    unsafe { asked(handle, text, bytes, (ids, n), Text::ask) }
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_ask_results(
    handle: *mut TextHandle,
    results: *const c_char,
    bytes: usize,
    ids: *mut *const i64,
    n: *mut i64,
) -> c_int {
    unsafe { asked(handle, results, bytes, (ids, n), Text::ask_results) }
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_ask_messages(
    handle: *mut TextHandle,
    messages: *const c_char,
    bytes: usize,
    ids: *mut *const i64,
    n: *mut i64,
) -> c_int {
    unsafe { asked(handle, messages, bytes, (ids, n), Text::ask_messages) }
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_set_limit(
    handle: *mut TextHandle,
    capacity: i64,
    max_new_tokens: i64,
    policy: i32,
) -> c_int {
    on(handle, |own, _| {
        let policy = match policy {
            0 => Policy::Fail,
            1 => Policy::DropOldest,
            other => return Err(bad_argument(format!("there is no context policy {other}; 0 is fail, 1 drop_oldest"))),
        };
        own.set_limit(Limit { capacity: count(capacity)?, max_new_tokens: count(max_new_tokens)?, policy });
        Ok(OK)
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_dropped(handle: *mut TextHandle, turns: *mut i64, tokens: *mut i64) -> c_int {
    on(handle, |own, _| {
        need(turns)?;
        need(tokens)?;
        let dropped = own.dropped();
        unsafe { (*turns, *tokens) = (dropped.turns as i64, dropped.tokens as i64) };
        Ok(OK)
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_count(
    handle: *mut TextHandle,
    text: *const c_char,
    bytes: usize,
    n: *mut i64,
) -> c_int {
    on(handle, |own, _| {
        need(n)?;
        let found = own.count(unsafe { utf8(text, bytes) }?)?;
        unsafe { *n = found as i64 };
        Ok(OK)
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_tool_calls(
    handle: *mut TextHandle,
    json: *mut *const c_char,
    bytes: *mut usize,
) -> c_int {
    on(handle, |own, out| unsafe { out.give_text(own.tool_calls(), json, bytes) })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_take_back(handle: *mut TextHandle) -> c_int {
    on(handle, |own, _| {
        own.take_back();
        Ok(OK)
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_messages(
    handle: *mut TextHandle,
    json: *mut *const c_char,
    bytes: *mut usize,
) -> c_int {
    on(handle, |own, out| unsafe { out.give_text(own.messages(), json, bytes) })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_save(handle: *mut TextHandle, note: *mut *const c_void, bytes: *mut usize) -> c_int {
    on(handle, |own, out| {
        need(note)?;
        need(bytes)?;
        unsafe { out.give_bytes(own.save(), note.cast(), bytes) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_restore(handle: *mut TextHandle, note: *const c_void, bytes: usize) -> c_int {
    on(handle, |own, _| own.restore(unsafe { slice(note.cast(), bytes) }?).map(|()| OK))
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_begin(
    handle: *mut TextHandle,
    stops: *const c_char,
    bytes: usize,
    before: *const i64,
    n: i64,
    restriction: *const c_char,
    restriction_bytes: usize,
) -> c_int {
    on(handle, |own, _| {
        let (stops, before) = unsafe { (optional_utf8(stops, bytes)?, slice(before, count(n)?)?) };
        let restriction = unsafe { optional_utf8(restriction, restriction_bytes) }?;
        own.begin(stops, before, restriction).map(|()| OK)
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_push(
    handle: *mut TextHandle,
    id: i64,
    parts: *mut *const TextPart,
    n: *mut i32,
) -> c_int {
    on(handle, |own, out| {
        need(parts)?;
        need(n)?;
        let stopped = own.push(id)?;
        unsafe { out.give_parts(own.parts(), parts, n) };
        Ok(if stopped { END } else { OK })
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_end(
    handle: *mut TextHandle,
    stopped: i32,
    parts: *mut *const TextPart,
    n: *mut i32,
) -> c_int {
    on(handle, |own, out| {
        need(parts)?;
        need(n)?;
        own.end(stopped != 0);
        unsafe { out.give_parts(own.parts(), parts, n) };
        Ok(OK)
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_constrain(
    handle: *mut TextHandle,
    kind: i32,
    grammar: *const c_char,
    bytes: usize,
    out: *mut CConstraint,
) -> c_int {
    on(handle, |own, _| unsafe {
        let grammar = utf8(grammar, bytes)?;
        give(out, || own.constrain_answer(kind, grammar, false))
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_constrain_calls(
    handle: *mut TextHandle,
    choice: *const c_char,
    bytes: usize,
    out: *mut CConstraint,
) -> c_int {
    on(handle, |own, _| {
        let choice = unsafe { optional_utf8(choice, bytes) }?;
        match own.constrain_calls(choice)? {
            Some(constraint) => unsafe { give(out, || Ok(Box::new(constraint))) },
            None => unsafe { give_none(out) },
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_constrain_answer_or_call(
    handle: *mut TextHandle,
    kind: i32,
    grammar: *const c_char,
    bytes: usize,
    out: *mut CConstraint,
) -> c_int {
    on(handle, |own, _| unsafe {
        let grammar = utf8(grammar, bytes)?;
        give(out, || own.constrain_answer(kind, grammar, true))
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_vocab_size(handle: *const TextHandle) -> i64 {
    let text = unsafe { handle.as_ref() }.and_then(|handle| handle.text.as_ref());
    text.map_or(0, |text| text.language.vocab_size() as i64)
}

impl TextHandle {
    unsafe fn give_ids(&mut self, found: &[u32], ids: *mut *const i64, n: *mut i64) -> Result<c_int> {
        need(ids)?;
        need(n)?;
        self.ids.clear();
        self.ids.extend(found.iter().map(|&id| i64::from(id)));
        unsafe { (*ids, *n) = (self.ids.as_ptr(), self.ids.len() as i64) };
        Ok(OK)
    }

    unsafe fn give_parts(&mut self, found: &[Part], parts: *mut *const TextPart, n: *mut i32) {
        self.shown = found.iter().flat_map(|part| part.text.bytes()).collect();
        let mut place = 0;
        let part = |part: &Part| {
            let text = self.shown[place..].as_ptr().cast();
            place += part.text.len();
            TextPart { text, bytes: part.text.len(), channel: part.channel as i32, reserved: 0 }
        };
        self.parts = found.iter().map(part).collect();
        unsafe { (*parts, *n) = (self.parts.as_ptr(), self.parts.len() as i32) };
    }

    unsafe fn give_text(&mut self, found: String, text: *mut *const c_char, bytes: *mut usize) -> Result<c_int> {
        unsafe { self.give_bytes(found.into_bytes(), text, bytes) }
    }

    unsafe fn give_bytes(&mut self, found: Vec<u8>, place: *mut *const c_char, bytes: *mut usize) -> Result<c_int> {
        need(place)?;
        need(bytes)?;
        self.shown = found;
        unsafe { (*place, *bytes) = (self.shown.as_ptr().cast(), self.shown.len()) };
        Ok(OK)
    }
}

/// Runs `body` on the text of a handle. A panic drops the answer that is being generated, with its question; the rest of
/// the conversation stays as it was.
fn on(handle: *mut TextHandle, body: impl FnOnce(&mut Text, &mut TextHandle) -> Result<c_int>) -> c_int {
    let Some(handle) = (unsafe { handle.as_mut() }) else {
        return BAD_ARGUMENT;
    };
    let Some(mut text) = handle.text.take() else {
        handle.error = c"this text could not be made; free it".to_owned();
        return BROKEN;
    };
    let mut error = std::mem::take(&mut handle.error);
    let code = guarded(&mut error, || body(&mut text, handle));
    handle.error = error;
    if code == BROKEN {
        text.take_back();
    }
    handle.text = Some(text);
    code
}
