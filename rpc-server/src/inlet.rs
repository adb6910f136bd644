//! The receiving end of a stream, as a service has it.

use std::{
    marker::PhantomData,
    sync::Arc,
    task::{Context as TaskContext, Poll, ready},
};

use rpc_codec::{CodecId, DecodeItem, Intake};
use rpc_core::{ItemSource, Status};

use crate::{clock::Reading, item_rate::ItemPace, outlet::proceed, stream::Stream};

/// What is behind a service's [`rpc_core::Streaming`].
#[derive(Debug)]
pub(crate) struct Inlet<T, W> {
    stream: Arc<Stream>,
    codec: CodecId,
    intake: Intake,
    /// If items are not handed over as they come.
    pace: Option<Box<ItemPace>>,
    over: bool,
    form: PhantomData<fn() -> (T, W)>,
}

impl<T, W> Inlet<T, W> {
    pub(crate) fn new(stream: Arc<Stream>, codec: CodecId) -> Self {
        let (intake, pace) = (Intake::new(stream.window()), stream.take_pace());
        Self { stream, codec, intake, pace, over: false, form: PhantomData }
    }

    /// Waits until the next item may be handed over, or says why there will be none.
    fn poll_pace(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Status>> {
        let Some(pace) = self.pace.as_mut().filter(|_| !self.intake.is_empty()) else { return Poll::Ready(Ok(())) };
        if pace.waits() {
            if let Err(why) = ready!(self.stream.poll_token(cx.waker())) {
                return Poll::Ready(Err(why));
            }
            pace.has_waited();
        }
        match pace.admit(Reading::now().ticks) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(rate) => self.stream.wait_for_token(rate, cx.waker()).map(Err),
        }
    }

    fn give_back(&mut self) {
        let due = self.intake.due();
        if due > 0 {
            self.stream.grant(due);
        }
    }
}

impl<T: Send + 'static, W: DecodeItem<T>> ItemSource<T> for Inlet<T, W> {
    fn poll_item(&mut self, cx: &mut TaskContext<'_>) -> Poll<Option<Result<T, Status>>> {
        if self.over {
            return Poll::Ready(None);
        }
        loop {
            if self.pace.is_some()
                && let Err(why) = ready!(self.poll_pace(cx))
            {
                self.over = true;
                return Poll::Ready(Some(Err(why)));
            }
            if let Some(item) = self.intake.next_item() {
                let decoded = W::decode(self.codec, item);
                if self.intake.is_due() {
                    self.give_back();
                }
                self.over = decoded.is_err();
                return Poll::Ready(Some(decoded.map_err(|error| {
                    Status::invalid_argument(format!("an item of the client cannot be decoded: {error}"))
                })));
            }
            ready!(proceed(cx));
            match ready!(self.stream.poll_take(&mut self.intake, cx.waker())) {
                Ok(true) => {}
                Ok(false) => {
                    self.over = true;
                    return Poll::Ready(None);
                }
                Err(why) => {
                    self.over = true;
                    return Poll::Ready(Some(Err(why)));
                }
            }
        }
    }

    fn set_manual(&mut self) {
        self.intake.be_manual();
    }

    fn request(&mut self, items: u64) {
        self.intake.request(items);
        self.give_back();
    }
}

impl<T, W> Drop for Inlet<T, W> {
    fn drop(&mut self) {
        self.stream.stop_receiving();
    }
}
