//! What happens to a server beside too many calls: one file each.

mod deaf;
mod downstream;
mod fairness;
mod pause;
mod priority;
mod recovery;
mod slow_readers;

use bench_kit::BoxError;
use bench_kit::overload::{Slot, TIME_SLOT};

use super::bench::Bench;
use super::target::Figure;

/// A scenario.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// The target that it measures, if it measures one.
    pub(super) target: &'static str,
    pub(super) run: fn(&mut Bench) -> Result<Vec<Figure>, BoxError>,
}

/// Here is where a scenario is added.
pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "fairness", target: "T12", run: fairness::run },
    Scenario { name: "priority", target: "T13", run: priority::run },
    Scenario { name: "recovery", target: "T14", run: recovery::run },
    Scenario { name: "slow-readers", target: "T15", run: slow_readers::run },
    Scenario { name: "pause", target: "T7", run: pause::run },
    Scenario { name: "downstream", target: "downstream", run: downstream::run },
];

/// Slots that are looked at together: in one alone there are too few calls to say anything.
const TOGETHER: usize = 4;

/// How many milliseconds after the first of `slots` four of them in a row are as `is_so` says; the slots of
/// the four are added up for it. `None` if they never are.
fn first_ms(slots: &[Slot], is_so: impl Fn(Slot) -> bool) -> Option<f64> {
    let sum = |slots: &[Slot]| {
        slots.iter().fold(Slot::default(), |sum, slot| Slot {
            due: sum.due + slot.due,
            due_ok: sum.due_ok + slot.due_ok,
            served: sum.served + slot.served,
        })
    };
    let found = slots.windows(TOGETHER).position(|window| is_so(sum(window)))?;
    Some(found as f64 * TIME_SLOT.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_is_found_where_it_begins() {
        let slots = [0, 0, 0, 9, 9, 9, 9, 9].map(|served| Slot { served, ..Slot::default() });
        assert_eq!(first_ms(&slots, |slot| slot.served >= 36), Some(15.0));
        assert_eq!(first_ms(&slots, |slot| slot.served > 36), None);
    }
}
