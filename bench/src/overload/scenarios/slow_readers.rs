//! Ten times the capacity for a minute, and beside it clients that send all they can and read nothing: what the
//! server's memory grows by.

use std::time::Duration;

use bench_kit::BoxError;

use super::deaf::Deaf;
use crate::overload::bench::Bench;
use crate::overload::target::{Figure, Want};
use crate::overload::workload::W2;

const LOAD: f64 = 10.0;
const DEAF: usize = 50;
const MIB: f64 = 1024.0 * 1024.0;

pub(super) fn run(bench: &mut Bench) -> Result<Vec<Figure>, BoxError> {
    let capacity = bench.known_capacity(&W2)?;
    let site = bench.start(None, &W2.fixed())?;
    // What a server keeps of an overload that is none too long is not growth.
    let load = W2.at(LOAD * capacity);
    let (_, _) = bench.offer(&site, &W2.plan(&[(bench.warm_up(), load)], bench.seed(1)))?;
    let before = site.rss_bytes()?;

    let length = if bench.quick { bench.window } else { Duration::from_secs(60) };
    let deaf = Deaf::start(site.addr(), DEAF)?;
    let (_, void) = bench.offer(&site, &W2.plan(&[(length, load)], bench.seed(0)))?;
    let sent = deaf.stop();
    let grown = site.peak_rss_bytes()?.saturating_sub(before) as f64 / MIB;
    let condition = format!("W2, 10x for {} s, {DEAF} clients that do not read", length.as_secs());
    let figure = Figure::new("T15", condition, "MiB", Want::AtMost { gate: 64.0, aim: 16.0 }, grown);
    let note = format!("they sent {:.0} MiB", sent as f64 / MIB);
    // Memory does not depend on how late calls were sent.
    Ok(vec![figure.note(void.map_or_else(|| note.clone(), |why| format!("{note}; {why}")))])
}
