//! What a call makes its server do, and how often it did.

use std::hint;
use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

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

/// What the handlers of a server did so far.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Served {
    /// Calls whose handler began.
    pub started: u64,
    /// Calls whose handler ran to its end, whether anybody still wanted its answer or not.
    pub finished: u64,
}

static STARTED: AtomicU64 = AtomicU64::new(0);
static FINISHED: AtomicU64 = AtomicU64::new(0);

/// Answers each line of standard input with [`Served`] as a line of JSON, and ends this process when
/// the input ends.
pub fn answer_questions() {
    std::thread::spawn(|| {
        for _ in io::stdin().lock().lines().map_while(Result::ok) {
            let served =
                Served { started: STARTED.load(Ordering::Relaxed), finished: FINISHED.load(Ordering::Relaxed) };
            let line = serde_json::to_string(&served).expect("plain data");
            let mut out = io::stdout().lock();
            // Whoever asked is gone if it does not take the answer, and then the input ends, too.
            let _gone = writeln!(out, "{line}").and_then(|()| out.flush());
        }
        std::process::exit(0);
    });
}
