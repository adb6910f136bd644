//! What a connection waits for, and for how long. Time is passed in.

use std::time::{Duration, Instant};

use crate::{config::Config, error::LostCause};

/// The bounds of everything that a connection waits for its server to do: to say HELLO, to end a
/// frame that it has begun, to take what is written, and to show that it is still there.
///
/// The clock is not read for a call. While there is traffic, it is only noted that something came,
/// and looked at from time to time, when the one timer of the connection fires ([`Vigil::look`]).
/// [`Vigil::heard`] reads the clock when something comes after a while of silence, and
/// [`Vigil::rest`] when the connection has nothing to do but wait in the middle of something.
///
/// ```text
///   heard <--something came-- pinged
///     \---interval without---> /  \---timeout without---> lost
/// ```
#[derive(Debug)]
pub(crate) struct Vigil {
    keepalive: Option<Keepalive>,
    /// The HELLO that has not come yet: since when it is waited for.
    greeting: Option<Instant>,
    /// The frame that has not ended: since when its first bytes are there.
    frame: Option<Instant>,
    /// The bytes that are not taken: since when none of them was.
    write: Option<Instant>,
    greeting_timeout: Duration,
    frame_timeout: Duration,
    write_timeout: Duration,
}

#[derive(Debug)]
struct Keepalive {
    interval: Duration,
    timeout: Duration,
    /// Something came since the last look.
    heard: bool,
    /// The last look was short ago and the next is soon: what comes need only be noted.
    attentive: bool,
    /// The last look that found that something had come. Late by at most a look's distance.
    heard_at: Instant,
    pinged_at: Option<Instant>,
    /// When to look next.
    look_at: Option<Instant>,
}

/// What a connection is in the middle of when it rests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfinished {
    /// A frame of the server's.
    pub(crate) frame: bool,
    /// A write.
    pub(crate) write: bool,
}

/// What a look finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// All is well.
    Well,
    /// Nothing came for so long that the server is to be asked.
    Silence,
}

impl Vigil {
    pub(crate) fn new(config: &Config, now: Instant) -> Self {
        let keepalive = config.keepalive_interval.map(|interval| Keepalive {
            interval,
            timeout: config.keepalive_timeout,
            heard: false,
            attentive: false,
            heard_at: now,
            pinged_at: None,
            look_at: now.checked_add(interval),
        });
        Self {
            keepalive,
            greeting: Some(now),
            frame: None,
            write: None,
            greeting_timeout: config.connect_timeout,
            frame_timeout: config.frame_timeout,
            write_timeout: config.write_timeout,
        }
    }

    /// Something came. The clock is read only if nothing had come for a while.
    pub(crate) fn heard(&mut self, now: impl FnOnce() -> Instant) {
        let Some(keepalive) = &mut self.keepalive else { return };
        if keepalive.attentive {
            keepalive.heard = true;
        } else {
            keepalive.note(now());
        }
    }

    /// The server has said HELLO.
    pub(crate) fn greeted(&mut self) {
        self.greeting = None;
    }

    /// A frame has ended.
    pub(crate) fn frame_ended(&mut self) {
        self.frame = None;
    }

    /// The server took some of what is written.
    pub(crate) fn wrote(&mut self) {
        self.write = None;
    }

    /// The connection rests, in the middle of what `unfinished` says. When to look at the latest.
    pub(crate) fn rest(&mut self, unfinished: Unfinished, now: impl Fn() -> Instant) -> Option<Instant> {
        since(&mut self.frame, unfinished.frame, &now);
        since(&mut self.write, unfinished.write, &now);
        let due = |since: Option<Instant>, timeout| since.and_then(|since| since.checked_add(timeout));
        let waits = [
            due(self.greeting, self.greeting_timeout),
            due(self.frame, self.frame_timeout),
            due(self.write, self.write_timeout),
            self.keepalive.as_ref().and_then(|keepalive| keepalive.look_at),
        ];
        waits.into_iter().flatten().min()
    }

    /// Looks whether anything has taken too long by now.
    ///
    /// # Errors
    ///
    /// The connection is as good as lost.
    pub(crate) fn look(&mut self, now: Instant) -> Result<Seen, LostCause> {
        let over = |since: Option<Instant>, timeout| since.is_some_and(|s| now.saturating_duration_since(s) >= timeout);
        if over(self.greeting, self.greeting_timeout) {
            return Err(LostCause::HandshakeTimeout { after: self.greeting_timeout });
        }
        if over(self.frame, self.frame_timeout) {
            return Err(LostCause::FrameTimeout { after: self.frame_timeout });
        }
        if over(self.write, self.write_timeout) {
            return Err(LostCause::WriteTimeout { after: self.write_timeout });
        }
        self.keepalive.as_mut().map_or(Ok(Seen::Well), |keepalive| keepalive.look(now))
    }
}

impl Keepalive {
    fn look(&mut self, now: Instant) -> Result<Seen, LostCause> {
        if self.look_at.is_none_or(|due| now < due) {
            return Ok(Seen::Well);
        }
        if self.heard {
            self.note(now);
            return Ok(Seen::Well);
        }
        self.attentive = false;
        let silent = now.saturating_duration_since(self.heard_at);
        if let Some(pinged_at) = self.pinged_at {
            if now.saturating_duration_since(pinged_at) >= self.timeout {
                return Err(LostCause::KeepaliveTimeout { silent });
            }
        } else if silent >= self.interval {
            self.pinged_at = Some(now);
            self.look_at = now.checked_add(self.timeout);
            return Ok(Seen::Silence);
        } else {
            self.look_at = self.heard_at.checked_add(self.interval);
        }
        Ok(Seen::Well)
    }

