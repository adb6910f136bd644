//! The services, and the limits that suit them.

use std::time::Duration;

use bench_kit::overload::{BEHIND, Closed, Load, Open, Plan, Settings, Source, Work};

/// A service under overload.
#[derive(Debug)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) work: Work,
    /// How long a caller waits for an answer.
    pub(super) deadline: Duration,
    /// Calls that are worth having at a time, and that may wait beside them.
    pub(super) limit: u64,
    pub(super) queue: u64,
}

/// 200 us of CPU.
///
/// One call is enough to keep the CPU busy and a second one to never let it wait. How many may wait beside
/// them is a choice: at exactly the capacity a longer queue loses less, and above it, it is where time goes.
pub(super) const W1: Workload = Workload {
    name: "W1",
    about: "200 us of CPU",
    work: Work { spin_us: 200, wait_us: 0 },
    deadline: Duration::from_millis(4),
    limit: 2,
    queue: 4,
};

/// 10 ms at a service that does 64 calls at a time.
pub(super) const W2: Workload = Workload {
    name: "W2",
    about: "waits 10 ms for a service behind it that does 64 at a time",
    work: Work { spin_us: 0, wait_us: 10_000 },
    deadline: Duration::from_millis(50),
    limit: BEHIND as u64,
    queue: 24,
};

/// An echo. Whoever is alone with it, as here, has no other limit than what the server can do at all.
pub(super) const W3: Workload = Workload {
    name: "W3",
    about: "an echo of 64 B",
    work: Work { spin_us: 0, wait_us: 0 },
    deadline: Duration::from_millis(10),
    limit: 256,
    queue: 0,
};

/// Of a source that stands for many.
pub(super) const CONNECTIONS: usize = 4;

/// What an adaptive limit may find: far more than is right for any service here, and down to a single call.
const CEILING: u64 = 256;

impl Workload {
    /// A limit that was chosen.
    pub(super) fn fixed(&self) -> Settings {
        let max_wait_us = self.deadline.as_micros() as u64 / 2;
        Settings { limit: Some(self.limit), queue: self.queue, max_wait_us, ..Settings::default() }
    }

    /// A limit that finds itself.
    pub(super) fn adaptive(&self) -> Settings {
        Settings { adaptive: true, limit: Some(CEILING), ..Settings::default() }
    }

    /// For peers, whose limits are of a connection and have no queue: as many calls in all, on the only one.
    pub(super) fn of_peers(&self) -> Settings {
        Settings { limit_per_connection: Some(self.limit + self.queue), ..Settings::default() }
    }

    /// Whether a client of ours could not overload it.
    pub(super) fn is_echo(&self) -> bool {
        self.work == Work::default()
    }

    /// So many calls a second, one by one.
    pub(super) fn at(&self, per_sec: f64) -> Load {
        Load { per_sec, burst: 1.0, work: self.work }
    }

    /// All from one source, in phases.
    pub(super) fn plan(&self, phases: &[(Duration, Load)], seed: u64) -> Plan {
        self.plan_on(CONNECTIONS, phases, seed)
    }

    /// The same on so many connections.
    pub(super) fn plan_on(&self, connections: usize, phases: &[(Duration, Load)], seed: u64) -> Plan {
        let loads = phases.iter().map(|&(_, load)| load).collect();
        let source = Source { name: self.name.to_owned(), connections, priority: 0, loads };
        self.plan_of(phases.iter().map(|&(len, _)| len).collect(), vec![source], seed)
    }

    /// From several sources.
    pub(super) fn plan_of(&self, phases: Vec<Duration>, sources: Vec<Source>, seed: u64) -> Plan {
        Plan::Open(Open { phases, sources, deadline: self.deadline, seed })
    }

    /// As many callers as there is room for, and no more.
    pub(super) fn saturate(&self, window: Duration) -> Plan {
        let callers = (self.limit + self.queue / 2) as usize;
        Plan::Closed(Closed { callers, connections: CONNECTIONS, work: self.work, window })
    }
}
