//! Frames that wait to be written, and how those of a call that was given up are taken out again.
//!
//! A queue is a buffer of whole frames, of whose front some may have left. Nothing is kept about the
//! single frame: who gives a call up, or loses the connection, has time to look for its frames, and
//! whoever sends one has not.

use rpc_codec::QueuedFrame;
use rpc_core::CallId;

/// A call that was given up before it was answered, until the connection's task has seen to it.
#[derive(Debug)]
pub(crate) struct Withdrawal {
    pub(crate) id: CallId,
    /// Part of its request never leaves, so the service cannot have been given it.
    pub(crate) incomplete: bool,
    /// Nothing of its request leaves: for the server the call has never been.
    pub(crate) unopened: bool,
    /// Not all that is sent of it belongs to its request.
    has_items: bool,
}

impl Withdrawal {
    /// Of a call with parts of its request to come, or without.
    pub(crate) fn new(id: CallId, has_parts_to_come: bool) -> Self {
        Self { id, incomplete: has_parts_to_come, unopened: false, has_items: false }
    }

    /// The same of a call that has items, or has none.
    pub(crate) fn with_items(self, has_items: bool) -> Self {
        Self { has_items, ..self }
    }
}

/// Takes the frames of these calls, which are sorted, out of a queue of which `sent` bytes have left.
/// A frame that has begun to leave stays.
///
/// One pass, whatever the number of calls: what is kept moves once.
pub(crate) fn take_out(frames: &mut Vec<u8>, sent: usize, withdrawals: &mut [Withdrawal]) {
    // What stands before `kept` is where it belongs, and what stands from `run` to `at` is kept, too.
    let (mut at, mut kept, mut run) = (0, 0, 0);
    while let Some(frame) = QueuedFrame::at(frames, at) {
        if at >= sent && is_withdrawn(&frame, withdrawals) {
            kept = close_up(frames, kept, run, at);
            run = frame.range.end;
        }
        at = frame.range.end;
    }
    kept = close_up(frames, kept, run, at);
    frames.truncate(kept);
}

fn is_withdrawn(frame: &QueuedFrame, withdrawals: &mut [Withdrawal]) -> bool {
    let Ok(found) = withdrawals.binary_search_by_key(&frame.id, |withdrawal| withdrawal.id) else { return false };
    let withdrawal = &mut withdrawals[found];
    withdrawal.incomplete |= frame.opens_call() || !withdrawal.has_items;
    withdrawal.unopened |= frame.opens_call();
    true
}

/// Moves what stands from `run` to `end` behind what is kept, and says where that ends then.
fn close_up(frames: &mut [u8], kept: usize, run: usize, end: usize) -> usize {
    if kept != run {
        frames.copy_within(run..end, kept);
    }
    kept + (end - run)
}

