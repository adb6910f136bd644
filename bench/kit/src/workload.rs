//! What is asked of every stack: one row of a table per workload.

/// A number of independent callers, and the message that each of them has echoed.
#[derive(Debug)]
pub struct Workload {
    /// What the command line calls it.
    pub name: &'static str,
    /// Connections of the client's process.
    pub connections: usize,
    /// Calls outstanding on each connection, and so callers that share it.
    pub in_flight: usize,
    /// Bytes of payload in a message, both ways.
    pub payload_len: usize,
    /// What is special about it.
    pub kind: Kind,
}

/// What a workload asks of the two processes, apart from numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Callers call in a loop, and are served.
    Served,
    /// Every connection makes one call and then stays open: what it costs the server to have it.
    Idle,
    /// As served, but the handler yields to the runtime once before it answers: see
    /// [`wait_once`]. Stacks that have no handler are as they are.
    PendingOnce,
    /// One call whose server sends items without end, as fast as its client takes them: an item is
    /// counted as a call, and what is recorded as its latency is the time since [`ITEMS_PER_READING`] items before.
    Stream,
    /// Servers with a limit of calls in flight set it to one, and that one is taken: all others are
    /// refused. Stacks without such a limit serve, for comparison.
    Refused,
}

/// The letters are those of `docs/benchmarks.md`. Here is where a workload is added.
pub const WORKLOADS: &[Workload] = &[
    row("a", 1, 1, 64, Kind::Served),
    row("b", 1, 64, 64, Kind::Served),
    row("c", 16, 16, 64, Kind::Served),
    row("d", 64, 8, KIB, Kind::Served),
    row("e", 1, 4, KIB * KIB, Kind::Served),
    row("f", 1, 1, 64, Kind::Stream),
    row("g", 2_000, 1, 64, Kind::Idle),
    row("h", 1, 64, 64, Kind::PendingOnce),
    row("i", 256, 1, 64, Kind::Served),
    row("refused", 1, 64, 64, Kind::Refused),
];

/// In a stream the clock is read once for so many items.
pub const ITEMS_PER_READING: u64 = 64;

/// Length of the name in every message.
pub const NAME_LEN: usize = 16;

impl Workload {
    /// The text field of the message, for stacks that have messages.
    pub fn name_field(&self) -> String {
        String::from_utf8(NAME.to_vec()).expect("the name is ASCII")
    }

    /// The payload field of the message.
    pub fn payload_field(&self) -> Vec<u8> {
        (0..self.payload_len).map(|at| at as u8).collect()
    }

    /// The whole message `{id, name, payload}` without any encoding: what stacks without a codec
    /// send. The first eight bytes are the id, and zero here.
    pub fn plain_message(&self) -> Vec<u8> {
        let mut message = vec![0; 8];
        message.extend_from_slice(NAME);
        message.extend_from_slice(&self.payload_field());
        message
    }

    /// Whether a handler yields to the runtime once before it answers.
    pub fn waits_once(&self) -> bool {
        self.kind == Kind::PendingOnce
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        let size = match self.payload_len {
            len if len >= KIB * KIB => format!("{} MiB", len / (KIB * KIB)),
            len if len >= KIB => format!("{} KiB", len / KIB),
            len => format!("{len} B"),
        };
        let connections = self.connections;
        let plural = if connections == 1 { "" } else { "s" };
        match self.kind {
            Kind::Stream => format!("{connections} connection{plural} x 1 stream of items without end, {size}"),
            Kind::Idle => format!("{connections} idle connection{plural} that made one call each, {size}"),
            kind => format!(
                "{connections} connection{plural} x {} in flight, {size}{}",
                self.in_flight,
                match kind {
                    Kind::PendingOnce => ", the handler waits once",
                    Kind::Refused => ", refused where there is a limit",
                    Kind::Served | Kind::Idle | Kind::Stream => "",
                }
            ),
        }
    }
}

/// Yields to the runtime once if the workload says so; what every handler does first.
pub async fn wait_once(waits: bool) {
    if waits {
        tokio::task::yield_now().await;
    }
}

/// Finds a workload by its letter; the error is for the command line.
///
/// # Errors
///
/// There is none of this name; the text lists those there are.
pub fn find(name: &str) -> Result<&'static Workload, String> {
    WORKLOADS.iter().find(|workload| workload.name == name).ok_or_else(|| {
        let known: Vec<_> = WORKLOADS.iter().map(|workload| workload.name).collect();
        format!("there are {}", known.join(", "))
    })
}

const KIB: usize = 1024;
const NAME: &[u8; NAME_LEN] = b"a caller's name!";

const fn row(name: &'static str, connections: usize, in_flight: usize, payload_len: usize, kind: Kind) -> Workload {
    Workload { name, connections, in_flight, payload_len, kind }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_message_has_id_name_and_payload() {
        let message = find("d").expect("d is a workload").plain_message();
        assert_eq!(message.len(), 8 + NAME_LEN + 1024);
    }

    #[test]
    fn unknown_workload_names_the_known_ones() {
        assert!(find("z").expect_err("no z").contains("a, b, c, d"));
    }

    #[test]
    fn descriptions_tell_workloads_apart() {
        let all: std::collections::BTreeSet<_> = WORKLOADS.iter().map(Workload::describe).collect();
        assert_eq!(all.len(), WORKLOADS.len());
    }
}
