//! One of ten clients wants twenty times its share, and takes no advice: the others are to feel nothing of it.

use std::time::Duration;

use bench_kit::BoxError;
use bench_kit::overload::{Settings, Source};

use crate::overload::bench::{self, Attempt, Bench, RAW, Turn};
use crate::overload::results::Results;
use crate::overload::target::Want;
use crate::overload::workload::W2;

const POLITE: usize = 9;
/// Of the capacity, for each polite one: below the tenth that each may have.
const POLITE_LOAD: f64 = 0.08;
const GREEDY_LOAD: f64 = 2.0;

/// What a connection may have of the server: a quarter, as the documentation has it.
const SHARE: u64 = 4;

/// The greedy one begins so much sooner than what is measured of the others, and ends so much later.
const MARGIN: Duration = Duration::from_millis(250);

pub(in crate::overload) fn run(bench: &Bench, results: &mut Results) -> Result<(), BoxError> {
    let (index, lost) = (Want::AtLeast { gate: 0.98, aim: 0.995 }, Want::AtMost { gate: 0.01, aim: 0.001 });
    // With a limit of a connection there is room for all; without one, it is the queue that makes it.
    for (name, share) in [("a quarter for a connection", Some(SHARE)), ("all for a connection", None)] {
        let found = bench.medians(&W2, |turn| attempt(bench, share, turn))?;
        let condition = |what: &str| format!("W2, {name}: {what}");
        results.figure(found.figure(0, "T12", &condition("Jain's index of ten"), "", index))?;
        results.figure(found.figure(1, "T12", &condition("lost by polite clients"), "of their calls", lost))?;
        let condition = condition("the greedy one refused by the server");
        results.figure(found.figure(2, "fairness", &condition, "of its calls", Want::Nothing))?;
    }
    Ok(())
}

fn attempt(bench: &Bench, share: Option<u64>, Turn { capacity, seed }: Turn) -> Result<Attempt<[f64; 3]>, BoxError> {
    let settings = Settings { limit_per_connection: share.map(|share| W2.limit / share), ..W2.fixed() };
    let mut site = bench.start(None, &settings)?;
    let source = |name: String, load: f64, phases: usize| {
        let loads = vec![W2.at(load * capacity); phases];
        Source { name, connections: 1, priority: 0, loads }
    };
    // Of a client that is our own, the server would have to refuse nothing: it keeps to what a connection may have.
    let greedy = vec![bench.warm_up() / 2, bench.window + 2 * MARGIN, MARGIN];
    let greedy = W2.plan_of(greedy, vec![source("greedy".to_owned(), GREEDY_LOAD, 3)], seed);
    let sources = (0..POLITE).map(|nth| source(format!("polite {nth}"), POLITE_LOAD, 2)).collect();
    let polite = W2.plan_of(vec![bench.warm_up(), bench.window], sources, seed + 1);

    let before = site.served()?;
    let at_greedy = site.begin_by(RAW, &greedy)?;
    let at_polite = site.begin(&polite)?;
    let (of_greedy, of_polite) = (at_greedy.finish()?, at_polite.finish()?);
    let first_calls = bench::first_calls(&greedy) + bench::first_calls(&polite);
    let did = site.served()?.since(&before)?.without(first_calls)?;
    did.check(of_greedy.tallies().chain(of_polite.tallies()))?;

    // What each may have is what it wants, and for the greedy one, what the others leave, up to its limit.
    let left = (1.0 - POLITE as f64 * POLITE_LOAD).min(share.map_or(1.0, |share| 1.0 / share as f64));
    let greedy = &of_greedy.sources[0].phases[1];
    let greedy_share = greedy.goodput(bench.window + 2 * MARGIN) / (left * capacity);
    let served: Vec<_> = of_polite.sources.iter().map(|source| &source.phases[1]).map(|of| of.share(of.ok)).collect();
    let lost = 1.0 - served.iter().sum::<f64>() / POLITE as f64;
    let shares: Vec<_> = served.into_iter().chain([greedy_share.min(1.0)]).collect();
    let refused = greedy.share(greedy.refused_in_all());
    let reports = [&of_greedy, &of_polite];
    let void = bench::void(reports).or_else(|| bench::held_back(reports));
    let void = void.or_else(|| (refused == 0.0).then(|| "the greedy one was refused nothing".to_owned()));
    Ok(([jain(&shares), lost, refused], void))
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
