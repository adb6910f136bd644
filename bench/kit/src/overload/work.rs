//! What a call makes its server do, and how often it did.

use std::hint;
use std::io::{self, BufRead, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::Tally;
use crate::BoxError;

/// The work of one call: nothing of both is an echo.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Work {
    /// For how long it keeps a CPU busy.
    pub spin_us: u32,
    /// For how long it waits after that, for a service behind it that does [`BEHIND`] of them at a time.
    pub wait_us: u32,
}

impl Work {
    /// Does it; what every handler does.
    pub async fn run(self) {
        STARTED.fetch_add(1, Ordering::Relaxed);
        if self.spin_us > 0 {
            let end = Instant::now() + Duration::from_micros(self.spin_us.into());
            while Instant::now() < end {
                hint::spin_loop();
            }
        }
        if self.wait_us > 0 {
            let _place = PLACES.acquire().await.expect("it is never closed");
            tokio::time::sleep(Duration::from_micros(self.wait_us.into())).await;
        }
        FINISHED.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the service behind the server, such as a database by its pool of connections, does at a time; the
/// others stand in a line there. Without a line there would be nothing to protect.
pub const BEHIND: usize = 64;

static PLACES: Semaphore = Semaphore::const_new(BEHIND);

/// What a server did so far.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Served {
    /// Calls whose handler began.
    pub started: u64,
    /// Calls whose handler ran to its end, whether anybody still wanted its answer or not.
    pub finished: u64,
    /// What the server itself says, if it can.
    pub admitted: Option<Admitted>,
}

/// A server's own count of its calls.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Admitted {
    /// Calls that got a permit.
    pub acquired: u64,
    /// Calls that were turned away, for whatever reason.
    pub refused: u64,
    /// Writes to all connections.
    pub writes: u64,
}

impl Served {
    /// What was done since `before`.
    ///
    /// # Errors
    ///
    /// A count went backwards.
    pub fn since(&self, before: &Self) -> Result<Self, BoxError> {
        let less = |now: u64, before: u64| now.checked_sub(before).ok_or("a count of the server went backwards");
        let admitted = match (self.admitted, before.admitted) {
            (Some(now), Some(before)) => Some(Admitted {
                acquired: less(now.acquired, before.acquired)?,
                refused: less(now.refused, before.refused)?,
                writes: less(now.writes, before.writes)?,
            }),
            _ => None,
        };
        Ok(Self {
            started: less(self.started, before.started)?,
            finished: less(self.finished, before.finished)?,
            admitted,
        })
    }

    /// Without calls that were served and do not count.
    ///
    /// # Errors
    ///
    /// So many were not served.
    pub fn without(&self, calls: u64) -> Result<Self, BoxError> {
        let less = |count: u64| count.checked_sub(calls).ok_or("not even the first calls were served");
        let admitted = match self.admitted {
            Some(own) => Some(Admitted { acquired: less(own.acquired)?, ..own }),
            None => None,
        };
        Ok(Self { started: less(self.started)?, finished: less(self.finished)?, admitted })
    }

    /// The part of the work that was done for calls that nobody had use for.
    #[must_use]
    pub fn in_vain(&self, in_time: u64) -> f64 {
        self.finished.saturating_sub(in_time) as f64 / self.finished.max(1) as f64
    }

    /// Holds what callers were told, all of it since the same moment, against what the server did.
    ///
    /// Who gave up may have been let in, refused, or both unheard; everybody else is counted at the server, too.
    ///
    /// # Errors
    ///
    /// The two do not go together.
    pub fn check<'a>(&self, tallies: impl IntoIterator<Item = &'a Tally>) -> Result<(), BoxError> {
        let (mut served, mut refused, mut unsure) = (0, 0, 0);
        for tally in tallies {
            served += tally.ok + tally.late;
            refused += tally.refused_in_all();
            unsure += tally.expired + tally.not_begun + tally.held_back + tally.failed_in_all();
        }
        let between = |what: &str, at_server: u64, least: u64, most: u64| {
            if (least..=most).contains(&at_server) {
                return Ok(());
            }
            Err(format!("{at_server} calls were {what} by the server, and {least} to {most} by what callers say"))
        };
        between("finished", self.finished, served, served + unsure)?;
        if let Some(own) = self.admitted {
            between("let in", own.acquired, served, served + unsure)?;
            between("refused", own.refused, refused, refused + unsure)?;
            between("let in or refused", own.acquired + own.refused, served + refused, served + refused + unsure)?;
        }
        Ok(())
    }
}

/// Where a server's own count comes from.
type Count = Box<dyn Fn() -> Admitted + Send + Sync>;

static COUNT: OnceLock<Count> = OnceLock::new();

/// Has [`answer_questions`] say what `count` does, too. The first one counts.
pub fn tell(count: impl Fn() -> Admitted + Send + Sync + 'static) {
    let _there_is_one = COUNT.set(Box::new(count));
}

static STARTED: AtomicU64 = AtomicU64::new(0);
static FINISHED: AtomicU64 = AtomicU64::new(0);

/// Answers each line of standard input with [`Served`] as a line of JSON, and ends this process when
/// the input ends.
pub fn answer_questions() {
    std::thread::spawn(|| {
        for _ in io::stdin().lock().lines().map_while(Result::ok) {
            let served = Served {
                started: STARTED.load(Ordering::Relaxed),
                finished: FINISHED.load(Ordering::Relaxed),
                admitted: COUNT.get().map(|count| count()),
            };
            let line = serde_json::to_string(&served).expect("plain data");
            let mut out = io::stdout().lock();
            // Whoever asked is gone if it does not take the answer, and then the input ends, too.
            let _gone = writeln!(out, "{line}").and_then(|()| out.flush());
        }
        std::process::exit(0);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_and_server_must_tell_the_same() {
        let refused = [("LIMIT".to_owned(), 7)].into();
        let tally = Tally { offered: 14, ok: 3, late: 1, refused, expired: 3, ..Tally::default() };
        let served = |finished, acquired, refused| {
            let admitted = Some(Admitted { acquired, refused, writes: 1 });
            Served { started: finished, finished, admitted }.check([&tally])
        };
        assert!(served(4, 4, 7).is_ok());
        // One who gave up was let in, one was refused, and of one the server never heard.
        assert!(served(5, 5, 8).is_ok());
        for (finished, acquired, refused) in [(3, 4, 7), (4, 3, 7), (4, 4, 6), (4, 4, 11), (8, 4, 7), (4, 7, 10)] {
            assert!(served(finished, acquired, refused).is_err(), "{finished} {acquired} {refused}");
        }
    }
}
