//! Bytes that clients make us keep: what bounds them, and what the items of one stream take of that.

use std::sync::{Arc, atomic::Ordering};

use rpc_codec::PART_LEN;
use rpc_core::limit::{ConcurrencyLimit, ConcurrencyRefusal, Reservation};

use crate::{gauges::CONNECTION_BODIES, peer::Peer, server::ServerCore};

/// The budgets of bytes that count on one connection: its own, and that of the server.
///
/// A body in parts takes its length of both. A client's stream takes its window of the connection's when it
/// opens, because so much may be sent; of the server's it takes what has been sent, in [`Kept`]. So what
/// one connection may send is bounded before it is sent, and what no connection has sent is kept from nobody.
#[derive(Debug)]
pub(crate) struct Budgets {
    connection: Arc<ConcurrencyLimit>,
    server: Arc<ConcurrencyLimit>,
    both: Arc<ConcurrencyLimit>,
}

impl Budgets {
    /// Those of a connection that is new to the server's.
    pub(crate) fn of_connection(server: &ServerCore, peer: &Peer) -> Self {
        let connection = {
            // Or a change might come when it has been read and this one is not yet known.
            let _changing = server.limits.changing();
            let max = server.limits.body_budget_per_connection_word().load(Ordering::Relaxed);
            let connection = ConcurrencyLimit::new(CONNECTION_BODIES, Some(max)).expect("it is never zero");
            peer.has_limit(&connection);
            connection
        };
        Self::new(connection, Arc::clone(&server.gauges.bodies))
    }

    pub(crate) fn new(connection: Arc<ConcurrencyLimit>, server: Arc<ConcurrencyLimit>) -> Self {
        let both = ConcurrencyLimit::all_of([(Arc::clone(&connection), 1), (Arc::clone(&server), 1)]);
        Self { connection, server, both }
    }

    /// Takes the length of a body.
    pub(crate) fn take_body(&self, len: u32) -> Result<Reservation, ConcurrencyRefusal> {
        self.both.try_reserve(len.into())
    }

    /// Takes the window of a stream.
    pub(crate) fn take_window(&self, window: u32) -> Result<Reservation, ConcurrencyRefusal> {
        self.connection.try_reserve(window.into())
    }
}

/// What the items that a client has sent of one stream have taken of the budgets.
///
/// It counts as credit does, an item with its length and 64 bytes at least, from when the item comes, or its
/// first part, until the service asks for the one behind it. So a stream that is drained has taken nothing. It
/// takes in steps that double, and gives back when it is drained: a stream that is fast takes a few times for
/// each batch, or never.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Charges of items that wait for the service, of one that is not complete, and of those that the service
    /// took last and may be at.
    waiting: u64,
    coming: u64,
    taken: u64,
    server: Option<Reservation>,
    /// What a long item needs beyond the window, which the stream has.
    connection: Option<Reservation>,
}

impl Kept {
    /// Takes what one item more needs, whether it has come whole or its first part has. If there is too little,
    /// nothing has changed.
    #[inline]
    pub(crate) fn item_comes(
        &mut self,
        charge: u64,
        in_parts: bool,
        window: u32,
        budgets: &Budgets,
    ) -> Result<(), ConcurrencyRefusal> {
        let needed = self.taken + self.waiting + charge;
        if in_parts || needed > units(&self.server) {
            self.take(needed, in_parts || charge > PART_LEN as u64, window.into(), budgets)?;
        }
        *(if in_parts { &mut self.coming } else { &mut self.waiting }) += charge;
        Ok(())
    }

    fn take(&mut self, needed: u64, long: bool, window: u64, budgets: &Budgets) -> Result<(), ConcurrencyRefusal> {
        let (before, beyond) = (units(&self.connection), needed.saturating_sub(window));
        // Short items, those that clients do not cut, are a window that waits, with a part beyond it, beside one that the
        // service has in hand: twice what the connection has promised, of which the server's budget knows.
        if long && beyond > before {
            grow(&mut self.connection, beyond, &budgets.connection)?;
        }
        let wanted = match beyond {
            0 => needed.next_power_of_two().clamp(LEAST_STEP, window.max(LEAST_STEP)),
            _ => needed,
        };
        if wanted <= units(&self.server) {
            return Ok(());
        }
        grow(&mut self.server, wanted, &budgets.server).inspect_err(|_| shrink(&mut self.connection, before))
    }

