//! Which calls go first when not all can: classes, turned away from the least important upwards.

use std::time::Duration;

use super::{
    clock::Ticks,
    sync::{AtomicU64, Mutex, MutexGuard, Ordering},
};

/// Turns calls of lower classes away while those of higher ones find no room.
///
/// ```text
///   level 0 ---- 1 ---- 2 ---- 3        up: a call was refused, and calls of lower classes still pass
///   sheds: none  3      2, 3   0, 2, 3  down: nobody was refused for as long as it holds
/// ```
///
/// The classes are 1, critical, which is never turned away here; 0, normal; 2, low; and 3, background, as is
/// any other number. It goes up one level at a time, and waits 20 ms to see what that has done. It comes
/// down one level when it has held for 100 ms without a refusal. If that was too early, it goes up
/// again at once and holds twice as long next time, up to 3.2 s: so under a steady load it settles, and
/// does not swing. After ten seconds in peace it forgets that.
///
/// The idea to shed by levels, from what is refused rather than from what a processor does, is that of DAGOR
/// (Zhou et al., "Overload Control for Scaling WeChat Microservices", SoCC 2018), without its many levels.
#[derive(Debug)]
pub struct PriorityGate {
    /// How many classes are shed; changed under the lock.
    level: AtomicU64,
    control: Mutex<Control>,
    changes: AtomicU64,
}

#[derive(Debug)]
struct Control {
    /// How long there must be peace before it comes down.
    hold: Duration,
    /// When it last changed, or a call was refused.
    last: Ticks,
    raised: Ticks,
    /// When it came down.
    lowered: Ticks,
}

impl Default for PriorityGate {
    fn default() -> Self {
        let (long_ago, hold) = (Ticks::new(0), MIN_HOLD);
        let control = Control { hold, last: long_ago, raised: long_ago, lowered: long_ago };
        Self { level: AtomicU64::new(0), control: Mutex::new(control), changes: AtomicU64::new(0) }
    }
}

impl PriorityGate {
    /// A gate that lets everybody pass.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a call of this class may go on.
    ///
    /// # Errors
    ///
    /// It may not: so many classes are turned away, and trying again is no use before so long.
    pub fn admit(&self, class: u8, now: Ticks) -> Result<(), PriorityRefusal> {
        let level = self.level();
        if passes(class, level) {
            return Ok(());
        }
        let mut control = self.lock();
        // Another may have lowered it meanwhile.
        let mut level = self.level();
        if level > 0 && now.saturating_sub(control.hold) >= control.last {
            level -= 1;
            (control.last, control.lowered) = (now, now);
            self.set(level);
        }
        match passes(class, level) {
            true => Ok(()),
            false => Err(PriorityRefusal { classes_shed: level, retry_after: control.hold }),
        }
    }

    /// A call of this class, which was let pass, was refused for want of room.
    pub fn refused(&self, class: u8, now: Ticks) {
        let mut control = self.lock();
        let level = self.level();
        let quiet = now.saturating_sub(FORGET) >= control.last;
        // It would do no good to shed its own class for it.
        let helps = rank(class) < LOWEST - level;
        if helps && now.saturating_sub(SETTLE) >= control.raised {
            control.hold = if quiet {
                MIN_HOLD
            } else if now.saturating_sub(control.hold) < control.lowered {
                // It came down too early.
                (control.hold * 2).min(MAX_HOLD)
            } else {
                control.hold
            };
            control.raised = now;
            self.set(level + 1);
        }
        control.last = control.last.max(now);
    }

    /// How many classes are turned away now.
    pub fn level(&self) -> u64 {
        self.level.load(Ordering::Relaxed)
    }

