//! All that can be compared: the stacks of this program, and those of the peers' programs.

use std::sync::LazyLock;

use bench_kit::workload::{Kind, Workload};

use crate::stacks::STACKS;

/// A row of a table: a stack of some program, on some number of threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// What its program calls it.
    pub(crate) stack: &'static str,
    /// The package of its program; none if it is this program.
    pub(crate) package: Option<&'static str>,
    /// Worker threads of each of its runtimes, if they are not those of the run; 0 for a
    /// current-thread runtime.
    pub(crate) workers: Option<usize>,
}

/// Here is where a peer is added.
const PEERS: &[Contender] = &[
    peer("tarpc", "peer-tarpc", "structs in bincode, payload as bytes"),
    current_thread("tarpc-ct", peer("tarpc", "peer-tarpc", "the same on current-thread runtimes, where it is fastest")),
    peer("tarpc-vec", "peer-tarpc", "with a plain Vec<u8> as payload"),
    peer("tonic", "peer-tonic", "gRPC, protobuf by prost"),
    peer("volo-thrift", "peer-volo", "Thrift over TTHeader, multiplexed"),
    current_thread("capnp", peer("capnp", "peer-capnp", "Cap'n Proto RPC; one thread a side by its design")),
];

/// All of them, our own first.
pub(crate) fn all() -> &'static [Contender] {
    static ALL: LazyLock<Vec<Contender>> = LazyLock::new(|| {
        let own = STACKS.iter().map(|stack| Contender {
            name: stack.name,
            about: stack.about,
            stack: stack.name,
            package: None,
            workers: None,
        });
        own.chain(PEERS.iter().copied()).collect()
    });
    &ALL
}

/// Finds one by its name; the error is for the command line.
pub(crate) fn find(name: &str) -> Result<&'static Contender, String> {
    all().iter().find(|contender| contender.name == name).ok_or_else(|| {
        let known: Vec<_> = all().iter().map(|contender| contender.name).collect();
        format!("there are {}", known.join(", "))
    })
}

impl Contender {
    /// Whether this workload says anything about it.
    pub(crate) fn takes(&self, workload: &Workload) -> bool {
        // Beside the one whose limit refuses: the same calls served without a limit, and the yardstick.
        match workload.kind {
            Kind::Refused => ["raw-mux", "sluicegate", "sluicegate-open"].contains(&self.name),
            // The others have no streams, or would show the same.
            Kind::Stream => ["raw-mux", "sluicegate", "tonic"].contains(&self.name),
            _ => true,
        }
    }
}

const fn peer(stack: &'static str, package: &'static str, about: &'static str) -> Contender {
    Contender { name: stack, about, stack, package: Some(package), workers: None }
}

const fn current_thread(name: &'static str, peer: Contender) -> Contender {
    Contender { name, workers: Some(0), ..peer }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = all().iter().map(|contender| contender.name).collect();
        assert_eq!(names.len(), all().len());
    }

    #[test]
    fn unknown_names_are_answered_with_the_known_ones() {
        assert!(find("smoke signals").expect_err("no such stack").contains("raw-mux"));
    }
}