    /// The item that came in parts is complete. If it is not `wanted`, it has been dropped.
    pub(crate) fn item_is_complete(&mut self, wanted: bool) {
        let charge = std::mem::take(&mut self.coming);
        if wanted {
            self.waiting += charge;
        }
        self.give_back_if_drained();
    }

    /// The service has taken what waited, and so is through with what it took before.
    pub(crate) fn all_taken(&mut self, window: u32) {
        self.taken = std::mem::take(&mut self.waiting);
        let (needed, window) = (self.taken + self.coming, u64::from(window));
        // What a long item had needed, a stream that never comes to rest would keep for ever.
        shrink(&mut self.server, needed.max(window));
        shrink(&mut self.connection, needed.saturating_sub(window));
        self.give_back_if_drained();
    }

    /// Nothing waits any more, and the service is through with what it took.
    pub(crate) fn nothing_wanted(&mut self) {
        (self.waiting, self.taken) = (0, 0);
        self.give_back_if_drained();
    }

    /// Nothing comes and nothing waits any more. The service may still be at what it took.
    pub(crate) fn closed(&mut self) {
        (self.waiting, self.coming) = (0, 0);
        self.give_back_if_drained();
    }

    /// Whether items wait for the service, or it may be at some that it took.
    pub(crate) fn is_at_work(&self) -> bool {
        self.taken + self.waiting > 0
    }

    fn give_back_if_drained(&mut self) {
        if self.taken + self.waiting + self.coming == 0 {
            // Kept for the next items, of nothing.
            shrink(&mut self.server, 0);
            shrink(&mut self.connection, 0);
        }
    }
}

fn units(reservation: &Option<Reservation>) -> u64 {
    reservation.as_ref().map_or(0, Reservation::units)
}

fn grow(
    reservation: &mut Option<Reservation>,
    units: u64,
    limit: &Arc<ConcurrencyLimit>,
) -> Result<(), ConcurrencyRefusal> {
    match reservation {
        Some(reservation) => reservation.resize(units),
        None => limit.try_reserve(units).map(|taken| *reservation = Some(taken)),
    }
}

fn shrink(reservation: &mut Option<Reservation>, most: u64) {
    if let Some(reservation) = reservation.as_mut().filter(|reservation| reservation.units() > most) {
        reservation.resize(most).expect("to give back never fails");
    }
}

