//! The flow of items: what may be sent, what has been received, and when credit is given back.
//!
//! Pure functions of buffers, used by both ends: [`Outflow`] at the end that sends a stream's items,
//! [`Inflow`] where they arrive, [`Intake`] where they are consumed. The sum
//!
//! ```text
//! credit at the sender + charges under way + charges received and not taken
//!     + charges taken and not given back + credit under way  =  the window
//! ```
//!
//! holds at every moment, and every term but the first is at least zero; the first falls below by one
//! item at most. So what a receiver has and was not consumed is the window and one item at most, and a sender without
//! credit gets some when the consumer has taken half the window. A batch is in memory until its last item has been
//! taken, beside what comes for the credit of its first ones.

use std::{collections::VecDeque, mem};

use crate::{
    error::FlowError,
    parts::{Assembly, PART_LEN},
    queued::QueuedFrame,
};

/// What an item of `len` bytes costs of a stream's credit: an empty one costs work as well.
#[inline]
pub const fn charge(len: usize) -> i64 {
    if len < MIN_CHARGE { MIN_CHARGE as i64 } else { len as i64 }
}

/// How many frames an honest sender with `credit` left may have sent that have not arrived.
pub const fn late_frames(credit: i64) -> u64 {
    if credit <= 0 { 0 } else { (credit as u64).div_ceil(MIN_CHARGE as u64) }
}

/// Whole frames that wait to be sent, one behind the other.
#[derive(Debug, Default)]
pub struct FrameQueue {
    frames: Vec<u8>,
    /// Bytes at the front that have been taken out.
    taken: usize,
}

impl FrameQueue {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.frames.len() - self.taken
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts the frames of `batch`, which is left empty, behind those that wait.
    pub fn append(&mut self, batch: &mut Vec<u8>) {
        if self.is_empty() {
            self.taken = 0;
            self.frames.clear();
            mem::swap(&mut self.frames, batch);
        } else {
            // What moves is no more than what has been taken since it moved last, so it costs no more than that did.
            if self.taken >= self.frames.len() / 2 {
                self.frames.drain(..mem::take(&mut self.taken));
            }
            self.frames.append(batch);
        }
    }

    /// Moves frames of about a part's length to `out`, at least one if any waits; whether there are more.
    pub fn take_part(&mut self, out: &mut Vec<u8>) -> bool {
        let end = if self.len() <= PART_LEN + PART_LEN / 2 { self.frames.len() } else { self.end_of_part() };
        out.extend_from_slice(&self.frames[self.taken..end]);
        self.taken = end;
        if !self.is_empty() {
            return true;
        }
        self.taken = 0;
        self.frames.clear();
        if self.frames.capacity() > MAX_KEPT_LEN {
            self.frames = Vec::new();
        }
        false
    }

    /// Moves all frames to `out`.
    pub fn take_all(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.frames[self.taken..]);
        self.clear();
    }

    /// Forgets what waits.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn end_of_part(&self) -> usize {
        let mut end = self.taken;
        while let Some(frame) = QueuedFrame::at(&self.frames, end) {
            if end > self.taken && frame.range.end - self.taken > PART_LEN {
                break;
            }
            end = frame.range.end;
        }
        end
    }
}

/// The sending end of a stream: what waits to be sent, and how much more may be.
#[derive(Debug)]
pub struct Outflow {
    /// Items that were paid for.
    pub queue: FrameQueue,
    credit: i64,
    /// Items for which no CREDIT has come yet.
    unanswered: u64,
}

impl Outflow {
    /// A stream to a receiver with this window.
    pub fn new(window: u32) -> Self {
        Self { queue: FrameQueue::default(), credit: window.into(), unanswered: 0 }
    }

    /// What may be sent; below zero after an item that was longer.
    pub fn credit(&self) -> i64 {
        self.credit
    }

    /// Whether one more item may be put into the queue, when `threshold` bytes may be pending.
    pub fn is_ready(&self, threshold: usize) -> bool {
        self.credit > 0 && self.queue.len() < threshold
    }

    /// Puts `items` into the queue whose charges are `charged`, and leaves `batch` empty.
    pub fn push(&mut self, batch: &mut Vec<u8>, items: u64, charged: i64) {
        self.queue.append(batch);
        self.credit -= charged;
        self.unanswered += items;
    }

    /// Adds credit that the receiver has given. Whether an item has paid for the frame that said so.
    ///
    /// # Errors
    ///
    /// It is more than can be kept.
    pub fn add_credit(&mut self, bytes: u32) -> Result<bool, FlowError> {
        let credit = self.credit + i64::from(bytes);
        if credit > u32::MAX.into() {
            return Err(FlowError::CreditOverflow);
        }
        self.credit = credit;
        let paid = self.unanswered > 0;
        self.unanswered -= u64::from(paid);
        Ok(paid)
    }

