//! `bench overload`: more calls than a server can do, and what becomes of them.
//!
//! What is measured, how, and what came of it is in `docs/overload.md`.

mod bench;
mod chart;
mod echoes;
mod matrix;
mod rates;
mod results;
mod scenarios;
mod site;
mod target;
mod workload;

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use bench_kit::{BoxError, harness, procfs};
use clap::Args;

use self::bench::Bench;
use self::matrix::Control;
use self::results::{Line, Results};

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct OverloadArgs {
    /// Short phases, few loads and no peers: shows that everything works, proves nothing, and judges nothing.
    #[arg(long)]
    quick: bool,
    /// Targets such as T1, or parts by name, separated by commas; all if not given. Only with all of them, or with
    /// `controls`, is there anything beside the fixed limit.
    #[arg(long, value_delimiter = ',', value_parser = known)]
    only: Vec<String>,
    /// Without the peers, which the first time take minutes to build.
    #[arg(long)]
    no_peers: bool,
    /// Rounds of everything but `slow-readers`; 3 if not given, 1 with --quick.
    #[arg(long)]
    rounds: Option<usize>,
    /// Length of each measured phase; 2 if not given, 0.1 with --quick.
    #[arg(long)]
    seconds: Option<f64>,
    /// Write every figure, and every point of the charts, to this file as a line of JSON, as soon as it is known.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What to draw.
#[derive(Debug, Args)]
pub(crate) struct DrawArgs {
    /// What `overload --json` wrote.
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
    /// The folder to draw to.
    #[arg(long, value_name = "FOLDER", default_value = "docs/overload")]
    out: PathBuf,
}

/// A part of the benchmark.
struct Part {
    name: &'static str,
    /// What it measures.
    targets: &'static [&'static str],
    run: fn(&Bench, &mut Results) -> Result<(), BoxError>,
}

/// Here is where a part is added.
const PARTS: &[Part] = &[
    Part { name: "w1", targets: &["T1", "T5", "T6", "T7", CONTROLS], run: matrix::of_w1 },
    Part { name: "w2", targets: &["T2", "T5", "T6", "T7", CONTROLS], run: matrix::of_w2 },
    Part { name: "echoes", targets: &["T3"], run: echoes::overload },
    Part { name: "costs", targets: &["T8", "T9"], run: echoes::cost_of_a_refusal },
    Part { name: "refusals", targets: &["T10"], run: echoes::time_of_a_refusal },
    Part { name: "rates", targets: &["T11"], run: rates::checks },
    Part { name: "rate-errors", targets: &["T17"], run: rates::errors },
    Part { name: "fairness", targets: &["T12"], run: scenarios::fairness::run },
    Part { name: "priority", targets: &["T13"], run: scenarios::priority::run },
    Part { name: "recovery", targets: &["T14"], run: scenarios::recovery::run },
    Part { name: "pause", targets: &["T7"], run: scenarios::pause::run },
    Part { name: "downstream", targets: &[], run: scenarios::downstream::run },
    Part { name: "slow-readers", targets: &["T15"], run: scenarios::slow_readers::run },
];

const CONTROLS: &str = "controls";

/// Measures all that was asked for. A part that fails, such as by losing calls, does not keep the others from being
/// measured, but makes this fail in the end; a figure that misses its target is no failure.
pub(crate) fn overload(args: &OverloadArgs) -> Result<(), BoxError> {
    let seconds = args.seconds.unwrap_or(if args.quick { 0.1 } else { 2.0 });
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 3 }).max(1);
    println!("{}", procfs::machine());
    let (server, generator) = (site::SERVER_CPU, site::generator_cpu());
    println!("{rounds} rounds x {seconds} s, server on CPU {server}, generator on CPU {generator}, a thread each");
    crate::run::warn_about_noise();
    let mut results = Results::new(args.json.as_deref(), !args.quick)?;
    let mut bench = Bench::new(args.quick, rounds, harness::window_len(seconds)?)?;
    bench.controls = controls(args);
    for (package, stack) in bench.controls.clone().into_iter().filter_map(Control::peer) {
        bench.build(package, stack)?;
    }
    let mut failures = 0;
    let asked = |name: &str| args.only.iter().any(|only| only == name);
    for part in PARTS {
        if !(args.only.is_empty() || asked(part.name) || part.targets.iter().any(|target| asked(target))) {
            continue;
        }
        results.only(if asked(part.name) { &[] } else { &args.only });
        eprintln!("{}", part.name);
        let began = Instant::now();
        if let Err(error) = (part.run)(&bench, &mut results) {
            eprintln!("{} failed: {error}", part.name);
            failures += 1;
        }
        eprintln!("{} took {:.0} s", part.name, began.elapsed().as_secs_f64());
    }
    println!("{}", results.table());
    if failures > 0 {
        return Err(format!("{failures} parts failed, and not all of them is in the table").into());
    }
    Ok(())
}

/// Ways to protect a server that are to be compared.
fn controls(args: &OverloadArgs) -> Vec<Control> {
    let all = args.only.is_empty() || args.only.iter().any(|only| only == CONTROLS);
    let chosen = |control: &Control| match control {
        Control::Fixed => true,
        Control::None | Control::Adaptive => all,
        Control::Tonic | Control::Tarpc => all && !args.quick && !args.no_peers,
    };
    Control::ALL.into_iter().filter(chosen).collect()
}

/// For the command line: all that `--only` knows.
fn known(name: &str) -> Result<String, String> {
    let mut names: Vec<_> = PARTS.iter().flat_map(|part| part.targets.iter().copied().chain([part.name])).collect();
    names.sort_by_key(|name| (name.len(), *name));
    names.dedup();
    if names.contains(&name) { Ok(name.to_owned()) } else { Err(format!("there are {}", names.join(", "))) }
}

/// Draws goodput and latency over the offered load.
pub(crate) fn draw(args: &DrawArgs) -> Result<(), BoxError> {
    let path = args.json.display();
    let text = fs::read_to_string(&args.json).map_err(|error| format!("{path}: {error}"))?;
    let mut points = Vec::new();
    for (nth, line) in (1..).zip(text.lines()) {
        match serde_json::from_str(line).map_err(|error| format!("{path}, line {nth}: {error}"))? {
            Line::Point(point) => points.push(point),
            Line::Figure(_) => {}
        }
    }
    let files = chart::draw(&points, &args.out)?;
    if files.is_empty() {
        return Err(format!("{path} has no points to draw").into());
    }
    files.iter().for_each(|file| println!("drew {}", file.display()));
    Ok(())
}