/// What the first item of a stream takes at least. Little, or a small item on each of many streams would take
/// much from everybody.
const LEAST_STEP: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u32 = 65_536;

    fn budgets(connection: u64, server: u64) -> Budgets {
        let limit = |name, max| ConcurrencyLimit::new(name, Some(max)).unwrap();
        Budgets::new(limit("connection", connection), limit("server", server))
    }

    /// What is taken of the connection's budget, and of the server's.
    fn taken(budgets: &Budgets) -> (u64, u64) {
        (budgets.connection.snapshot().held, budgets.server.snapshot().held)
    }

    #[test]
    fn a_window_is_promised_by_the_connection_and_taken_of_the_server_in_steps_as_it_fills() {
        let budgets = budgets(1 << 20, 1 << 20);
        let _window = budgets.take_window(WINDOW).unwrap();
        let mut kept = Kept::default();
        assert_eq!(taken(&budgets), (65_536, 0));
        for (items, expected) in [(1, 1_024), (16, 1_024), (17, 2_048), (600, 65_536), (1_024, 65_536)] {
            while kept.waiting < items * 64 {
                kept.item_comes(64, false, WINDOW, &budgets).unwrap();
            }
            assert_eq!(taken(&budgets), (65_536, expected), "{items} items");
        }
        assert!(budgets.server.snapshot().acquired == 65_536, "each byte once");
        kept.all_taken(WINDOW);
        assert_eq!(taken(&budgets).1, 65_536, "the service has them");
        kept.item_comes(64, false, WINDOW, &budgets).unwrap();
        kept.all_taken(WINDOW);
        kept.all_taken(WINDOW);
        assert_eq!(taken(&budgets), (65_536, 0), "it asked for more, and there was none");
    }

    #[test]
    fn a_long_item_takes_its_length_and_beyond_the_window_of_the_connection_as_well() {
        let budgets = budgets(100_000, 200_000);
        let mut kept = Kept::default();
        kept.item_comes(100_000, true, WINDOW, &budgets).unwrap();
        assert_eq!(taken(&budgets), (34_464, 100_000), "what the window leaves");
        kept.item_is_complete(true);
        kept.item_comes(100, false, WINDOW, &budgets).unwrap();
        kept.all_taken(WINDOW);
        assert_eq!(taken(&budgets), (34_464, 100_100), "the service has it");
        kept.item_comes(100, false, WINDOW, &budgets).unwrap();
        kept.all_taken(WINDOW);
        assert_eq!(taken(&budgets), (0, 65_536), "a stream that is never drained does not keep it");
        kept.all_taken(WINDOW);
        assert_eq!(taken(&budgets), (0, 0));
    }

    #[test]
    fn a_long_item_in_one_frame_takes_of_the_connection_as_one_in_parts_does() {
        let budgets = budgets(1 << 20, 1 << 20);
        let mut kept = Kept::default();
        for _ in 0..1_023 {
            kept.item_comes(64, false, WINDOW, &budgets).unwrap();
        }
        kept.item_comes(262_000, false, WINDOW, &budgets).unwrap();
        assert_eq!(taken(&budgets), (261_936, 327_472));
        kept.nothing_wanted();
        // What a client sends without cutting it may be beyond the window once, and the connection promised nothing of it.
        kept.item_comes(65_535, false, WINDOW, &budgets).unwrap();
        kept.item_comes(PART_LEN as u64, false, WINDOW, &budgets).unwrap();
        assert_eq!(taken(&budgets), (0, 65_535 + 32_768));
    }

    #[test]
    fn an_item_that_finds_too_little_takes_nothing() {
        for (connection, server, limit) in [(30_000, 1 << 20, "connection"), (1 << 20, 90_000, "server")] {
            let budgets = budgets(connection, server);
            let mut kept = Kept::default();
            kept.item_comes(64, false, WINDOW, &budgets).unwrap();
            assert_eq!(kept.item_comes(100_000, true, WINDOW, &budgets).unwrap_err().limit, limit);
            assert_eq!(taken(&budgets), (0, 1_024));
            kept.closed();
            assert_eq!(taken(&budgets), (0, 0));
        }
    }

    #[test]
    fn whatever_ends_a_stream_gives_back_what_nobody_has_any_more() {
        let budgets = budgets(1 << 20, 1 << 20);
        let filled = || {
            let mut kept = Kept::default();
            kept.item_comes(500, false, WINDOW, &budgets).unwrap();
            kept.all_taken(WINDOW);
            kept.item_comes(500, false, WINDOW, &budgets).unwrap();
            kept.item_comes(5_000, true, WINDOW, &budgets).unwrap();
            kept
        };
        let mut kept = filled();
        kept.closed();
        assert_eq!(taken(&budgets).1, 8_192, "the service is at what it took");
        kept.nothing_wanted();
        assert_eq!(taken(&budgets).1, 0);
        let mut kept = filled();
        kept.nothing_wanted();
        assert_eq!(taken(&budgets).1, 8_192, "parts are to come");
        kept.item_is_complete(false);
        assert_eq!(taken(&budgets).1, 0);
        drop(filled());
        assert_eq!(taken(&budgets).1, 0);
    }
}
