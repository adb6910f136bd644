//! What happens to a server beside too many calls: one file each.

pub(super) mod downstream;
pub(super) mod fairness;
pub(super) mod pause;
pub(super) mod priority;
pub(super) mod recovery;
pub(super) mod slow_readers;

use bench_kit::overload::{Slot, TIME_SLOT};

/// Slots that are looked at together: in one alone there are too few calls to say anything.
const TOGETHER: usize = 4;

/// So many behind them must be alike, taken together: what swings has not settled.
const TO_STAY: usize = 20;

/// The end, in milliseconds after the first of `slots`, of the first four in a row that are as `is_so` says and that
/// are followed by 100 ms that, taken together, are so as well. `None` if there are none.
///
/// Not each four of those 100 ms: calls that begin together end together, so that of the lots in which a service with
/// 64 places finishes, four slots hold one or two.
fn settled_ms(slots: &[Slot], is_so: impl Fn(Slot, usize) -> bool) -> Option<f64> {
    let is_so = |slots: &[Slot]| is_so(sum(slots), slots.len());
    let settled = |window: &[Slot]| {
        let (first, later) = window.split_at(TOGETHER);
        is_so(first) && is_so(later)
    };
    let found = slots.windows(TOGETHER + TO_STAY).position(settled)?;
    Some(ms(found + TOGETHER))
}

fn sum(slots: &[Slot]) -> Slot {
    slots.iter().fold(Slot::default(), |sum, slot| Slot {
        due: sum.due + slot.due,
        due_ok: sum.due_ok + slot.due_ok,
        served: sum.served + slot.served,
    })
}

fn ms(slots: usize) -> f64 {
    slots as f64 * TIME_SLOT.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(slots: &[u64]) -> Vec<Slot> {
        slots.iter().map(|&served| Slot { served, ..Slot::default() }).collect()
    }

    fn settled(slots: &[Slot]) -> Option<f64> {
        settled_ms(slots, |sum, slots| sum.served >= 9 * slots as u64)
    }

    #[test]
    fn what_settles_has_done_so_at_the_end_of_the_first_window_that_is_good() {
        let slots = [[0; 3].as_slice(), &[9; 40]].concat();
        assert_eq!(settled(&served(&slots)), Some(35.0));
        assert_eq!(settled(&served(&[9; 40])), Some(20.0), "nobody is at its best before there is a window");
    }

    #[test]
    fn what_swings_or_has_no_time_left_has_not_settled() {
        let swinging: Vec<_> = (0..80).map(|nth| if nth / 8 % 2 == 0 { 9 } else { 1 }).collect();
        assert_eq!(settled(&served(&swinging)), None);
        assert_eq!(settled(&served(&[9; TOGETHER + TO_STAY - 1])), None);
        // In lots, of which every four slots have one or two.
        let lots: Vec<_> = (0..80).map(|nth| if nth % 3 == 0 { 30 } else { 0 }).collect();
        assert!(settled(&served(&lots)).is_some());
    }
}