    /// Something came, at `now` or a little before.
    fn note(&mut self, now: Instant) {
        self.heard = false;
        self.attentive = true;
        self.heard_at = now;
        self.pinged_at = None;
        // Soon again: the less there is between two looks, the better is known when silence began.
        self.look_at = now.checked_add(self.interval / LOOKS);
    }
}

/// Notes since when something is unfinished, if it is.
fn since(began: &mut Option<Instant>, unfinished: bool, now: impl Fn() -> Instant) {
    match (unfinished, &began) {
        (false, _) => *began = None,
        (true, None) => *began = Some(now()),
        (true, Some(_)) => {}
    }
}

/// So many times in an interval it is looked whether something came. Silence is thus found late by at
/// most this part of the interval; a connection in use wakes up as often, one at rest does not.
const LOOKS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const AT_REST: Unfinished = Unfinished { frame: false, write: false };

    fn config() -> Config {
        Config { keepalive_interval: Some(16 * SECOND), keepalive_timeout: 4 * SECOND, ..Config::default() }
    }

    /// A vigil of a greeted connection.
    fn vigil(config: &Config, now: Instant) -> Vigil {
        let mut vigil = Vigil::new(config, now);
        vigil.greeted();
        vigil
    }

    #[test]
    fn silence_is_asked_about_once_and_then_is_a_loss() {
        let began = Instant::now();
        let mut vigil = vigil(&config(), began);
        assert_eq!(vigil.rest(AT_REST, || began), Some(began + 16 * SECOND));
        assert_eq!(vigil.look(began + 15 * SECOND).unwrap(), Seen::Well);
        assert_eq!(vigil.look(began + 16 * SECOND).unwrap(), Seen::Silence);
        assert_eq!(vigil.rest(AT_REST, || began), Some(began + 20 * SECOND));
        assert_eq!(vigil.look(began + 19 * SECOND).unwrap(), Seen::Well);
        let lost = vigil.look(began + 20 * SECOND).unwrap_err();
        assert!(matches!(lost, LostCause::KeepaliveTimeout { silent } if silent == 20 * SECOND), "{lost:?}");
    }

    #[test]
    fn whatever_comes_ends_the_silence_and_in_traffic_the_clock_is_not_read() {
        let began = Instant::now();
        let mut vigil = vigil(&config(), began);
        vigil.heard(|| began + 8 * SECOND);
        assert_eq!(vigil.rest(AT_REST, || began), Some(began + 9 * SECOND), "it looks again soon");
        vigil.heard(|| panic!("it is noted"));
        assert_eq!(vigil.look(began + 9 * SECOND).unwrap(), Seen::Well);
        vigil.heard(|| panic!("it is noted again"));
        assert_eq!(vigil.look(began + 10 * SECOND).unwrap(), Seen::Well);
        assert_eq!(vigil.look(began + 11 * SECOND).unwrap(), Seen::Well);
        assert_eq!(vigil.rest(AT_REST, || began), Some(began + 26 * SECOND), "nothing came since");
        assert_eq!(vigil.look(began + 26 * SECOND).unwrap(), Seen::Silence);
        vigil.heard(|| began + 27 * SECOND);
        assert_eq!(vigil.look(began + 28 * SECOND).unwrap(), Seen::Well);
        assert_eq!(vigil.rest(AT_REST, || began), Some(began + 43 * SECOND), "an answer is heard when it comes");
        assert_eq!(vigil.look(began + 43 * SECOND).unwrap(), Seen::Silence);
    }

    #[test]
    fn a_frame_and_a_write_are_timed_from_when_they_are_first_found_unfinished() {
        let began = Instant::now();
        let config = Config { keepalive_interval: None, ..Config::default() };
        let mut vigil = vigil(&config, began);
        assert_eq!(vigil.rest(AT_REST, || panic!("nothing to time")), None);
        let unfinished = Unfinished { frame: true, write: false };
        assert_eq!(vigil.rest(unfinished, || began), Some(began + config.frame_timeout));
        assert_eq!(vigil.rest(unfinished, || panic!("it is timed already")), Some(began + config.frame_timeout));
        vigil.frame_ended();
        assert_eq!(vigil.look(began + config.frame_timeout).unwrap(), Seen::Well);
        vigil.rest(unfinished, || began + SECOND);
        assert!(matches!(vigil.look(began + SECOND + config.frame_timeout), Err(LostCause::FrameTimeout { .. })));
        vigil.rest(Unfinished { frame: false, write: true }, || began);
        assert!(matches!(vigil.look(began + config.write_timeout), Err(LostCause::WriteTimeout { .. })));
        vigil.wrote();
        assert_eq!(vigil.look(began + config.write_timeout).unwrap(), Seen::Well);
    }

    #[test]
    fn a_greeting_that_does_not_come_is_a_loss_and_times_without_end_are_none() {
        let began = Instant::now();
        let mut vigil = Vigil::new(&config(), began);
        assert_eq!(vigil.rest(AT_REST, || began), Some(began + 5 * SECOND));
        assert!(matches!(vigil.look(began + 5 * SECOND), Err(LostCause::HandshakeTimeout { .. })));
        let patient = Config {
            keepalive_interval: Some(Duration::MAX),
            connect_timeout: Duration::MAX,
            frame_timeout: Duration::MAX,
            write_timeout: Duration::MAX,
            ..Config::default()
        };
        let mut vigil = Vigil::new(&patient, began);
        vigil.heard(|| began);
        let due = vigil.rest(Unfinished { frame: true, write: true }, || began);
        assert!(due.is_none_or(|due| due > began + 1_000_000_000 * SECOND), "{due:?}");
        assert_eq!(vigil.look(began + 1_000 * SECOND).unwrap(), Seen::Well);
    }
}