    /// How often that has changed.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn set(&self, level: u64) {
        self.level.store(level, Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A call turned away because others matter more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lowest {classes_shed} of four classes are turned away; come back in {retry_after:?}")]
#[non_exhaustive]
pub struct PriorityRefusal {
    /// How many of the four classes are turned away.
    pub classes_shed: u64,
    /// When the next one may be let pass.
    pub retry_after: Duration,
}

fn passes(class: u8, level: u64) -> bool {
    rank(class) + level <= LOWEST
}

/// From the most important to the least.
const fn rank(class: u8) -> u64 {
    match class {
        1 => 0,
        0 => 1,
        2 => 2,
        _ => LOWEST,
    }
}

const LOWEST: u64 = 3;
/// What a level has done is seen when the calls have ended that were let in before.
const SETTLE: Duration = Duration::from_millis(20);
const MIN_HOLD: Duration = Duration::from_millis(100);
const MAX_HOLD: Duration = Duration::from_millis(3_200);
const FORGET: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Ticks = Ticks::new(1 << 60);

    fn at(ms: u64) -> Ticks {
        NOW.saturating_add(Duration::from_millis(ms))
    }

    fn passing(gate: &PriorityGate, now: Ticks) -> Vec<u8> {
        [1, 0, 2, 3]
            .into_iter()
            .filter(|&class| passes(class, gate.level()) && gate.admit(class, now).is_ok())
            .collect()
    }

    #[test]
    fn lower_classes_are_shed_first_for_the_sake_of_higher_ones_and_critical_calls_never() {
        let gate = PriorityGate::new();
        assert_eq!(passing(&gate, at(0)), [1, 0, 2, 3]);
        let mut seen = Vec::new();
        for step in 0..5 {
            gate.refused(1, at(step * 20));
            seen.push(passing(&gate, at(step * 20)));
        }
        assert_eq!(seen, [vec![1, 0, 2], vec![1, 0], vec![1], vec![1], vec![1]]);
        assert_eq!(gate.admit(200, at(80)).unwrap_err().classes_shed, 3, "any other number is background");
    }

    #[test]
    fn a_refused_call_sheds_no_call_of_its_own_class_or_a_higher_one() {
        let gate = PriorityGate::new();
        for ms in (0..1_000).step_by(10) {
            gate.refused(3, at(ms));
        }
        assert_eq!(gate.level(), 0);
        for ms in (1_000..2_000).step_by(10) {
            gate.refused(2, at(ms));
        }
        assert_eq!(gate.level(), 1);
    }

    #[test]
    fn it_waits_to_see_what_a_level_has_done() {
        let gate = PriorityGate::new();
        (0..1_000).for_each(|_| gate.refused(1, at(5)));
        assert_eq!(gate.level(), 1);
        gate.refused(1, at(24));
        assert_eq!(gate.level(), 1);
        gate.refused(1, at(25));
        assert_eq!(gate.level(), 2);
    }

    #[test]
    fn in_peace_it_comes_down_level_by_level() {
        let gate = PriorityGate::new();
        gate.refused(1, at(0));
        gate.refused(1, at(20));
        assert!(gate.admit(2, at(119)).is_err());
        assert!(gate.admit(2, at(120)).is_ok() && gate.admit(3, at(120)).is_err());
        assert_eq!(gate.admit(3, at(121)).unwrap_err().retry_after, Duration::from_millis(100));
        assert!(gate.admit(3, at(220)).is_ok());
        assert_eq!((gate.level(), gate.changes()), (0, 4));
    }

    /// Critical calls alone fit; with background calls they do not. How often it changes its mind.
    #[test]
    fn under_a_steady_load_it_settles_instead_of_swinging() {
        let gate = PriorityGate::new();
        let mut changes = Vec::new();
        let mut refused = 0;
        for second in 0..20_u64 {
            let before = gate.changes();
            for ms in second * 1_000..(second + 1) * 1_000 {
                // A critical call is refused whenever background calls are let in.
                if gate.admit(3, at(ms)).is_ok() {
                    refused += 1;
                    gate.refused(1, at(ms));
                }
            }
            changes.push(gate.changes() - before);
        }
        assert!(changes[0] > 4 && changes[10..].iter().all(|&changes| changes <= 2), "{changes:?}");
        assert!(refused < 25, "{refused} of 20,000");
    }

    #[test]
    fn after_a_long_peace_it_reacts_as_at_first() {
        let gate = PriorityGate::new();
        for ms in 0..5_000 {
            if gate.admit(3, at(ms)).is_ok() {
                gate.refused(1, at(ms));
            }
        }
        assert!(gate.lock().hold > MIN_HOLD);
        assert!(gate.admit(3, at(9_000)).is_ok());
        gate.refused(1, at(20_000));
        assert_eq!(gate.lock().hold, MIN_HOLD);
    }

    #[test]
    fn a_stale_reading_changes_nothing_that_is_newer() {
        let gate = PriorityGate::new();
        gate.refused(1, at(1_000));
        gate.refused(1, at(900));
        assert_eq!(gate.level(), 1);
        assert!(gate.admit(3, at(1_050)).is_err());
        assert!(gate.admit(3, at(1_100)).is_ok());
    }
}
