//! What a connection was worth when the client and it part.

use std::{io, sync::Arc};

use crate::{
    connection::{Connection, State},
    error::LostCause,
};

/// How the client and its connection have parted. The client decides by it, and by nothing else, when the next attempt
/// may be made.
#[derive(Debug)]
pub(crate) enum Parting {
    /// The server has answered a call. It takes no more of them here, and those that are out go on.
    Left,
    /// The server has answered a call, and the connection has ended.
    Lost,
    /// The server has answered nothing, and drains, as it says.
    InVain(LostCause),
    /// The server has answered nothing, and something went wrong.
    Failed(LostCause),
    /// The server drains, and has accepted calls that it has not answered yet: what it was worth is known when those
    /// have ended.
    Undecided,
    /// The connection has ended with its runtime, which is no fault of the server's.
    OwnDoing,
}

impl Connection {
    /// How the client parts with a connection that takes no more calls, while those that are out are waited for. `None` if
    /// it has come to its end: then its task is about to say how.
    pub(crate) fn left(&self) -> Option<Parting> {
        let mut state = self.lock();
        if state.is_about_to_part() {
            return None;
        }
        state.left_undecided = state.drains() && !state.proved && state.slots.waiting().next().is_some();
        Some(match state.farewell() {
            _ if state.proved => Parting::Left,
            _ if state.left_undecided => Parting::Undecided,
            Some(why) if state.drains() => Parting::InVain(why),
            Some(why) => Parting::Failed(why),
            // It has used up its ids.
            None => Parting::OwnDoing,
        })
    }

    /// How the client parts with a connection that has ended like this; `in_peace` if one end had taken its leave and
    /// nothing was out any more.
    pub(crate) fn parted(&self, cause: &LostCause, in_peace: bool) -> Parting {
        let state = self.lock();
        match state.farewell() {
            _ if state.proved => Parting::Lost,
            Some(why) if in_peace && state.drains() => Parting::InVain(why),
            _ => Parting::Failed(state.said(cause)),
        }
    }

    /// How the client parts with a connection whose task was dropped before its end: with its runtime, or by a panic of
    /// its transport, which may happen again at once.
    pub(crate) fn dropped(&self) -> Parting {
        match std::thread::panicking() {
            false => Parting::OwnDoing,
            true if self.lock().proved => Parting::Lost,
            true => Parting::Failed(LostCause::Io(Arc::new(io::Error::other("the connection's task panicked")))),
        }
    }

    /// Whether it was left as [`Parting::Undecided`]: its end says what it was worth.
    pub(crate) fn was_left_undecided(&self) -> bool {
        self.lock().left_undecided
    }

    /// Whether its task is about to part with it: until then nobody else does, or what it was worth would be lost.
    pub(crate) fn is_about_to_part(&self) -> bool {
        self.lock().is_about_to_part()
    }
}

impl State {
    /// It is over, or will be soon: before its task is polled again if the server has told it to go in place of a HELLO, and
    /// when that has read what is left if nothing can be written.
    fn is_about_to_part(&self) -> bool {
        self.over || self.broken || (self.ended.is_some() && !self.greeted)
    }
}
