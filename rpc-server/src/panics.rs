//! Where panics of user code end.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use tokio::task::JoinError;

/// User code panicked. Its text has been logged; nobody else is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panicked;

/// Runs user code of `what`, and ends a panic of it here.
///
/// Unwinding safely is up to who calls: what the code may have left half done must not be used again.
pub(crate) fn contain<R>(what: &'static str, run: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| end(what, panic))
}

/// Drops a value of the user's; whether that panicked.
pub(crate) fn drop_contained<T>(what: &'static str, value: T) -> bool {
    contain(what, || drop(value)).is_err()
}

/// Logs a panic that was caught elsewhere, and gets rid of it.
#[cold]
pub(crate) fn end(what: &'static str, panic: Box<dyn Any + Send>) -> Panicked {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(what, panic = text.unwrap_or("of unknown type"), "user code panicked");
    // What was thrown is the user's too, and its drop may panic. What that throws is leaked: somewhere
    // it has to end.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        Box::leak(again);
    }
    Panicked
}

/// Ends the panic of a task; `false` if it was cancelled.
pub(crate) fn end_of_task(error: JoinError) -> bool {
    error.try_into_panic().map(|panic| end("a task", panic)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    /// Panics when dropped, with another of its kind, without end.
    struct Endless;

    impl Drop for Endless {
        fn drop(&mut self) {
            panic_any(Self);
        }
    }

    #[test]
    fn a_panic_ends_here_even_if_what_it_throws_panics_when_dropped() {
        assert_eq!(contain("a test", || 7), Ok(7));
        assert_eq!(contain("a test", || -> u8 { panic!("with a text") }), Err(Panicked));
        assert_eq!(contain("a test", || -> u8 { panic_any(Endless) }), Err(Panicked));
        assert!(drop_contained("a test", Endless));
        assert!(!drop_contained("a test", 7));
    }
}
