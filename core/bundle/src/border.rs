//! The C interface: pointers become slices here, failures become codes, and a panic becomes SF_BROKEN.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void, CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Arc, Once};

use crate::bundle::Bundle;
use crate::error::{bad_argument, Failure, Result, BAD_ARGUMENT, BROKEN, END, OK};
use crate::tables::{DType, Tensor};
use crate::text::Text;

#[repr(C)]
pub struct Method {
    name: *const c_char,
    rows: i32,
    keep: i32,
    carrying: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Spec {
    size: usize,
    capacity: i64,
    vocab_size: i64,
    num_streams: i64,
    top_k: i64,
    prefill_rows: i64,
    verify: *const Method,
    verify_count: i32,
    deferred: i32,
    stop_ids: *const i64,
    stop_count: i32,
    reserved: i32,
    identity: *const c_char,
}

#[repr(C)]
pub struct CTensor {
    name: *const c_char,
    dtype: i32,
    rank: i32,
    shape: [i64; 2],
    data: *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    size: usize,
    max_new_tokens: i64,
    temperature: f64,
    top_k: i64,
    top_p: f64,
    min_p: f64,
    repetition_penalty: f64,
    seed: u64,
    stop_ids: *const i64,
    stop_count: i32,
    ignore_eos: i32,
    speculative: i32,
    width: i32,
}

extern "C" {
    fn sf_default_options(out: *mut Options); // the core's
}

/// sf_bundle
pub struct BundleHandle {
    open: Option<OpenBundle>,
    error: CString,
}

/// A bundle with its facts as C reads them.
struct OpenBundle {
    tensors: Vec<CTensor>,
    spec: Spec,
    bundle: Arc<Bundle>,
    _owned: (Vec<CString>, Vec<Method>), // what tensors and spec point to, beside the bundle
}

/// sf_text
pub struct TextHandle {
    text: Option<Text>, // None where it could not be made, or broke
    error: CString,
    shown: Vec<u8>,
    ids: Vec<i64>,
}

// ---- a bundle ----

/// # Safety
/// As the header says; so with all that follow.
#[no_mangle]
pub unsafe extern "C" fn sf_bundle_open(
    folder: *const c_char,
    check_hashes: i32,
    out: *mut *mut BundleHandle,
) -> c_int {
    if out.is_null() {
        return BAD_ARGUMENT;
    }
    let mut handle = Box::new(BundleHandle { open: None, error: CString::default() });
    let code = guarded(&mut handle.error, || {
        if folder.is_null() {
            return Err(bad_argument("the folder is a null pointer"));
        }
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(folder) }.to_bytes()));
        handle.open = Some(OpenBundle::new(Bundle::open(path, check_hashes != 0)?)?);
        Ok(OK)
    });
    unsafe { *out = Box::into_raw(handle) };
    code
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_close(handle: *mut BundleHandle) {
    free(handle);
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_error(handle: *const BundleHandle) -> *const c_char {
    match unsafe { handle.as_ref() } {
        Some(handle) => handle.error.as_ptr(),
        None => c"the bundle is a null pointer".as_ptr(),
    }
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_spec(handle: *const BundleHandle, out: *mut Spec) -> c_int {
    match opened(handle) {
        Ok(open) => unsafe { fill(out, open.spec) },
        Err(code) => code,
    }
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_tensors(
    handle: *const BundleHandle,
    out: *mut *const CTensor,
    count: *mut i32,
) -> c_int {
    match opened(handle) {
        Ok(_) if out.is_null() || count.is_null() => BAD_ARGUMENT,
        Ok(open) => {
            unsafe { (*out, *count) = (open.tensors.as_ptr(), open.tensors.len() as i32) };
            OK
        }
        Err(code) => code,
    }
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_defaults(handle: *const BundleHandle, out: *mut Options) -> c_int {
    let open = match opened(handle) {
        Ok(open) => open,
        Err(code) => return code,
    };
    let mut options = std::mem::MaybeUninit::<Options>::zeroed();
    let mut options = unsafe {
        sf_default_options(options.as_mut_ptr());
        options.assume_init()
    };
    let sampling = &open.bundle.manifest.sampling;
    options.max_new_tokens = sampling.max_new_tokens;
    options.temperature = sampling.temperature;
    options.top_k = sampling.top_k;
    options.top_p = sampling.top_p;
    options.min_p = sampling.min_p;
    options.repetition_penalty = sampling.repetition_penalty;
    unsafe { fill(out, options) }
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_manifest(handle: *const BundleHandle) -> *const c_char {
    opened(handle).map_or(c"".as_ptr(), |open| open.bundle.manifest_text.as_ptr())
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_graph(handle: *const BundleHandle) -> *const c_char {
    opened(handle).map_or(c"".as_ptr(), |open| open.bundle.graph.as_ptr())
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_can_chat(handle: *const BundleHandle) -> i32 {
    opened(handle).is_ok_and(|open| open.bundle.can_chat()).into()
}

// ---- text of one sequence ----

#[no_mangle]
pub unsafe extern "C" fn sf_new_text(bundle: *mut BundleHandle, out: *mut *mut TextHandle) -> c_int {
    if out.is_null() {
        return BAD_ARGUMENT;
    }
    let mut handle = Box::new(TextHandle { text: None, error: CString::default(), shown: vec![], ids: vec![] });
    let code = match opened(bundle) {
        Ok(open) => {
            handle.text = Some(Text::new(open.bundle.clone()));
            OK
        }
        Err(code) => {
            handle.error = c"the bundle is not open".to_owned();
            code
        }
    };
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
pub unsafe extern "C" fn sf_text_decode(
    handle: *mut TextHandle,
    ids: *const i64,
    n: i64,
    text: *mut *const c_char,
    bytes: *mut usize,
) -> c_int {
    on(handle, |own, out| {
        let n = usize::try_from(n).map_err(|_| bad_argument(format!("{n} is no number of tokens")))?;
        let found = own.decode(unsafe { slice(ids, n) }?)?;
        unsafe { out.give_text(found, text, bytes) }
    })
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
pub unsafe extern "C" fn sf_text_reset(handle: *mut TextHandle, messages: *const c_char, bytes: usize) -> c_int {
    on(handle, |own, _| own.reset(unsafe { optional_utf8(messages, bytes) }?).map(|()| OK))
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_ask(
    handle: *mut TextHandle,
    text: *const c_char,
    bytes: usize,
    ids: *mut *const i64,
    n: *mut i64,
) -> c_int {
    on(handle, |own, out| {
        need(ids)?;
        need(n)?;
        let found = own.ask(unsafe { utf8(text, bytes) }?)?;
        unsafe { out.give_ids(found, ids, n) }
    })
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
        let found = own.save()?;
        unsafe { out.give_bytes(found, note.cast(), bytes) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_restore(handle: *mut TextHandle, note: *const c_void, bytes: usize) -> c_int {
    on(handle, |own, _| own.restore(unsafe { slice(note.cast(), bytes) }?).map(|()| OK))
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_begin(handle: *mut TextHandle, stops: *const c_char, bytes: usize) -> c_int {
    on(handle, |own, _| own.begin(unsafe { optional_utf8(stops, bytes) }?).map(|()| OK))
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_push(
    handle: *mut TextHandle,
    id: i64,
    text: *mut *const c_char,
    bytes: *mut usize,
) -> c_int {
    on(handle, |own, out| {
        need(text)?;
        need(bytes)?;
        let (found, stopped) = own.push(id)?;
        unsafe { out.give_text(found, text, bytes) }?;
        Ok(if stopped { END } else { OK })
    })
}

#[no_mangle]
pub unsafe extern "C" fn sf_text_end(handle: *mut TextHandle, text: *mut *const c_char, bytes: *mut usize) -> c_int {
    on(handle, |own, out| {
        need(text)?;
        need(bytes)?;
        let found = own.end()?;
        unsafe { out.give_text(found, text, bytes) }
    })
}

// ---- between C and Rust ----

impl OpenBundle {
    fn new(bundle: Bundle) -> Result<OpenBundle> {
        let bundle = Arc::new(bundle);
        let manifest = &bundle.manifest;
        // Names have no zero bytes: methods are called verify_T, and tables.rs looks at those of tensors.
        let c_name = |name: &str| CString::new(name).map_err(|_| bad_argument("a zero byte stands in a name"));
        let mut names = Vec::new();
        let (mut methods, mut tensors) = (Vec::new(), Vec::new());
        for method in &manifest.verify {
            names.push(c_name(&method.name)?);
            let keep = method.keep.unwrap_or(method.rows);
            let carrying = if manifest.num_streams > 0 { method.stream_nodes.unwrap_or(keep) } else { 0 };
            methods.push(Method {
                name: names[names.len() - 1].as_ptr(),
                rows: narrow(method.rows),
                keep: narrow(keep),
                carrying: narrow(carrying),
            });
        }
        for tensor in &bundle.tensors {
            names.push(c_name(&tensor.name)?);
            tensors.push(c_tensor(tensor, names[names.len() - 1].as_ptr(), bundle.tables.as_deref().unwrap_or(&[])));
        }
        let spec = Spec {
            size: std::mem::size_of::<Spec>(),
            capacity: manifest.capacity,
            vocab_size: manifest.vocab_size,
            num_streams: manifest.num_streams,
            top_k: manifest.top_k,
            prefill_rows: manifest.prefill_rows,
            verify: methods.as_ptr(),
            verify_count: narrow(methods.len() as i64),
            deferred: manifest.deferred.into(),
            stop_ids: manifest.eos_token_ids.as_ptr(),
            stop_count: narrow(manifest.eos_token_ids.len() as i64),
            reserved: 0,
            identity: bundle.identity.as_ptr(),
        };
        Ok(OpenBundle { tensors, spec, _owned: (names, methods), bundle })
    }
}

fn c_tensor(tensor: &Tensor, name: *const c_char, file: &[u8]) -> CTensor {
    let at = |place: usize| tensor.shape.get(place).copied().unwrap_or(1);
    CTensor {
        name,
        dtype: match tensor.dtype {
            DType::F16 => 1,
            DType::F32 => 2,
            DType::I32 => 3,
            DType::I64 => 4,
        },
        rank: tensor.shape.len() as i32, // the core refuses ranks that it does not know
        shape: [at(0), at(1)],
        data: file[tensor.start..].as_ptr().cast(),
    }
}

/// A count for a field of 32 bits; what is too large stays too large, and the core refuses it by name.
fn narrow(count: i64) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
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

/// Runs `body` on the text of a handle, which it may not leave half changed: after a panic the text is gone.
fn on(handle: *mut TextHandle, body: impl FnOnce(&mut Text, &mut TextHandle) -> Result<c_int>) -> c_int {
    let Some(handle) = (unsafe { handle.as_mut() }) else {
        return BAD_ARGUMENT;
    };
    let Some(mut text) = handle.text.take() else {
        handle.error = c"this text could not be made, or broke; free it".to_owned();
        return BROKEN;
    };
    let mut error = std::mem::take(&mut handle.error);
    let code = guarded(&mut error, || body(&mut text, handle));
    handle.error = error;
    if code != BROKEN {
        handle.text = Some(text);
    }
    code
}

/// Runs `body`; its failure, or its panic, becomes a code with the sentence in `error`.
fn guarded(error: &mut CString, body: impl FnOnce() -> Result<c_int>) -> c_int {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| set_hook(Box::new(|_| ()))); // the usual one prints; this library's Rust is nobody else's
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code)) => return code,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason was given");
            Failure { code: BROKEN, sentence: format!("an internal check failed ({said}); free this handle") }
        }
    };
    *error = CString::new(failure.sentence.replace('\0', "\u{fffd}")).unwrap_or_default();
    failure.code
}

fn opened<'a>(handle: *const BundleHandle) -> std::result::Result<&'a OpenBundle, c_int> {
    match unsafe { handle.as_ref() } {
        Some(handle) => handle.open.as_ref().ok_or(BROKEN),
        None => Err(BAD_ARGUMENT),
    }
}

fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        let owned = unsafe { Box::from_raw(handle) };
        let _ = catch_unwind(AssertUnwindSafe(move || drop(owned)));
    }
}

/// Fills as much of a structure as the caller knows; its size stays.
unsafe fn fill<T>(out: *mut T, full: T) -> c_int {
    let size_bytes = std::mem::size_of::<usize>();
    if out.is_null() {
        return BAD_ARGUMENT;
    }
    let known = unsafe { *out.cast::<usize>() };
    if known < size_bytes || known > 4096 {
        return BAD_ARGUMENT;
    }
    let bytes = known.min(std::mem::size_of::<T>()) - size_bytes;
    unsafe {
        let from = (&raw const full).cast::<u8>().add(size_bytes);
        std::ptr::copy_nonoverlapping(from, out.cast::<u8>().add(size_bytes), bytes);
    }
    OK
}

fn need<T>(place: *mut T) -> Result<()> {
    if place.is_null() {
        Err(bad_argument("a place for a result is a null pointer"))
    } else {
        Ok(())
    }
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
