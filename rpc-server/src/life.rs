//! What a connection has heard of its peer, and what is due when it hears nothing.

use std::time::{Duration, Instant};

use crate::{config::Config, cut::Cut};

/// The times that say whether an open connection still lives.
///
/// All of them are points in the past, from which the settings count; so nothing is to be rearmed
/// when bytes come, and the connection's one timer is enough. While we do not read, because the peer
/// has not taken what it asked for, its silence means nothing: time stands still for what it is to
/// send, and goes on where it stopped.
#[derive(Debug)]
pub(crate) struct Life {
    /// When bytes last came.
    heard: Instant,
    /// When the first byte of a frame came that is not whole yet.
    frame_began: Option<Instant>,
    /// When there last was a call.
    busy: Instant,
    /// Since when we do not read.
    paused: Option<Instant>,
    /// When we asked whether the peer is there, if nothing has come since.
    asked: Option<Instant>,
    /// The PING that was not answered yet.
    awaited: Option<[u8; 8]>,
    pings: u64,
    /// When to feel for a transport whose peer has ended its stream. It can answer no PING any more, and no read tells
    /// that it is gone; but it still fails when it is written to.
    feels: Option<Instant>,
    /// When the connection is to be replaced.
    retires: Option<Instant>,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// To ask whether the peer is there.
    Ping([u8; 8]),
    /// To see whether the transport fails, of which nothing is read any more.
    Feel,
    /// To part in peace: there was no call for too long.
    Farewell,
    /// To give up the connection.
    Cut(Cut),
}

impl Life {
    /// Begins at `now`. `jitter` is between 0 and 1 and drawn for each connection, so that those of
    /// one moment do not end in one moment.
    pub(crate) fn new(config: &Config, now: Instant, jitter: f64) -> Self {
        let age = config.max_connection_age.and_then(|age| spread(age, jitter));
        Self {
            heard: now,
            frame_began: None,
            busy: now,
            paused: None,
            asked: None,
            awaited: None,
            pings: 0,
            feels: None,
            retires: age.and_then(|age| now.checked_add(age)),
        }
    }

    /// Notes that bytes came, or went after they had to wait for a while, or wait. Whatever they are,
    /// somebody is there, or is found not to be by the timeout of writes.
    pub(crate) fn hear(&mut self, now: Instant) {
        self.heard = self.heard.max(now);
        self.asked = None;
    }

    /// Notes that nothing will come any more.
    pub(crate) fn end(&mut self, now: Instant) {
        self.feels = Some(now + FEEL_EVERY);
        self.frame_began = None;
        self.asked = None;
    }

    /// Notes that `taken` bytes of frames were handled, and whether the beginning of one is left.
    pub(crate) fn frames(&mut self, taken: usize, left: bool, now: Instant) {
        if taken > 0 {
            self.frame_began = None;
        }
        if left {
            // Further bytes of it do not move it: a frame that dribbles is as late as one that stops.
            self.frame_began.get_or_insert(now);
        }
    }

    /// Does not count a `pause` up to `now`, in which we did not read, against the frame that was begun.
    pub(crate) fn spare_frame(&mut self, pause: Duration, now: Instant) {
        self.frame_began = self.frame_began.map(|began| (began + pause).min(now));
    }

    /// Notes that there is a call.
    pub(crate) fn be_busy(&mut self, now: Instant) {
        self.busy = now;
    }

