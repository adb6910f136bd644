//! What the other end of a connection owes to the rules of bodies and streams: whole bodies, items that were
//! paid for, credit for items that were sent, and nothing behind an end.

use std::collections::HashMap;

use rpc_codec::{CallKind, charge};
use rpc_core::CallId;

/// The calls of one connection, as far as their bodies and items go.
///
/// What the script's end has written may not have been read yet, so the other end may know less than is
/// noted here: it is held to what it could know at most.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    /// What the other end may send of a stream before it is given credit.
    window: i64,
    calls: HashMap<CallId, Flow>,
}

/// One call.
#[derive(Debug, Default)]
struct Flow {
    /// Whether the other end may send items, once the call has been opened.
    sends: bool,
    /// Whether it may give credit.
    takes: bool,
    /// The other end has said its last.
    over: bool,
    /// It sends no more items.
    ended: bool,
    /// What is to come of a body or an item that was begun.
    unfinished: Option<u64>,
    /// The credit that it was given, the window aside, less what its items cost.
    credit: i64,
    /// What it was sent, less the credit that it gave for it.
    owes: i64,
}

impl Flows {
    pub(crate) fn new(window: u32) -> Self {
        Self { window: window.into(), calls: HashMap::new() }
    }

    /// The script's end has named its window, which counts for every stream.
    pub(crate) fn set_window(&mut self, window: u32) {
        self.window = window.into();
    }

    /// The other end, a client, has opened a call.
    pub(crate) fn asks(&mut self, id: CallId, kind: CallKind) {
        self.open(id, kind.client_sends(), kind.server_sends());
    }

    /// The other end, a server, has been asked.
    pub(crate) fn is_asked(&mut self, id: CallId, kind: CallKind) {
        self.open(id, kind.server_sends(), kind.client_sends());
    }

    /// The script's end has given credit.
    pub(crate) fn give(&mut self, id: CallId, bytes: u32) {
        self.calls.entry(id).or_default().credit += i64::from(bytes);
    }

    /// The script's end has begun an item.
    pub(crate) fn send(&mut self, id: CallId, len: u32) {
        self.calls.entry(id).or_default().owes += charge(len as usize);
    }

    /// The other end has begun a body of `len` bytes.
    pub(crate) fn body(&mut self, id: CallId, len: u32, part: &[u8], more: bool) {
        let flow = self.calls.entry(id).or_default();
        assert!(!flow.over, "{id} has ended, and has a body");
        flow.begin(id, len, part, more);
    }

    /// The other end has begun an item of `len` bytes.
    pub(crate) fn item(&mut self, id: CallId, len: u32, part: &[u8], more: bool) {
        let window = self.window;
        let flow = self.calls.entry(id).or_default();
        assert!(flow.sends && !flow.ended && !flow.over, "{id} has no items, or no more: {flow:?}");
        assert!(flow.unfinished.is_none(), "an item of {id} comes within something else");
        assert!(window + flow.credit > 0, "an item of {id} was not paid for: {window}, {flow:?}");
        flow.credit -= charge(len as usize);
        flow.begin(id, len, part, more);
    }

    /// The other end goes on with a body or an item.
    pub(crate) fn part(&mut self, id: CallId, part: &[u8], more: bool) {
        let flow = self.calls.entry(id).or_default();
        let left = flow.unfinished.expect("there is something to go on with");
        flow.unfinished = left.checked_sub(part.len() as u64);
        assert!(flow.unfinished.is_some_and(|left| (left > 0) == more), "{id}: {left} were left, of {}", part.len());
        flow.unfinished = flow.unfinished.filter(|_| more);
    }

    /// The other end has given credit.
    pub(crate) fn credit(&mut self, id: CallId, bytes: u32) {
        let flow = self.calls.entry(id).or_default();
        assert!(flow.takes && !flow.over, "{id} takes no items, or no more: {flow:?}");
        flow.owes -= i64::from(bytes);
        assert!(bytes > 0 && flow.owes >= 0, "{id}: credit for nothing, {bytes} bytes: {flow:?}");
    }

    /// The other end, a client, has sent its last item.
    pub(crate) fn end(&mut self, id: CallId) {
        let flow = self.calls.entry(id).or_default();
        assert!(flow.sends && !flow.ended && !flow.over && flow.unfinished.is_none(), "{id} ends no stream: {flow:?}");
        flow.ended = true;
    }

    /// The other end, a client, has given the call up.
    pub(crate) fn cancel(&mut self, id: CallId) {
        let flow = self.calls.get_mut(&id).expect("it was opened");
        assert!(!flow.over, "{id} is cancelled twice");
        flow.over = true;
        // The rest of a body, or of an item, does not follow.
        flow.unfinished = None;
    }

    /// The other end, a server, has ended the call with a body of `len` bytes; `cut` if it need not have sent
    /// the rest of an item.
    pub(crate) fn answer(&mut self, id: CallId, cut: bool, len: u32, part: &[u8], more: bool) {
        let flow = self.calls.entry(id).or_default();
        assert!(!flow.over, "{id} is answered twice");
        flow.over = true;
        assert!(cut || flow.unfinished.is_none(), "{id} ends well within an item");
        flow.unfinished = None;
        flow.begin(id, len, part, more);
    }

    fn open(&mut self, id: CallId, other_sends: bool, other_takes: bool) {
        let flow = self.calls.entry(id).or_default();
        // Of two with one id only one has been opened.
        flow.sends |= other_sends;
        flow.takes |= other_takes;
    }
}

impl Flow {
    fn begin(&mut self, id: CallId, len: u32, part: &[u8], more: bool) {
        let left = u64::from(len).checked_sub(part.len() as u64);
        assert!(left.is_some_and(|left| (left > 0) == more), "{id}: {} bytes of {len}, more: {more}", part.len());
        self.unfinished = left.filter(|_| more);
    }
}
