//! sf_constraint: a constraint as a table of functions.

use std::ffi::{c_char, c_int, c_void, CString};

use super::{count, free, guarded, need, slice};
use crate::constraint::Restriction;
use crate::error::{bad_argument, Result, BAD_ARGUMENT, OK};

/// sf_constraint
#[repr(C)]
pub struct CConstraint {
    size: usize,
    context: *mut c_void,
    accept: unsafe extern "C" fn(*mut c_void, i64) -> c_int,
    rollback: unsafe extern "C" fn(*mut c_void, i32) -> c_int,
    state: unsafe extern "C" fn(*mut c_void, *mut i32) -> c_int,
    allows: unsafe extern "C" fn(*mut c_void, *const i64, i32, *mut u8) -> c_int,
    mask: unsafe extern "C" fn(*mut c_void, *mut u32) -> c_int,
    forced: unsafe extern "C" fn(*mut c_void, *mut i64, i32, *mut i32) -> c_int,
    choice_key: unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int,
    error: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    release: unsafe extern "C" fn(*mut c_void),
}

/// What `context` points to.
struct Handle {
    constraint: Box<dyn Restriction>,
    error: CString,
}

/// Fills a caller's structure, of the size that it states.
pub unsafe fn give(out: *mut CConstraint, make: impl FnOnce() -> Result<Box<dyn Restriction>>) -> Result<c_int> {
    need(out)?;
    let (known, size) = (unsafe { *out.cast::<usize>() }, std::mem::size_of::<CConstraint>());
    if known < size {
        return Err(bad_argument(format!("sf_constraint.size is {known}: set it to sizeof(sf_constraint), {size}")));
    }
    let handle = Box::new(Handle { constraint: make()?, error: CString::default() });
    let table = CConstraint {
        size: known,
        context: Box::into_raw(handle).cast(),
        accept,
        rollback,
        state,
        allows,
        mask,
        forced,
        choice_key,
        error,
        release,
    };
    unsafe { out.write(table) };
    Ok(OK)
}

/// Fills a caller's structure where nothing is restricted.
pub unsafe fn give_none(out: *mut CConstraint) -> Result<c_int> {
    need(out)?;
    unsafe { *out.cast::<usize>() = 0 };
    Ok(OK)
}

unsafe extern "C" fn accept(context: *mut c_void, token: i64) -> c_int {
    on(context, |constraint| constraint.accept(token))
}

unsafe extern "C" fn rollback(context: *mut c_void, n: i32) -> c_int {
    on(context, |constraint| constraint.rollback(n))
}

unsafe extern "C" fn state(context: *mut c_void, state: *mut i32) -> c_int {
    on(context, |constraint| {
        need(state)?;
        unsafe { *state = constraint.state()? };
        Ok(())
    })
}

unsafe extern "C" fn allows(context: *mut c_void, tokens: *const i64, n: i32, allowed: *mut u8) -> c_int {
    on(context, |constraint| {
        let n = count(n)?;
        let (tokens, allowed) = unsafe { (slice(tokens, n)?, slice_mut(allowed, n)?) };
        constraint.allows(tokens, allowed)
    })
}

unsafe extern "C" fn mask(context: *mut c_void, bits: *mut u32) -> c_int {
    on(context, |constraint| {
        let bits = unsafe { slice_mut(bits, constraint.mask_words()) }?;
        constraint.mask(bits)
    })
}

unsafe extern "C" fn forced(context: *mut c_void, tokens: *mut i64, room: i32, n: *mut i32) -> c_int {
    on(context, |constraint| {
        need(n)?;
        let tokens = unsafe { slice_mut(tokens, count(room)?) }?;
        let found = constraint.forced(tokens.len())?;
        for (place, &id) in tokens.iter_mut().zip(found) {
            *place = id.into();
        }
        unsafe { *n = found.len() as i32 };
        Ok(())
    })
}

unsafe extern "C" fn choice_key(context: *mut c_void, key: *mut u64) -> c_int {
    on(context, |constraint| {
        need(key)?;
        unsafe { *key = constraint.choice_key()? };
        Ok(())
    })
}

unsafe extern "C" fn error(context: *mut c_void) -> *const c_char {
    match unsafe { context.cast::<Handle>().as_ref() } {
        Some(handle) => handle.error.as_ptr(),
        None => c"the constraint is a null pointer".as_ptr(),
    }
}

unsafe extern "C" fn release(context: *mut c_void) {
    free(context.cast::<Handle>());
}

fn on(context: *mut c_void, body: impl FnOnce(&mut dyn Restriction) -> Result<()>) -> c_int {
    let Some(handle) = (unsafe { context.cast::<Handle>().as_mut() }) else {
        return BAD_ARGUMENT;
    };
    let Handle { constraint, error } = handle;
    guarded(error, || body(&mut **constraint).map(|()| OK))
}

unsafe fn slice_mut<'a, T>(data: *mut T, count: usize) -> Result<&'a mut [T]> {
    if count == 0 {
        return Ok(&mut []);
    }
    need(data)?;
    Ok(unsafe { std::slice::from_raw_parts_mut(data, count) })
}