    /// Notes that we do not read from now on.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.paused.get_or_insert(now);
    }

    /// Notes that we read again. Says for how long we did not, if we did not.
    pub(crate) fn resume(&mut self, now: Instant) -> Option<Duration> {
        let since = self.paused.take()?;
        let pause = now.saturating_duration_since(since);
        self.heard = (self.heard + pause).min(now);
        for time in [&mut self.frame_began, &mut self.asked].into_iter().flatten() {
            *time = (*time + pause).min(now);
        }
        Some(pause)
    }

    /// Whether a PONG answers our PING; it does so once.
    pub(crate) fn is_answer(&mut self, opaque: [u8; 8]) -> bool {
        self.awaited.take_if(|awaited| *awaited == opaque).is_some()
    }

    /// Whether the connection is to be replaced now; it says so once.
    pub(crate) fn retires(&mut self, now: Instant) -> bool {
        self.retires.take_if(|at| *at <= now).is_some()
    }

    /// What is due, after everything that had arrived was read.
    pub(crate) fn due(&mut self, config: &Config, now: Instant) -> Option<Due> {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.frame_due(config)) {
            return Some(Due::Cut(Cut::Frame));
        }
        if is_due(self.answer_due(config)) {
            return Some(Due::Cut(Cut::Keepalive));
        }
        if is_due(self.ping_due(config)) {
            return Some(Due::Ping(self.ping(now)));
        }
        if is_due(self.feels) {
            self.feels = Some(now + FEEL_EVERY);
            return Some(Due::Feel);
        }
        if is_due(self.idle_due(config)) {
            self.busy = now;
            return Some(Due::Farewell);
        }
        None
    }

    /// When something is due, unless more is heard before.
    pub(crate) fn next_due(&self, config: &Config) -> Option<Instant> {
        let asking = self.answer_due(config).or_else(|| self.ping_due(config));
        [self.frame_due(config), asking, self.feels, self.idle_due(config), self.retires].into_iter().flatten().min()
    }

    fn ping(&mut self, now: Instant) -> [u8; 8] {
        self.pings += 1;
        let opaque = self.pings.to_be_bytes();
        if self.feels.is_some() {
            self.heard = now;
        } else {
            self.asked = Some(now);
            self.awaited = Some(opaque);
        }
        opaque
    }

    fn frame_due(&self, config: &Config) -> Option<Instant> {
        self.frame_began.filter(|_| self.paused.is_none())?.checked_add(config.frame_timeout)
    }

    fn answer_due(&self, config: &Config) -> Option<Instant> {
        self.asked.filter(|_| self.paused.is_none())?.checked_add(config.keepalive_timeout)
    }

    fn ping_due(&self, config: &Config) -> Option<Instant> {
        let interval = config.keepalive_interval.filter(|_| self.paused.is_none() && self.asked.is_none())?;
        self.heard.checked_add(interval)
    }

    fn idle_due(&self, config: &Config) -> Option<Instant> {
        self.busy.checked_add(config.idle_timeout?)
    }
}

/// `age` and up to a tenth of it more or less. `None` if that is beyond all time.
fn spread(age: Duration, jitter: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(age.as_secs_f64() * (1.0 - AGE_JITTER + 2.0 * AGE_JITTER * jitter)).ok()
}

