//! sf_bundle: a folder's facts as C reads them.

use std::ffi::{c_char, c_int, c_void, CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::{free, guarded, utf8};
use crate::bundle::{verify_manifest, Bundle, Estimate};
use crate::error::{bad_argument, bad_file, Result, BAD_ARGUMENT, BROKEN, OK};
use crate::manifest::Manifest;
use crate::npz::{Array, Numbers};
use crate::signature::PublicKey;
use crate::tables::{DType, Tensor};

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
    stream_vocab_size: i32,
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
    constraint: *const c_void,
    sources: i32,
    log_probs: i32,
    dropped_turns: i64,
    dropped_tokens: i64,
    top_log_probs: i32,
}

#[repr(C)]
pub struct CWatch {
    step: Option<unsafe extern "C" fn(*mut c_void, u64, u64) -> c_int>,
    context: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct BundleOptions {
    size: usize,
    public_key: *const c_char,
    watch: *const CWatch,
    skip_hashes: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CEstimate {
    size: usize,
    weights_bytes: i64,
    tables_bytes: i64,
    cache_bytes: i64,
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
pub struct OpenBundle {
    tensors: Vec<CTensor>,
    spec: Spec,
    adapters: Vec<CString>, // their names
    pub bundle: Arc<Bundle>,
    _owned: (Vec<CString>, Vec<Method>), // what tensors and spec point to, beside the bundle
}

/// # Safety
/// As the header states; so with all that follow.
#[no_mangle]
pub unsafe extern "C" fn sf_bundle_open(
    folder: *const c_char,
    options: *const BundleOptions,
    out: *mut *mut BundleHandle,
) -> c_int {
    let open = || {
        let path = unsafe { path_of(folder) }?;
        let options = unsafe { bundle_options(options) }?;
        let key = unsafe { key_of(options.public_key) }?;
        let step = |done, total| match unsafe { options.watch.as_ref() } {
            Some(CWatch { step: Some(step), context }) => unsafe { step(*context, done, total) == 0 },
            _ => true,
        };
        Bundle::open(path, options.skip_hashes == 0, key.as_ref(), &step)
    };
    unsafe { give_bundle(out, open) }
}

/// Gives the caller a handle of a bundle, or of the error.
unsafe fn give_bundle(out: *mut *mut BundleHandle, open: impl FnOnce() -> Result<Bundle>) -> c_int {
    if out.is_null() {
        return BAD_ARGUMENT;
    }
    let mut handle = Box::new(BundleHandle { open: None, error: CString::default() });
    let code = guarded(&mut handle.error, || {
        handle.open = Some(OpenBundle::new(open()?)?);
        Ok(OK)
    });
    unsafe { *out = Box::into_raw(handle) };
    code
}

unsafe fn path_of<'a>(folder: *const c_char) -> Result<&'a Path> {
    if folder.is_null() {
        return Err(bad_argument("the folder is a null pointer"));
    }
    Ok(Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(folder) }.to_bytes())))
}

/// None for a null pointer.
unsafe fn key_of(text: *const c_char) -> Result<Option<PublicKey>> {
    match text.is_null() {
        true => Ok(None),
        false => Ok(Some(PublicKey::parse(unsafe { CStr::from_ptr(text) }.to_bytes())?)),
    }
}

