//! sf_bundle: a folder's facts as C reads them.

use std::ffi::{c_char, c_int, c_void, CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::{free, guarded, utf8};
use crate::bundle::Bundle;
use crate::error::{bad_argument, bad_file, Result, BAD_ARGUMENT, BROKEN, OK};
use crate::manifest::Manifest;
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
    dropped_turns: i64,
    dropped_tokens: i64,
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
    pub bundle: Arc<Bundle>,
    _owned: (Vec<CString>, Vec<Method>), // what tensors and spec point to, beside the bundle
}

/// # Safety
/// As the header says; so with all that follow.
#[no_mangle]
pub unsafe extern "C" fn sf_bundle_open(
    folder: *const c_char,
    check_hashes: i32,
    out: *mut *mut BundleHandle,
) -> c_int {
    unsafe { open(folder, out, |path| Bundle::open(path, check_hashes != 0, None)) }
}

#[no_mangle]
pub unsafe extern "C" fn sf_bundle_open_signed(
    folder: *const c_char,
    public_key: *const c_char,
    out: *mut *mut BundleHandle,
) -> c_int {
    unsafe {
        open(folder, out, |path| {
            if public_key.is_null() {
                return Err(bad_argument("the public key is a null pointer"));
            }
            let key = PublicKey::parse(CStr::from_ptr(public_key).to_bytes())?;
            Bundle::open(path, true, Some(&key))
        })
    }
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
    if !sentence.is_null() && room > 0 {
        let shown = error.as_bytes();
        let shown = &shown[..shown.len().min(room - 1)];
        unsafe {
            std::ptr::copy_nonoverlapping(shown.as_ptr(), sentence.cast(), shown.len());
            *sentence.add(shown.len()) = 0;
        }
    }
    code
}

unsafe fn open(
    folder: *const c_char,
    out: *mut *mut BundleHandle,
    body: impl FnOnce(&Path) -> Result<Bundle>,
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
        handle.open = Some(OpenBundle::new(body(path)?)?);
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
            stream_vocab_size: narrow(manifest.stream_vocab_size),
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