    /// The receiver's window is so much wider than it was taken for.
    pub fn widen(&mut self, bytes: u32) {
        self.credit += i64::from(bytes);
    }

    /// How many CREDIT frames of an honest receiver with this window may be under way.
    pub fn credits_to_come(&self, window: u32) -> u64 {
        self.unanswered.min(late_frames(window.into()) + 1)
    }
}

/// The receiving end of a stream: items that have arrived and were not taken.
#[derive(Debug)]
pub struct Inflow {
    /// Whole items, each behind its length.
    items: Vec<u8>,
    /// An item of which parts are still to come.
    assembly: Option<Assembly>,
    credit: i64,
    ended: bool,
    /// Nobody takes them any more.
    unwanted: bool,
}

impl Inflow {
    /// A stream whose sender was promised `window`.
    pub fn new(window: u32) -> Self {
        Self { items: Vec::new(), assembly: None, credit: window.into(), ended: false, unwanted: false }
    }

    /// Adds an item, or its first part. Whether one is complete.
    ///
    /// # Errors
    ///
    /// The sender broke a rule.
    #[inline]
    pub fn add(&mut self, len: u32, part: &[u8], more: bool, max: u32) -> Result<bool, FlowError> {
        self.check(len, max)?;
        self.credit -= charge(len as usize);
        if more {
            self.assembly = Some(Assembly::begin(len, part));
            return Ok(false);
        }
        self.keep(part);
        Ok(true)
    }

    /// Whether an item of `len` bytes may come now.
    ///
    /// # Errors
    ///
    /// Those of [`Inflow::add`].
    #[inline]
    pub fn check(&self, len: u32, max: u32) -> Result<(), FlowError> {
        if self.credit <= 0 || self.ended || self.assembly.is_some() || len > max {
            return Err(self.refuse(len, max));
        }
        Ok(())
    }

    /// Adds a further part of an item. Whether it is complete.
    ///
    /// # Errors
    ///
    /// The sender broke a rule.
    pub fn add_part(&mut self, part: &[u8], more: bool) -> Result<bool, FlowError> {
        let Some(assembly) = &mut self.assembly else { return Err(FlowError::WithoutItem) };
        if !assembly.add(part, more)? {
            return Ok(false);
        }
        let item = assembly.take();
        self.assembly = None;
        self.keep(&item);
        Ok(true)
    }

    /// Notes that the sender has ended the stream.
    ///
    /// # Errors
    ///
    /// It had done so, or is in the middle of an item.
    pub fn end(&mut self) -> Result<(), FlowError> {
        if self.assembly.is_some() {
            return Err(FlowError::WithinItem);
        }
        if mem::replace(&mut self.ended, true) { Err(FlowError::AfterEnd) } else { Ok(()) }
    }

    /// Whether the sender has ended the stream.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether parts of an item are to come.
    pub fn is_within_item(&self) -> bool {
        self.assembly.is_some()
    }

    /// Notes credit that the sender is given.
    pub fn give(&mut self, bytes: u32) {
        self.credit += i64::from(bytes);
    }

    /// What the sender may still send, as far as we know.
    pub fn credit(&self) -> i64 {
        self.credit
    }

    /// Bytes that have arrived and were not taken.
    pub fn len(&self) -> usize {
        self.items.len() + self.assembly.as_ref().map_or(0, |assembly| assembly.received().len())
    }

    /// Whether nothing is there to be taken.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Nobody takes items any more: those that are there are dropped, and those that come as well.
    pub fn stop(&mut self) {
        self.unwanted = true;
        self.items = Vec::new();
    }

    /// Nothing comes any more: what is there is dropped, the parts of an item as well.
    pub fn close(&mut self) {
        self.stop();
        self.assembly = None;
    }

    /// Whether items that come are kept.
    pub fn is_wanted(&self) -> bool {
        !self.unwanted
    }

    fn keep(&mut self, item: &[u8]) {
        if !self.unwanted {
            self.items.reserve(4 + item.len());
            self.items.extend_from_slice(&(item.len() as u32).to_ne_bytes());
            self.items.extend_from_slice(item);
        }
    }

    #[cold]
    fn refuse(&self, len: u32, max: u32) -> FlowError {
        match self {
            Self { ended: true, .. } => FlowError::AfterEnd,
            Self { assembly: Some(_), .. } => FlowError::WithinItem,
            _ if len > max => FlowError::ItemTooLong { len, max },
            _ => FlowError::BeyondCredit,
        }
    }
}