const AGE_JITTER: f64 = 0.1;
/// How often: the services of a client that said goodbye and was then reset stop within this time.
const FEEL_EVERY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Settings with a PING after 5 s and 2 s for its answer.
    fn config() -> Config {
        Config {
            frame_timeout: 10 * SECOND,
            keepalive_interval: Some(5 * SECOND),
            keepalive_timeout: 2 * SECOND,
            ..Config::default()
        }
    }

    #[test]
    fn a_silent_peer_is_asked_once_and_then_given_up() {
        let (config, start) = (config(), Instant::now());
        let mut life = Life::new(&config, start, 0.5);
        assert_eq!(life.next_due(&config), Some(start + 5 * SECOND));
        assert_eq!(life.due(&config, start + 4 * SECOND), None);
        let asked = start + 5 * SECOND;
        assert_eq!(life.due(&config, asked), Some(Due::Ping([0, 0, 0, 0, 0, 0, 0, 1])));
        assert_eq!(life.due(&config, asked + SECOND), None, "asked once");
        assert_eq!(life.next_due(&config), Some(asked + 2 * SECOND));
        assert_eq!(life.due(&config, asked + 2 * SECOND), Some(Due::Cut(Cut::Keepalive)));
    }

    #[test]
    fn any_byte_is_life_and_only_the_bytes_of_the_last_ping_are_its_answer() {
        let (config, start) = (config(), Instant::now());
        let mut life = Life::new(&config, start, 0.5);
        let Some(Due::Ping(opaque)) = life.due(&config, start + 5 * SECOND) else { panic!("no PING") };
        life.hear(start + 6 * SECOND);
        assert_eq!(life.next_due(&config), Some(start + 11 * SECOND));
        assert!(!life.is_answer(*b"not ours"));
        assert!(life.is_answer(opaque), "late, but ours");
        assert!(!life.is_answer(opaque), "once");
    }

    #[test]
    fn a_frame_is_late_however_often_a_byte_of_it_comes() {
        let (config, start) = (config(), Instant::now());
        let mut life = Life::new(&config, start, 0.5);
        for second in 0..10 {
            life.hear(start + second * SECOND);
            life.frames(0, true, start + second * SECOND);
            assert_eq!(life.due(&config, start + second * SECOND), None);
        }
        let mut whole = Life { ..life };
        assert_eq!(whole.due(&config, start + 10 * SECOND), Some(Due::Cut(Cut::Frame)));
        whole.hear(start + 10 * SECOND);
        whole.frames(100, true, start + 10 * SECOND);
        assert_eq!(whole.due(&config, start + 14 * SECOND), None, "the next frame has its own time");
        whole.frames(100, false, start + 14 * SECOND);
        whole.hear(start + 24 * SECOND);
        assert_eq!(whole.due(&config, start + 28 * SECOND), None, "nothing is begun");
    }

    #[test]
    fn silence_does_not_count_while_we_do_not_read() {
        let (config, start) = (config(), Instant::now());
        let mut life = Life::new(&config, start, 0.5);
        life.frames(0, true, start);
        life.pause(start + SECOND);
        assert_eq!((life.due(&config, start + 100 * SECOND), life.next_due(&config)), (None, None));
        life.pause(start + 50 * SECOND);
        let mut written = Life { ..life };
        written.hear(start + 100 * SECOND);
        written.resume(start + 101 * SECOND);
        assert_eq!(written.next_due(&config), Some(start + 106 * SECOND), "no later than from now on");
        life.resume(start + 101 * SECOND);
        assert_eq!(life.next_due(&config), Some(start + 105 * SECOND));
        life.hear(start + 105 * SECOND);
        assert_eq!(life.due(&config, start + 110 * SECOND), Some(Due::Cut(Cut::Frame)));
    }

    #[test]
    fn a_peer_that_ended_its_stream_is_written_to_and_expected_to_say_nothing() {
        let (config, start) = (config(), Instant::now());
        let mut life = Life::new(&config, start, 0.5);
        life.end(start);
        for n in 1..=100 {
            let now = start + n * 5 * SECOND;
            assert!(matches!(life.due(&config, now), Some(Due::Ping(_))), "{n}");
            assert_eq!((life.due(&config, now), life.due(&config, now)), (Some(Due::Feel), None), "{n}");
            assert_eq!(life.next_due(&config), Some(now + SECOND / 20), "{n}");
        }
    }

    #[test]
    fn a_connection_without_calls_is_idle_whatever_else_it_says() {
        let config = Config { idle_timeout: Some(60 * SECOND), keepalive_interval: None, ..config() };
        let start = Instant::now();
        let mut life = Life::new(&config, start, 0.5);
        life.be_busy(start + 10 * SECOND);
        life.hear(start + 69 * SECOND);
        assert_eq!(life.due(&config, start + 69 * SECOND), None);
        assert_eq!(life.next_due(&config), Some(start + 70 * SECOND));
        assert_eq!(life.due(&config, start + 70 * SECOND), Some(Due::Farewell));
        assert_eq!(life.due(&config, start + 71 * SECOND), None, "said once");
    }

    #[test]
    fn ages_are_spread_by_a_tenth_and_no_setting_overflows() {
        let start = Instant::now();
        let age = |max, jitter| {
            let config = Config { max_connection_age: Some(max), ..Config::default() };
            Life::new(&config, start, jitter).retires.map(|at| at - start)
        };
        assert_eq!(age(100 * SECOND, 0.0), Some(90 * SECOND));
        assert_eq!(age(100 * SECOND, 0.5), Some(100 * SECOND));
        assert_eq!(age(100 * SECOND, 1.0), Some(110 * SECOND));
        assert_eq!(age(Duration::MAX, 1.0), None);
        let for_ever = Config {
            frame_timeout: Duration::MAX,
            idle_timeout: Some(Duration::MAX),
            keepalive_interval: Some(Duration::MAX),
            max_connection_age: Some(Duration::MAX),
            ..Config::default()
        };
        let mut life = Life::new(&for_ever, start, 1.0);
        life.frames(0, true, start);
        assert_eq!((life.next_due(&for_ever), life.due(&for_ever, start + SECOND)), (None, None));
    }
}
