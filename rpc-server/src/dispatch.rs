//! Calls that run: how each is started where it belongs, polled again, and ended.

use std::{sync::atomic::Ordering, task::Poll, time::Instant};

use rpc_core::{Executed, Status, limit::HeldPermit};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinError,
};

use crate::{
    batch::Batch,
    blocking::Job,
    body::Body,
    call::Opening,
    clock,
    connection::Connection,
    in_flight::{Pending, Place},
    method::Run,
    panics::{contain, end_of_task},
    prospects::Prospects,
    unary::{Ended, Started, Starting, TaskEnd, panic_status},
};

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    /// Decodes and runs an admitted call: in place if its method is quick, in a task if it is not, and
    /// on the blocking pool if it blocks.
    pub(crate) fn start(&mut self, opening: &mut Opening, method: u32, body: &mut Body<'_>) {
        let seat = self.seat_of_service(opening, method);
        let Self { server, methods, in_flight, tasks, ready, writer, info, .. } = self;
        let registered = server.methods.get(method);
        let (id, received, deadline) = (opening.id, opening.received.instant, opening.deadline);
        let let_in = opening.let_in;
        let stream = seat.as_ref().map(|seat| &seat.stream);
        let starting = Starting { opening, body, connection: info, parked: in_flight.next_key(), stream };
        let make = match &registered.run {
            Run::Polled(make) => make,
            Run::Blocking(blocking) => {
                let Job { run, context } = blocking.prepare(starting);
                // It panics if there is no thread and none can be made.
                let Ok(abort) = contain("the blocking pool", || tasks.spawn_blocking(run)) else {
                    let status = Status::unavailable("there is no thread to run this").with_executed(Executed::Never);
                    let handlers = self.pipeline.len();
                    return self.respond(id, Some(method), handlers, Err(status), HeldPermit::default());
                };
                let place = Place::Task { abort, context };
                in_flight.insert(Pending { id, method, received, began: let_in, deadline, place, stream: None });
                return;
            }
        };
        if methods.len() < server.methods.len() {
            methods.resize_with(server.methods.len(), || None);
        }
        let place = methods[method as usize].get_or_insert_with(|| make(method, ready));
        let is_slow = registered.info.is_spawned();
        if is_slow || (server.config.spawn_calls && !registered.info.is_exempt()) {
            let mark = server.config.write_high_water;
            let prospects = self.prospects.get_or_insert_with(|| Prospects::new(ready, mark));
            match place.spawn(starting, prospects.count(registered.info.usual_reply())) {
                Ok(task) => {
                    let abort =
                        if is_slow { tasks.spawn(behind_others(task.future)) } else { tasks.spawn(task.future) };
                    let place = Place::Task { abort, context: task.context };
                    in_flight.insert(Pending { id, method, received, began: let_in, deadline, place, stream: seat });
                }
                Err(Ended { outcome, permit, panicked }) => {
                    self.service_ended(id, method, outcome, permit, panicked, seat);
                }
            }
            return;
        }
        let (began, len_before) = (self.batch.poll_begins(), writer.out.len());
        match place.start(starting, &mut writer.out) {
            Started::Ended(Ended { outcome, permit, panicked }) => {
                self.learn(method, let_in, outcome.is_ok());
                self.service_ended(id, method, outcome, permit, panicked, seat);
            }
            Started::Parked(slot) => {
                let place = Place::Slot(slot);
                in_flight.insert(Pending { id, method, received, began: let_in, deadline, place, stream: seat });
            }
        }
        if let Some(began) = began
            && self.note_poll(method, began)
        {
            // It may soon be in tasks. Without a reply yet, this one tells nothing.
            let reply = self.writer.out.len().saturating_sub(len_before);
            if reply > 0 {
                self.server.methods.get(method).info.note_reply(reply);
            }
        }
    }

    /// Notes how long a poll of `method` took. `true` if it was slow.
    fn note_poll(&mut self, method: u32, began: Instant) -> bool {
        let slow = clock::now().saturating_duration_since(began) >= Batch::SLOW_POLL;
        let info = &self.server.methods.get(method).info;
        if info.note_poll(slow) {
            self.server.gauges.methods_demoted.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(method = info.path(), "polls are slow; calls run in tasks of their own from now on");
        }
        slow
    }

    pub(crate) fn poll_slot(&mut self, method: u32, slot: u32) {
        let Some(Some(place)) = self.methods.get_mut(method as usize) else { return };
        let began = self.batch.poll_begins();
        let Some((key, polled)) = place.poll(slot, &mut self.writer.out) else {
            return;
        };
        self.batch.count();
        let slow = began.is_some_and(|began| self.note_poll(method, began));
        match polled {
            Poll::Ready(Ended { outcome, permit, panicked }) => {
                if let Some(pending) = self.in_flight.remove(key) {
                    self.learn(method, pending.began, outcome.is_ok());
                    self.service_ended(pending.id, method, outcome, permit, panicked, pending.stream);
                }
            }
            Poll::Pending if slow => self.detach(key, method, slot),
            Poll::Pending => {}
        }
    }

    /// Moves a pending call whose polls are slow into a task of its own.
    fn detach(&mut self, key: usize, method: u32, slot: u32) {
        let (Some(Some(place)), Some(pending)) = (self.methods.get_mut(method as usize), self.in_flight.get_mut(key))
        else {
            return;
        };
        let task = place.detach(slot, pending.id, key);
        let abort = self.tasks.spawn(task.future);
        pending.place = Place::Task { abort, context: task.context };
    }

    pub(crate) fn task_ended(&mut self, end: TaskEnd) {
        // A call that was cancelled or expired meanwhile is not there any more, and its key may be
        // another's.
        if self.in_flight.get_mut(end.parked).is_none_or(|pending| pending.id != end.id) {
            if end.panicked {
                self.count_panic();
            }
            return;
        }
        if let Some(pending) = self.in_flight.remove(end.parked) {
            self.learn(pending.method, pending.began, end.body.is_ok());
            if let Ok(body) = &end.body {
                self.server.methods.get(pending.method).info.note_reply(body.len());
            }
            self.respond_task(pending, end);
        }
    }

    /// A task ended without a word: aborted by us, which needs none; panicked, as a future does in its
    /// drop; or refused by a runtime that is shutting down, of which the caller shall hear.
    pub(crate) fn task_lost(&mut self, error: JoinError) {
        let key = self.in_flight.key_of_task(error.id());
        let panicked = end_of_task(error);
        if panicked {
            self.count_panic();
        }
        let Some(Pending { id, method, stream, .. }) = key.and_then(|key| self.in_flight.remove(key)) else { return };
        let status = if panicked {
            panic_status()
        } else {
            // Work that blocks can only be turned away before it begins.
            let blocking = self.server.methods.get(method).info.is_blocking();
            let executed = if blocking { Executed::Never } else { Executed::Maybe };
            Status::unavailable("the server's runtime is shutting down").with_executed(executed)
        };
        // The permit went with the task.
        self.service_ended(id, method, Err(status), HeldPermit::default(), false, stream);
    }

    /// Ends a pending call wherever it is: its future is dropped, its context told. With a status
    /// the caller is answered, without one nothing is owed.
    pub(crate) fn end_pending(&mut self, key: usize, status: Option<&Status>) {
        let Some(Pending { id, method, began, place, stream, .. }) = self.in_flight.remove(key) else { return };
        if matches!(place, Place::Slot(_) | Place::Task { .. }) {
            self.learn_given_up(method, began);
        }
        let status = status.map(|status| status.clone().with_executed(place.executed()));
        if let Some(seat) = stream {
            self.close_stream(&seat, status.as_ref());
        }
        let permit = match place {
            Place::Slot(slot) => {
                let Some(Some(place)) = self.methods.get_mut(method as usize) else { return };
                let ended = place.cancel(slot);
                if ended.panicked {
                    self.count_panic();
                }
                ended.permit
            }
            Place::Task { abort, context } => {
                context.cancel();
                abort.abort();
                // The permit is the task's, until the task has ended.
                HeldPermit::default()
            }
            Place::Waiting(waiting) => waiting.opening.permit.into(),
            Place::Receiving(receiving) => receiving.opening.permit.into(),
        };
        if let Some(status) = status {
            let handlers = self.pipeline.len();
            self.respond(id, Some(method), handlers, Err(status), permit);
        }
    }
}

/// Lets the runtime look first whose sockets and timers are due. It does so when it has nothing else to run, or once in
/// 61 polls (`event_interval`): where calls that take long follow each other, whoever asks meanwhile, if only to be
/// refused, would wait for many of them. Of calls that step back together the last one goes on first, as tokio has it;
/// all of them have before any other one does.
async fn behind_others(call: impl Future<Output = TaskEnd>) -> TaskEnd {
    tokio::task::yield_now().await;
    call.await
}
