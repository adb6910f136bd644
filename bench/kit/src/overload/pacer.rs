//! Wakes the generator when calls are due.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::unix::AsyncFd;

/// A timer of the kernel: tokio's own goes by milliseconds, and calls are due every few microseconds.
#[derive(Debug)]
pub(super) struct Pacer {
    timer: AsyncFd<OwnedFd>,
    woken: Instant,
}

/// Calls that are due within so much of each other are sent together. Otherwise a generator spends its
/// CPU on waking up, and is late all the more.
pub const GRAIN: Duration = Duration::from_micros(40);

impl Pacer {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[allow(deprecated, reason = "sound for a descriptor that is owned: nobody else can close it")]
        let timer = AsyncFd::new(timer)?;
        Ok(Self { timer, woken: Instant::now() })
    }

    /// Waits until `due`, or if that was or is about to be, for a grain since the last time.
    pub(super) async fn wait(&mut self, due: Instant) -> io::Result<()> {
        let until = due.max(self.woken + GRAIN);
        // A timer of zero would never ring.
        let wait = until.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let value = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::time::timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: interval, it_value: value },
        )?;
        loop {
            let mut ready = self.timer.readable().await?;
            let mut rings = [0; 8];
            match ready.try_io(|timer| Ok(rustix::io::read(timer, &mut rings)?)) {
                Ok(read) => {
                    read?;
                    self.woken = Instant::now();
                    return Ok(());
                }
                Err(_would_block) => {}
            }
        }
    }
}
