//! What is offered, and when: fixed before anything is sent.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Work;

/// What a generator is to do.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum Plan {
    /// Calls at times of their own, as from many people who know nothing of each other.
    Open(Open),
    /// Callers in a loop, to find out how much a server can do.
    Closed(Closed),
}

impl Plan {
    /// How long it takes, without what there is to be waited for in the end.
    #[must_use]
    pub fn len(&self) -> Duration {
        match self {
            Self::Open(open) => open.len(),
            Self::Closed(closed) => closed.window,
        }
    }
}

/// Sources that offer calls side by side, in phases one after the other.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Open {
    /// The length of each phase.
    pub phases: Vec<Duration>,
    /// Who offers.
    pub sources: Vec<Source>,
    /// How long a caller waits, from the time at which its call was due.
    pub deadline: Duration,
    /// Another one is another draw of times.
    pub seed: u64,
}

/// One who offers calls.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Source {
    /// Its name in the report.
    pub name: String,
    /// Its connections, which take turns.
    pub connections: usize,
    /// The class of its calls.
    pub priority: u8,
    /// What it offers in each phase.
    pub loads: Vec<Load>,
}

/// What a source offers in a phase.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Load {
    /// Calls a second, on average.
    pub per_sec: f64,
    /// Calls that are due at the same time, on average; 1 is a Poisson process.
    pub burst: f64,
    /// What each call is.
    pub work: Work,
}

/// Callers in a loop.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Closed {
    /// Their number.
    pub callers: usize,
    /// The connections that they share.
    pub connections: usize,
    /// What each call is.
    pub work: Work,
    /// For how long calls count.
    pub window: Duration,
}

/// A call that is going to be made.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    /// Since the beginning of the first phase.
    pub at: Duration,
    /// Whose it is, in the order of the plan.
    pub source: u32,
    /// In which phase it is due.
    pub phase: u32,
}

impl Open {
    /// All calls, by the time at which they are due.
    #[must_use]
    pub fn schedule(&self) -> Vec<Due> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut schedule = Vec::new();
        for (source, of) in (0..).zip(&self.sources) {
            let mut start = Duration::ZERO;
            for (phase, (&len, load)) in (0..).zip(self.phases.iter().zip(&of.loads)) {
                let calls = arrivals(load, len, &mut random);
                schedule.extend(calls.map(|at| Due { at: start + at, source, phase }));
                start += len;
            }
        }
        schedule.sort_by_key(|due| due.at);
        schedule
    }

    /// The end of the last phase.
    #[must_use]
    pub fn len(&self) -> Duration {
        self.phases.iter().sum()
    }
}

/// Bursts come as a Poisson process, and their sizes are geometric: both forget what was before.
fn arrivals(load: &Load, len: Duration, random: &mut fastrand::Rng) -> impl Iterator<Item = Duration> {
    let burst = load.burst.max(1.0);
    let bursts_per_sec = load.per_sec / burst;
    let mut at = 0.0;
    std::iter::from_fn(move || {
        at += -(1.0 - random.f64()).ln() / bursts_per_sec;
        let mut size = 1;
        while random.f64() > 1.0 / burst {
            size += 1;
        }
        (at < len.as_secs_f64()).then_some((at, size))
    })
    .flat_map(|(at, size)| std::iter::repeat_n(Duration::from_secs_f64(at), size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(burst: f64) -> Open {
        let load = |per_sec| Load { per_sec, burst, work: Work::default() };
        let source = Source { name: "one".into(), connections: 1, priority: 0, loads: vec![load(2_000.0), load(0.0)] };
        Open {
            phases: vec![Duration::from_secs(10), Duration::from_secs(1)],
            sources: vec![source],
            deadline: Duration::from_millis(1),
            seed: 7,
        }
    }

    #[test]
    fn as_many_calls_are_due_as_the_rate_says_and_none_outside_of_its_phase() {
        for burst in [1.0, 8.0] {
            let schedule = open(burst).schedule();
            assert!((19_000..21_000).contains(&schedule.len()), "{}", schedule.len());
            assert!(schedule.iter().all(|due| due.phase == 0 && due.at < Duration::from_secs(10)));
            assert!(schedule.is_sorted_by_key(|due| due.at));
        }
    }

    #[test]
    fn calls_of_a_burst_are_due_together() {
        let times = |burst| open(burst).schedule().chunk_by(|one, next| one.at == next.at).count();
        assert!(times(1.0) > 19_000);
        assert!((2_200..2_800).contains(&times(8.0)), "{}", times(8.0));
    }

    #[test]
    fn a_seed_draws_the_same_times_again() {
        let at = |seed| Open { seed, ..open(1.0) }.schedule()[5].at;
        assert_eq!(at(1), at(1));
        assert_ne!(at(1), at(2));
    }
}
