//! Work that nests as deep as a stranger's text does, on a stack of its own: the callers' may be small.

use std::thread;

use crate::panics::caught;

/// Runs `work` on a thread that ends before this returns. The error is a panic of `work`, or that there is no thread.
pub fn on_a_stack<T: Send>(
    name: &str,
    bytes: usize,
    work: impl FnOnce() -> T + Send,
) -> std::result::Result<T, String> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(name.to_owned()).stack_size(bytes);
        match thread.spawn_scoped(scope, || caught(work)) {
            Ok(running) => {
                let result = running.join().unwrap_or_else(|_| Err("its thread ended".to_owned()));
                result.map_err(|panic| format!("it cannot be run, please report this: {panic}"))
            }
            Err(error) => Err(format!("there is no memory for a stack of {bytes} bytes: {error}")),
        }
    })
}
