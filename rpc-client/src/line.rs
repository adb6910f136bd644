//! Callers that wait on a connection, in the order in which they came.
//!
//! As many of them may go on as there is room for, the first ones. Whatever makes room for more wakes those whose
//! turn it has become; one that leaves moves those behind it up. A place is kept until its call has been sent, so
//! that nobody who comes meanwhile is taken for the first in line.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
};

use crate::connection::{Connection, State, keep, wake};

/// Who waits for one thing.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// By rising numbers; without a waker who was woken, or has not looked yet.
    places: VecDeque<(u64, Option<Waker>)>,
    next: u64,
}

impl Line {
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Gives back what is kept for those who wait next.
    pub(crate) fn let_go(&mut self) {
        self.places.shrink_to_fit();
    }

    /// A place behind all others.
    fn join(&mut self) -> u64 {
        self.next += 1;
        self.places.push_back((self.next, None));
        self.next
    }

    /// The waker that was kept is dropped outside of the lock.
    fn leave(&mut self, number: u64) -> Option<Waker> {
        self.places.remove(self.find(number)?)?.1
    }

    /// Whether this place is one of the first `free`.
    ///
    /// # Errors
    ///
    /// It is not, and `waker` is woken when it is. The one that it replaces is dropped outside of the lock.
    fn poll(&mut self, number: u64, free: usize, waker: &Waker) -> Result<(), Option<Waker>> {
        match self.find(number).filter(|&at| at >= free) {
            Some(at) => Err(keep(&mut self.places[at].1, waker)),
            None => Ok(()),
        }
    }

    /// The waker of the last of the first `free`, who was not one of them before.
    pub(crate) fn next(&mut self, free: usize) -> Option<Waker> {
        self.places.get_mut(free.checked_sub(1)?)?.1.take()
    }

    /// Adds the wakers of the first `free` to `woken`.
    pub(crate) fn wake(&mut self, free: usize, woken: &mut Vec<Waker>) {
        woken.extend(self.places.iter_mut().take(free).filter_map(|(_, waker)| waker.take()));
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.places.binary_search_by_key(&number, |&(number, _)| number).ok()
    }
}

/// A place in a line. Its drop leaves it to those behind.
pub(crate) struct Place {
    connection: Arc<Connection>,
    line: fn(&mut State) -> &mut Line,
    number: u64,
}

impl Place {
    fn behind_all(connection: &Arc<Connection>, line: fn(&mut State) -> &mut Line) -> Self {
        let number = line(&mut connection.lock()).join();
        Self { connection: Arc::clone(connection), line, number }
    }

    /// Waits until `free` says that there is room for this place, or no more calls are taken.
    async fn turn(&self, free: fn(&State) -> usize) {
        poll_fn(|cx| {
            let mut state = self.connection.lock();
            if state.ended.is_some() || state.closing {
                return Poll::Ready(());
            }
            let free = free(&state);
            let polled = (self.line)(&mut state).poll(self.number, free, cx.waker());
            drop(state);
            polled.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (_own, next) = {
            let mut state = self.connection.lock();
            ((self.line)(&mut state).leave(self.number), state.next_for_room())
        };
        wake(next);
    }
}

impl Connection {
    /// Waits until there is room for one more call, or no more calls are taken. The place is kept until the call
    /// has been sent; `kept` is one that had its turn and found that there was no room after all.
    ///
    /// # Cancel safety
    ///
    /// A turn that a dropped future had goes to the next one.
    pub(crate) async fn wait_for_room(self: &Arc<Self>, kept: Option<Place>) -> Place {
        let place = kept.unwrap_or_else(|| Place::behind_all(self, |state| &mut state.room));
        place.turn(State::free).await;
        place
    }

    /// Waits until the server has said what it takes, or no more calls are taken.
    pub(crate) async fn wait_for_greeting(self: &Arc<Self>) {
        let all_or_none = |state: &State| if state.greeted { usize::MAX } else { 0 };
        Place::behind_all(self, |state| &mut state.greeting).turn(all_or_none).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(places: usize) -> Line {
        let mut line = Line::default();
        for _ in 0..places {
            let number = line.join();
            assert!(line.poll(number, 0, Waker::noop()).is_err());
        }
        line
    }

    #[test]
    fn as_many_go_on_as_there_is_room_for_and_the_first_to_come_are_first() {
        let mut line = waiting(3);
        assert!(line.poll(1, 1, Waker::noop()).is_ok() && line.poll(2, 1, Waker::noop()).is_err());
        assert!(line.poll(2, 2, Waker::noop()).is_ok() && line.poll(3, 2, Waker::noop()).is_err());
    }

    #[test]
    fn who_leaves_moves_those_behind_up() {
        let mut line = waiting(3);
        line.leave(1);
        assert!(line.next(1).is_some() && line.next(1).is_none(), "it is woken once");
        assert!(line.poll(2, 1, Waker::noop()).is_ok() && line.poll(3, 1, Waker::noop()).is_err());
        line.leave(3);
        line.leave(2);
        assert!(line.is_empty() && line.next(1).is_none() && line.next(0).is_none());
    }

    #[test]
    fn of_a_long_line_nothing_is_kept_when_it_is_let_go() {
        let mut line = waiting(1_000);
        (1..=1_000).for_each(|number| drop(line.leave(number)));
        assert!(line.places.capacity() >= 1_000);
        line.let_go();
        assert_eq!(line.places.capacity(), 0);
    }

    #[test]
    fn room_for_several_wakes_so_many() {
        let (mut line, mut woken) = (waiting(3), Vec::new());
        line.wake(2, &mut woken);
        assert_eq!(woken.len(), 2);
        line.wake(usize::MAX, &mut woken);
        assert_eq!((woken.len(), line.len()), (3, 3), "a place is kept until it is left");
    }
}