/// What a consumer has taken: a batch of items, and the credit that it owes for them.
#[derive(Debug)]
pub struct Intake {
    batch: Vec<u8>,
    at: usize,
    /// Charges of items that were taken, to be given back.
    owed: u64,
    /// So much is given back at once.
    share: u64,
    manual: Option<Manual>,
}

/// Credit is given back for as many items as were asked for.
#[derive(Debug, Default)]
struct Manual {
    requested: u64,
    /// Charges of items that were taken without having been asked for.
    unasked: VecDeque<u32>,
}

impl Intake {
    /// Of a stream with this window.
    pub fn new(window: u32) -> Self {
        Self { batch: Vec::new(), at: 0, owed: 0, share: (u64::from(window) / 2).max(1), manual: None }
    }

    /// Takes all items that have arrived, when those of the batch have been consumed. Whether there are any.
    pub fn refill(&mut self, inflow: &mut Inflow) -> bool {
        debug_assert!(self.is_empty());
        self.at = 0;
        self.batch.clear();
        if self.batch.capacity() > MAX_KEPT_LEN {
            self.batch = Vec::new();
        }
        mem::swap(&mut self.batch, &mut inflow.items);
        if self.is_empty() {
            // Whoever waits for items has hardly more than a call that waits for anything else.
            for buffer in [&mut self.batch, &mut inflow.items] {
                if buffer.capacity() > MAX_IDLE_LEN {
                    *buffer = Vec::new();
                }
            }
        }
        !self.is_empty()
    }

    /// Whether the batch has been consumed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at == self.batch.len()
    }

    /// Bytes of the batch that were not consumed.
    pub fn len(&self) -> usize {
        self.batch.len() - self.at
    }

    /// The next item of the batch.
    #[inline]
    pub fn next_item(&mut self) -> Option<&[u8]> {
        let (len, _) = self.batch[self.at..].split_first_chunk::<4>()?;
        let len = u32::from_ne_bytes(*len) as usize;
        let start = self.at + 4;
        self.at = start + len;
        match &mut self.manual {
            None => self.owed += charge(len) as u64,
            Some(manual) if manual.requested > 0 => {
                manual.requested -= 1;
                self.owed += charge(len) as u64;
            }
            Some(manual) => manual.unasked.push_back(charge(len) as u32),
        }
        Some(&self.batch[start..start + len])
    }

    /// Whether credit is to be given back now.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.owed >= self.share
    }

    /// The credit that is to be given back now; zero if it is not worth a frame yet.
    pub fn due(&mut self) -> u32 {
        if !self.is_due() {
            return 0;
        }
        let due = u32::try_from(self.owed).unwrap_or(u32::MAX);
        self.owed -= u64::from(due);
        due
    }

    /// From now on gives credit back for requested items only, each by itself.
    pub fn be_manual(&mut self) {
        self.share = 1;
        self.manual.get_or_insert_default();
    }

    /// Requests so many items more; for those that were taken before, credit is due now.
    pub fn request(&mut self, items: u64) {
        let Some(manual) = &mut self.manual else { return };
        manual.requested = manual.requested.saturating_add(items);
        while manual.requested > 0
            && let Some(charge) = manual.unasked.pop_front()
        {
            manual.requested -= 1;
            self.owed += u64::from(charge);
        }
    }
}