/// Adds the calls to `ids` of whose requests a frame has not left completely, when `sent` bytes of the
/// queue have. Those that have items stop counting with their REQUEST: what follows may be a part of an
/// item.
pub(crate) fn add_unsent(frames: &[u8], sent: usize, has_items: impl Fn(CallId) -> bool, ids: &mut Vec<CallId>) {
    let mut at = 0;
    while let Some(frame) = QueuedFrame::at(frames, at) {
        at = frame.range.end;
        if at > sent && (frame.opens_call() || (frame.is_part() && !has_items(frame.id))) {
            ids.push(frame.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use rpc_codec::{CodecId, OpenMessage, RequestHead, SendBounds, encode_cancel};
    use rpc_core::{Metadata, MethodId};

    use super::*;

    fn call(sequence: u64) -> CallId {
        CallId::new(sequence, 0)
    }

    fn add_request(frames: &mut Vec<u8>, id: CallId, body_len: usize) {
        let head = RequestHead {
            method: MethodId::of("test", "queue"),
            timeout_us: 0,
            sent_at_us: 0,
            codec: CodecId::BYTES,
            compression: 0,
            priority: 0,
            attempt: 0,
        };
        let message = OpenMessage::request(frames, &head, &Metadata::new());
        frames.resize(frames.len() + body_len, 7);
        let bounds = SendBounds { max_frame: 1 << 20, max_message: 1 << 20 };
        assert!(message.finish(frames, id, bounds).unwrap().is_none());
    }

    /// Requests of calls 1 to `calls`, with where each begins.
    fn requests(calls: u64) -> (Vec<u8>, Vec<usize>) {
        let (mut frames, mut starts) = (Vec::new(), Vec::new());
        for sequence in 1..=calls {
            starts.push(frames.len());
            add_request(&mut frames, call(sequence), 10 * sequence as usize);
        }
        (frames, starts)
    }

    fn ids(frames: &[u8]) -> Vec<u64> {
        let mut ids = Vec::new();
        add_unsent(frames, 0, |_| false, &mut ids);
        ids.iter().map(|id| id.sequence()).collect()
    }

    fn withdraw(frames: &mut Vec<u8>, sent: usize, calls: &[u64]) -> Vec<bool> {
        let mut withdrawals: Vec<_> = calls.iter().map(|&n| Withdrawal::new(call(n), false)).collect();
        take_out(frames, sent, &mut withdrawals);
        assert!(withdrawals.iter().all(|withdrawal| withdrawal.incomplete == withdrawal.unopened));
        withdrawals.iter().map(|withdrawal| withdrawal.unopened).collect()
    }

    #[test]
    fn any_calls_are_taken_out_of_a_queue_and_the_others_stay_as_they_are() {
        for subset in 0_u64..1 << 6 {
            let (mut frames, _) = requests(6);
            let gone: Vec<u64> = (1..=6).filter(|n| subset >> (n - 1) & 1 == 1).collect();
            let mut expected = Vec::new();
            for n in (1..=6).filter(|n| !gone.contains(n)) {
                add_request(&mut expected, call(n), 10 * n as usize);
            }
            assert!(withdraw(&mut frames, 0, &gone).iter().all(|&unopened| unopened));
            assert_eq!(frames, expected, "{gone:?}");
        }
    }

    #[test]
    fn a_frame_of_which_a_byte_has_left_stays_and_one_of_which_none_has_goes() {
        let (frames, starts) = requests(3);
        for (sent, goes) in [(starts[1], true), (starts[1] + 1, false), (starts[2], false)] {
            let mut queue = frames.clone();
            assert_eq!(withdraw(&mut queue, sent, &[2]), [goes], "{sent} bytes have left");
            assert_eq!(ids(&queue), if goes { vec![1, 3] } else { vec![1, 2, 3] });
        }
    }

    #[test]
    fn of_a_request_in_parts_those_go_that_have_not_begun_to_leave() {
        let mut frames = Vec::new();
        add_request(&mut frames, call(1), 5);
        let start = frames.len();
        // Whatever opens no call stands for a part here.
        encode_cancel(&mut frames, call(1));
        add_request(&mut frames, call(2), 5);
        let mut withdrawals = [Withdrawal::new(call(1), false)];
        take_out(&mut frames, start, &mut withdrawals);
        assert!(withdrawals[0].incomplete && !withdrawals[0].unopened);
        assert_eq!(ids(&frames), [1, 2]);
        take_out(&mut frames, 0, &mut withdrawals);
        assert!(withdrawals[0].unopened);
        assert_eq!(ids(&frames), [2]);
    }

    #[test]
    fn a_call_is_unsent_until_its_last_byte_has_left() {
        let (frames, starts) = requests(3);
        for (sent, unsent) in [(0, 3), (starts[1] - 1, 3), (starts[1], 2), (frames.len() - 1, 1), (frames.len(), 0)] {
            let mut ids = Vec::new();
            add_unsent(&frames, sent, |_| false, &mut ids);
            assert_eq!(ids.len(), unsent, "{sent} bytes have left");
        }
    }
}
