//! What is asked of every stack: one row of a table per workload.

/// A number of independent callers, and the message that each of them has echoed.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) connections: usize,
    /// Calls outstanding on each connection, and so callers that share it.
    pub(crate) in_flight: usize,
    pub(crate) payload_len: usize,
}

/// The letters are those of `PEERS.md`. Here is where a workload is added.
pub(crate) const WORKLOADS: &[Workload] =
    &[row("a", 1, 1, 64), row("b", 1, 64, 64), row("c", 16, 16, 64), row("d", 64, 8, 1024)];

/// Length of the name in every message.
pub(crate) const NAME_LEN: usize = 16;

impl Workload {
    /// The text field of the message, for stacks that have messages.
    pub(crate) fn name_field(&self) -> String {
        String::from_utf8(NAME.to_vec()).expect("the name is ASCII")
    }

    /// The payload field of the message.
    pub(crate) fn payload_field(&self) -> Vec<u8> {
        (0..self.payload_len).map(|at| at as u8).collect()
    }

    /// The whole message `{id, name, payload}` without any encoding: what stacks without a codec
    /// send. The first eight bytes are the id, and zero here.
    pub(crate) fn plain_message(&self) -> Vec<u8> {
        let mut message = vec![0; 8];
        message.extend_from_slice(NAME);
        message.extend_from_slice(&self.payload_field());
        message
    }

    pub(crate) fn describe(&self) -> String {
        format!(
            "{} connection{} x {} in flight, {} B",
            self.connections,
            if self.connections == 1 { "" } else { "s" },
            self.in_flight,
            self.payload_len
        )
    }
}

/// Finds a workload by its letter; the error is for the command line.
pub(crate) fn find(name: &str) -> Result<&'static Workload, String> {
    WORKLOADS.iter().find(|workload| workload.name == name).ok_or_else(|| {
        let known: Vec<_> = WORKLOADS.iter().map(|workload| workload.name).collect();
        format!("there are {}", known.join(", "))
    })
}

const NAME: &[u8; NAME_LEN] = b"a caller's name!";

const fn row(name: &'static str, connections: usize, in_flight: usize, payload_len: usize) -> Workload {
    Workload { name, connections, in_flight, payload_len }
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
}
