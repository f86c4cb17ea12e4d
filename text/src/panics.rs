//! Catches panics of this library, with their message and location.
//!
//! The location of a panic is only available to a panic hook. This hook records it for threads that are inside
//! `caught`, whose panics become errors, and passes all other panics of the process to the previous hook.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{catch_unwind, set_hook, take_hook, AssertUnwindSafe};
use std::sync::Once;
use std::thread;

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    static LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `body`. A panic in it prints nothing and becomes the error "file:line:column: message".
pub fn caught<T>(body: impl FnOnce() -> T) -> Result<T, String> {
    install_hook();
    let was_inside = IS_INSIDE.replace(true);
    let result = catch_unwind(AssertUnwindSafe(body));
    IS_INSIDE.set(was_inside);
    result.map_err(|payload| {
        let message = message(&*payload);
        match LOCATION.take() {
            Some(location) => format!("{location}: {message}"),
            None => message.to_owned(), // the hook was replaced in the meantime
        }
    })
}

fn install_hook() {
    static ONCE: Once = Once::new();
    if thread::panicking() {
        return; // during a panic of a caller, the hook cannot be changed
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
