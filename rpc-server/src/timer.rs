//! The one timer of a connection.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use tokio::time::{Sleep, sleep_until};

use crate::writer::poll_io;

/// Wakes the connection when the earliest of its deadlines is due.
///
/// It is armed only to come earlier. One that fires with nothing due is armed anew, which costs less
/// than moving it for every call.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
    armed: Option<Instant>,
    /// Whether the task that polls us now will be woken.
    wakes: bool,
}

impl Timer {
    /// Notes that another task polls from now on.
    pub(crate) fn task_changed(&mut self) {
        self.wakes = false;
    }

    /// Arms the timer for `due` unless it comes earlier anyway. `true` when it has fired.
    ///
    /// What is armed and wakes us is not looked at before its time, as of `now`: every connection has
    /// a timer, and most turns of a busy one have no use for it.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, now: Instant, due: Option<Instant>) -> bool {
        let Some(due) = due else { return false };
        if self.wakes && self.armed.is_some_and(|armed| now < armed && armed <= due) {
            return false;
        }
        if self.armed.is_none_or(|armed| due < armed) {
            self.armed = Some(due);
            match &mut self.sleep {
                Some(sleep) => sleep.as_mut().reset(due.into()),
                None => self.sleep = Some(Box::pin(sleep_until(due.into()))),
            }
        }
        let Some(sleep) = &mut self.sleep else { return false };
        let fired = poll_io(cx, |cx| sleep.as_mut().poll(cx));
        self.wakes = fired.is_pending();
        if fired == Poll::Ready(()) {
            self.armed = None;
        }
        fired.is_ready()
    }
}