/// The least that an item costs.
const MIN_CHARGE: usize = 64;
/// A longer buffer is not kept when it is empty.
const MAX_KEPT_LEN: usize = 256 * 1024;
/// A longer buffer is not kept when nothing has come.
const MAX_IDLE_LEN: usize = 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rpc_core::CallId;

    use super::*;
    use crate::{Decoded, Frame, FrameDecoder, ItemError, MIN_PART_LEN, SendBounds, encode_item};

    const ID: CallId = CallId::new(3, 1);
    const MAX: u32 = 1 << 20;

    fn bounds(max_frame: u32) -> SendBounds {
        SendBounds { max_frame, max_message: MAX }
    }

    fn push(outflow: &mut Outflow, item: &[u8], max_frame: u32) {
        let mut batch = Vec::new();
        let encoded = encode_item::<()>(&mut batch, ID, bounds(max_frame), |out| {
            out.extend_from_slice(item);
            Ok(())
        });
        outflow.push(&mut batch, 1, charge(encoded.unwrap()));
    }

    fn receive(inflow: &mut Inflow, mut wire: &[u8], max_frame: u32) {
        while !wire.is_empty() {
            let Ok(Decoded::Frame { frame, len }) = FrameDecoder::new(max_frame).decode(wire) else {
                panic!("a frame that its own decoder takes")
            };
            wire = &wire[len..];
            let complete = match frame {
                Frame::Item { id, more, len, part } if id == ID => inflow.add(len, part, more, MAX),
                Frame::Cont { id, more, part } if id == ID => inflow.add_part(part, more),
                other => panic!("{other:?}"),
            };
            complete.unwrap();
        }
    }

    #[test]
    fn a_queue_that_is_never_empty_keeps_what_waits_and_not_all_that_was_ever_in_it() {
        const WAITS: usize = 4 * PART_LEN;
        let (mut queue, mut frame, mut out) = (FrameQueue::default(), Vec::new(), Vec::new());
        let _ = encode_item::<()>(&mut frame, ID, bounds(64 * 1024), |out| {
            out.resize(out.len() + 1_000, 7);
            Ok(())
        });
        let mut passed = 0;
        while passed < 100 * WAITS {
            while queue.len() < WAITS {
                queue.append(&mut frame.clone());
            }
            out.clear();
            assert!(queue.take_part(&mut out));
            assert!(out.len().is_multiple_of(frame.len()) && out.starts_with(&frame), "whole frames, in their order");
            passed += out.len();
        }
        assert!(queue.frames.capacity() <= 4 * WAITS, "{} bytes are kept", queue.frames.capacity());
    }

    proptest! {
        #[test]
        fn items_arrive_as_they_were_sent_and_no_credit_is_lost(
            window in 1_u32..100_000,
            max_frame in 8_192_u32..100_000,
            lens in proptest::collection::vec(prop_oneof![0_usize..200, 0_usize..120_000], 1..40),
        ) {
            let (mut outflow, mut inflow, mut intake) = (Outflow::new(window), Inflow::new(window), Intake::new(window));
            let mut sent = lens.iter().enumerate().map(|(n, &len)| vec![n as u8; len]);
            let mut expected = lens.iter().enumerate().map(|(n, &len)| vec![n as u8; len]);
            let mut left = lens.len();
            while left > 0 {
                while outflow.is_ready(usize::MAX) && let Some(item) = sent.next() {
                    push(&mut outflow, &item, max_frame);
                }
                let mut wire = Vec::new();
                while outflow.queue.take_part(&mut wire) {}
                receive(&mut inflow, &wire, max_frame);
                let longest = lens.iter().max().copied().unwrap_or(0);
                // Each item stands behind four bytes of ours, and is charged with 64 at least.
                prop_assert!(inflow.len() <= window as usize + window as usize / 16 + longest + 4);
                prop_assert!(intake.refill(&mut inflow), "a sender with items has some under way or credit");
                while let Some(item) = intake.next_item() {
                    prop_assert_eq!(item, expected.next().unwrap());
                    left -= 1;
                    let due = intake.due();
                    if due > 0 {
                        inflow.give(due);
                        prop_assert!(outflow.add_credit(due).unwrap(), "an item has paid for it");
                    }
                }
            }
            prop_assert_eq!(outflow.credit(), inflow.credit());
            prop_assert_eq!(outflow.credit() + intake.owed as i64, i64::from(window));
        }
    }

    #[test]
    fn an_empty_item_costs_as_much_as_one_of_64_bytes() {
        let mut outflow = Outflow::new(640);
        for _ in 0..10 {
            assert!(outflow.is_ready(usize::MAX));
            push(&mut outflow, b"", 65_536);
        }
        assert!(!outflow.is_ready(usize::MAX));
        assert_eq!((charge(64), charge(65), late_frames(640), late_frames(1), late_frames(-5)), (64, 65, 10, 1, 0));
    }

    #[test]
    fn a_receiver_takes_no_item_beyond_the_credit_it_gave() {
        let mut inflow = Inflow::new(100);
        assert_eq!(inflow.add(90, &[0; 90], false, MAX), Ok(true));
        assert_eq!(inflow.add(5_000, &[0; 5_000], false, MAX), Ok(true), "one whole item, whatever its length");
        assert_eq!(inflow.add(0, &[], false, MAX), Err(FlowError::BeyondCredit));
        inflow.give(4_991);
        assert_eq!(inflow.add(MAX + 1, &[0; 10], true, MAX), Err(FlowError::ItemTooLong { len: MAX + 1, max: MAX }));
        assert_eq!(inflow.add_part(&[], false), Err(FlowError::WithoutItem));
        assert_eq!(inflow.add(20, &[0; 10], true, MAX), Ok(false));
        assert_eq!(inflow.end(), Err(FlowError::WithinItem));
        assert!(matches!(inflow.add_part(&[0; 11], false), Err(FlowError::Parts(_))));
        assert_eq!(inflow.add_part(&[0; 10], false), Ok(true));
        assert_eq!((inflow.end(), inflow.end()), (Ok(()), Err(FlowError::AfterEnd)));
    }

    #[test]
    fn what_nobody_takes_is_counted_and_not_kept() {
        let mut inflow = Inflow::new(100_000);
        inflow.add(10, &[7; 10], false, MAX).unwrap();
        inflow.stop();
        inflow.add(10, &[7; 10], false, MAX).unwrap();
        assert!(inflow.is_empty() && inflow.credit() == 100_000 - 128);
    }

    #[test]
    fn a_stream_in_which_nothing_waits_keeps_hardly_any_buffer() {
        let (mut inflow, mut intake) = (Inflow::new(1 << 20), Intake::new(1 << 20));
        for len in [100, 60_000, 300_000] {
            for _ in 0..2 {
                inflow.add(len, &vec![7; len as usize], false, MAX).unwrap();
                assert!(intake.refill(&mut inflow));
                while intake.next_item().is_some() {}
            }
            assert!(!intake.refill(&mut inflow));
            assert!(intake.batch.capacity() + inflow.items.capacity() <= 2 * MAX_IDLE_LEN, "{len}");
        }
        inflow.add(1_000, &[7; 10], true, MAX).unwrap();
        inflow.close();
        assert!(!inflow.is_within_item() && inflow.is_empty() && !inflow.is_wanted());
    }

    #[test]
    fn credit_beyond_any_window_is_an_error_and_frames_are_paid_for_by_items() {
        let mut outflow = Outflow::new(u32::MAX);
        assert_eq!(outflow.add_credit(1), Err(FlowError::CreditOverflow));
        push(&mut outflow, b"item", 65_536);
        assert_eq!((outflow.credits_to_come(1 << 16), outflow.credits_to_come(0)), (1, 1));
        assert_eq!((outflow.add_credit(1), outflow.add_credit(1)), (Ok(true), Ok(false)));
    }

    #[test]
    fn a_consumer_that_asks_item_by_item_gives_credit_for_those_it_asked_for() {
        let mut inflow = Inflow::new(1_000);
        let mut intake = Intake::new(1_000);
        intake.be_manual();
        for _ in 0..4 {
            inflow.add(100, &[0; 100], false, MAX).unwrap();
        }
        intake.refill(&mut inflow);
        (0..2).for_each(|_| assert!(intake.next_item().is_some()));
        assert_eq!(intake.due(), 0, "none was asked for");
        intake.request(1);
        assert_eq!(intake.due(), 100);
        intake.request(2);
        assert_eq!(intake.due(), 100, "the other one that was taken");
        intake.next_item();
        assert_eq!(intake.due(), 100);
        intake.next_item();
        assert_eq!(intake.due(), 0);
    }

    #[test]
    fn a_part_of_a_queue_is_whole_frames() {
        let mut outflow = Outflow::new(u32::MAX);
        for n in 0..4_000_usize {
            push(&mut outflow, &vec![7; n % 100], 65_536);
        }
        push(&mut outflow, &[7; 200_000], 65_536);
        let (mut wire, mut inflow, mut more) = (Vec::new(), Inflow::new(u32::MAX), true);
        while more {
            wire.clear();
            more = outflow.queue.take_part(&mut wire);
            assert!(wire.len() <= 2 * PART_LEN && (wire.len() >= PART_LEN / 2 || !more), "{}", wire.len());
            receive(&mut inflow, &wire, 65_536);
        }
        assert!(outflow.queue.is_empty() && !inflow.is_within_item());
    }

    #[test]
    fn what_cannot_be_encoded_or_is_too_long_leaves_nothing_behind() {
        let mut out = b"before".to_vec();
        let failed = encode_item(&mut out, ID, bounds(65_536), |out| {
            out.extend_from_slice(b"half");
            Err("no form")
        });
        assert_eq!(failed, Err(ItemError::Encode("no form")));
        let long = encode_item::<()>(&mut out, ID, bounds(65_536), |out| {
            out.resize(out.len() + MAX as usize + 1, 0);
            Ok(())
        });
        assert!(matches!(long, Err(ItemError::TooLong(_))));
        assert_eq!(out, b"before");
        const { assert!(MIN_PART_LEN < 8_192 - 16, "parts of the shortest frames are long enough") }
    }
}