/// The options of a caller of any version; fields that it does not know are zero.
unsafe fn bundle_options(given: *const BundleOptions) -> Result<BundleOptions> {
    let whole = std::mem::size_of::<BundleOptions>();
    let mut options =
        BundleOptions { size: whole, public_key: std::ptr::null(), watch: std::ptr::null(), skip_hashes: 0 };
    if given.is_null() {
        return Ok(options);
    }
    let size = unsafe { *given.cast::<usize>() };
    if !(std::mem::size_of::<usize>()..=4096).contains(&size) {
        return Err(bad_argument("the options do not contain their size"));
    }
    unsafe { std::ptr::copy_nonoverlapping(given.cast::<u8>(), (&raw mut options).cast(), size.min(whole)) };
    Ok(options)
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_estimate(
    folder: *const c_char,
    out: *mut CEstimate,
    message: *mut c_char,
    capacity: usize,
) -> c_int {
    let mut error = CString::default();
    let code = guarded(&mut error, || {
        let found = Estimate::of(unsafe { path_of(folder) }?)?;
        let size = std::mem::size_of::<CEstimate>();
        let full =
            CEstimate { size, weights_bytes: found.weights, tables_bytes: found.tables, cache_bytes: found.cache };
        match unsafe { fill(out, full) } {
            OK => Ok(OK),
            _ => Err(bad_argument("the estimate is a null pointer, or does not contain its size")),
        }
    });
    unsafe { give_message(&error, message, capacity) };
    code
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_verify_manifest(
    folder: *const c_char,
    public_key: *const c_char,
    message: *mut c_char,
    capacity: usize,
) -> c_int {
    let mut error = CString::default();
    let code = guarded(&mut error, || {
        verify_manifest(unsafe { path_of(folder) }?, unsafe { key_of(public_key) }?.as_ref())?;
        Ok(OK)
    });
    unsafe { give_message(&error, message, capacity) };
    code
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_adapter(
    whole: *const BundleHandle,
    name: *const c_char,
    out: *mut *mut BundleHandle,
) -> c_int {
    let open = || {
        let whole = opened(whole).map_err(|_| bad_argument("an adapter needs a bundle that was opened"))?;
        if name.is_null() {
            return Err(bad_argument("the name of an adapter is a null pointer"));
        }
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        whole.bundle.adapter(&name)
    };
    unsafe { give_bundle(out, open) }
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_adapter_name(handle: *const BundleHandle, index: i32) -> *const c_char {
    let found =
        |open: &OpenBundle| usize::try_from(index).ok().and_then(|index| open.adapters.get(index)?.as_ptr().into());
    opened(handle).ok().and_then(found).unwrap_or(std::ptr::null())
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_prefix(handle: *const BundleHandle, index: i32) -> *const c_char {
    let found = |open: &OpenBundle| {
        usize::try_from(index).ok().and_then(|index| open.bundle.prefixes.get(index)?.as_ptr().into())
    };
    opened(handle).ok().and_then(found).unwrap_or(std::ptr::null())
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_check_key(public_key: *const c_char) -> *const c_char {
    if public_key.is_null() {
        return c"the public key is a null pointer".as_ptr();
    }
    match PublicKey::parse(unsafe { CStr::from_ptr(public_key) }.to_bytes()) {
        Ok(_) => std::ptr::null(),
        Err(fault) => fault.sentence().as_ptr(),
    }
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_check_manifest(
    manifest: *const c_char,
    bytes: usize,
    sentence: *mut c_char,
    room: usize,
) -> c_int {
    let mut error = CString::default();
    let code = guarded(&mut error, || Manifest::parse(unsafe { utf8(manifest, bytes) }?).map(|_| OK).map_err(bad_file));
    unsafe { give_message(&error, sentence, room) };
    code
}

/// Writes a message to the caller's memory, null-terminated and truncated.
unsafe fn give_message(error: &CString, message: *mut c_char, capacity: usize) {
    if message.is_null() || capacity == 0 {
        return;
    }
    let shown = error.as_bytes();
    let shown = &shown[..shown.len().min(capacity - 1)];
    unsafe {
        std::ptr::copy_nonoverlapping(shown.as_ptr(), message.cast(), shown.len());
        *message.add(shown.len()) = 0;
    }
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
pub unsafe extern "C" fn sf_bundle_folder(handle: *const BundleHandle) -> *const c_char {
    opened(handle).map_or(c"".as_ptr(), |open| open.bundle.folder.as_ptr())
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_graph(handle: *const BundleHandle) -> *const c_char {
    opened(handle).map_or(c"".as_ptr(), |open| open.bundle.graph.as_ptr())
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_can_chat(handle: *const BundleHandle) -> i32 {
    opened(handle).is_ok_and(|open| open.bundle.language.can_chat()).into()
}

/// sf_bundle_selftest
pub struct SelftestHandle {
    tensors: Vec<CTensor>,
    _owned: (Vec<CString>, Vec<Array>), // what the tensors point to
    error: CString,
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_selftest_open(bundle: *const BundleHandle, out: *mut *mut SelftestHandle) -> c_int {
    if out.is_null() {
        return BAD_ARGUMENT;
    }
    let mut handle =
        Box::new(SelftestHandle { tensors: Vec::new(), _owned: (Vec::new(), Vec::new()), error: CString::default() });
    let code = guarded(&mut handle.error, || {
        let open = opened(bundle).map_err(|_| bad_argument("a self-test needs a bundle that was opened"))?;
        let mut arrays = open.bundle.selftest()?;
        arrays.extend(open.bundle.manifest.snr_db.iter().map(|(method, snr_db)| Array {
            name: format!("{method}.snr_db"),
            shape: vec![1],
            numbers: Numbers::F32(vec![*snr_db as f32]),
        }));
        let names = arrays.iter().map(|array| c_name(&array.name)).collect::<Result<Vec<_>>>()?;
        handle.tensors = arrays.iter().zip(&names).map(|(array, name)| c_array(array, name.as_ptr())).collect();
        handle._owned = (names, arrays);
        Ok(OK)
    });
    unsafe { *out = Box::into_raw(handle) };
    code
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_selftest_close(handle: *mut SelftestHandle) {
    free(handle);
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_selftest_error(handle: *const SelftestHandle) -> *const c_char {
    match unsafe { handle.as_ref() } {
        Some(handle) => handle.error.as_ptr(),
        None => c"the self-test is a null pointer".as_ptr(),
    }
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_selftest_tensors(
    handle: *const SelftestHandle,
    out: *mut *const CTensor,
    count: *mut i32,
) -> c_int {
    match unsafe { handle.as_ref() } {
        Some(handle) if !out.is_null() && !count.is_null() => {
            unsafe { (*out, *count) = (handle.tensors.as_ptr(), handle.tensors.len() as i32) };
            OK
        }
        _ => BAD_ARGUMENT,
    }
}

/// An array as a matrix: its first dimension, and the others joined.
fn c_array(array: &Array, name: *const c_char) -> CTensor {
    let (dtype, data) = match &array.numbers {
        Numbers::F32(numbers) => (2, numbers.as_ptr().cast()),
        Numbers::I64(numbers) => (4, numbers.as_ptr().cast()),
    };
    let (rows, others) = array.shape.split_first().unwrap_or((&1, &[]));
    CTensor { name, dtype, rank: 1 + i32::from(!others.is_empty()), shape: [*rows, others.iter().product()], data }
}

fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| bad_argument("a name has a zero byte"))
}

impl OpenBundle {
    fn new(bundle: Bundle) -> Result<OpenBundle> {
        let bundle = Arc::new(bundle);
        let manifest = &bundle.manifest;
        // Names have no zero bytes: methods are called verify_T, and tables.rs looks at those of tensors.
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
            stream_vocab_size: narrow(manifest.stream_vocab_size),
            identity: bundle.identity.as_ptr(),
        };
        let adapters = manifest.adapters.iter().map(|adapter| c_name(&adapter.name)).collect::<Result<_>>()?;
        Ok(OpenBundle { tensors, spec, adapters, _owned: (names, methods), bundle })
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

pub fn opened<'a>(handle: *const BundleHandle) -> std::result::Result<&'a OpenBundle, c_int> {
    match unsafe { handle.as_ref() } {
        Some(handle) => handle.open.as_ref().ok_or(BROKEN),
        None => Err(BAD_ARGUMENT),
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
