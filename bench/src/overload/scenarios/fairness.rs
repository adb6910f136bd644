//! One of ten clients wants twenty times its share: the others are to feel nothing of it.

use bench_kit::BoxError;
use bench_kit::overload::{Settings, Source, Tally};

use crate::overload::bench::Bench;
use crate::overload::target::{Figure, Want};
use crate::overload::workload::W2;

const POLITE: usize = 9;
/// Of the capacity, for each polite one: below the tenth that each may have.
const POLITE_LOAD: f64 = 0.08;
const GREEDY_LOAD: f64 = 2.0;

/// What a connection may have of the server: a quarter, as the documentation has it.
const SHARE: u64 = 4;

pub(super) fn run(bench: &mut Bench) -> Result<Vec<Figure>, BoxError> {
    let capacity = bench.known_capacity(&W2)?;
    let settings = Settings { limit_per_connection: Some(W2.limit / SHARE), ..W2.fixed() };
    let site = bench.start(None, &settings)?;
    let source = |name: String, load: f64| {
        let load = W2.at(load * capacity);
        Source { name, connections: 1, priority: 0, loads: vec![load, load] }
    };
    let mut sources = vec![source("greedy".to_owned(), GREEDY_LOAD)];
    sources.extend((0..POLITE).map(|nth| source(format!("polite {nth}"), POLITE_LOAD)));
    let plan = W2.plan_of(vec![bench.warm_up(), bench.window], sources, bench.seed(0));
    let (report, void) = bench.offer(&site, &plan)?;

    let tallies: Vec<_> = report.sources.iter().map(|source| &source.phases[1]).collect();
    let (greedy, polite) = tallies.split_first().ok_or("nobody offered anything")?;
    // What each may have is what it wants, and for the greedy one, what the others leave, up to its limit.
    let left = (1.0 - POLITE as f64 * POLITE_LOAD).min(1.0 / SHARE as f64);
    let greedy_share = greedy.ok as f64 / (left * capacity * bench.window.as_secs_f64());
    let shares: Vec<_> = polite.iter().map(|tally| served(tally)).chain([greedy_share.min(1.0)]).collect();
    let lost = 1.0 - polite.iter().map(|tally| served(tally)).sum::<f64>() / POLITE as f64;
    let jain_wanted = Want::AtLeast { gate: 0.98, aim: 0.995 };
    let figures = [
        Figure::new("T12", "W2, Jain's index of ten", "", jain_wanted, jain(&shares)),
        Figure::new("T12", "W2, lost by polite clients", "", Want::AtMost { gate: 0.01, aim: 0.001 }, lost),
    ];
    Ok(figures.map(|figure| figure.void_if(void.as_deref())).into())
}

fn served(tally: &Tally) -> f64 {
    tally.ok as f64 / tally.offered.max(1) as f64
}

/// 1 if all have the same, 1/n if one has everything (Jain, Chiu, Hawe 1984).
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    sum * sum / (shares.len() as f64 * shares.iter().map(|share| share * share).sum::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_of_jain_goes_from_one_for_all_to_all_for_one() {
        assert_eq!(jain(&[0.5; 10]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
    }
}
