//! Panics of this library, caught with their message and location.
//!
//! Only a hook sees where a panic was. The hook here keeps that for the threads that are inside `caught`, whose panics
//! become errors, and hands every other panic of the process to the hook that was there before.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{catch_unwind, set_hook, take_hook, AssertUnwindSafe};
use std::sync::Once;
use std::thread;

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    static LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `body`. A panic in it prints nothing and is the error, as "file:line:column: message".
pub fn caught<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    install_hook();
    let was_inside = IS_INSIDE.replace(true);
    let result = catch_unwind(AssertUnwindSafe(body));
    IS_INSIDE.set(was_inside);
    result.map_err(|payload| {
        let message = message(&*payload);
        match LOCATION.take() {
            Some(location) => format!("{location}: {message}"),
            None => message.to_owned(), // somebody has set another hook since
        }
    })
}

fn install_hook() {
    static ONCE: Once = Once::new();
    if thread::panicking() {
        return; // a panic that unwinds through a caller: the hook cannot be changed now
    }
    ONCE.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |panic| {
            if IS_INSIDE.try_with(Cell::get).unwrap_or(false) {
                LOCATION.set(panic.location().map(ToString::to_string));
            } else {
                others(panic);
            }
        }));
    });
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no reason was given")
}
