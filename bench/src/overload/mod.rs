//! `bench overload`: more calls than a server can do, and what becomes of them.
//!
//! What is measured, how, and what came of it is in `docs/overload.md`.

mod bench;
mod chart;
mod matrix;
mod parts;
mod scenarios;
mod site;
mod target;
mod workload;

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use bench_kit::{BoxError, harness, procfs};
use clap::Args;
use serde::{Deserialize, Serialize};

use self::bench::Bench;
use self::matrix::{Control, Point};
use self::scenarios::SCENARIOS;
use self::target::Figure;
use self::workload::{W1, W2};

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct OverloadArgs {
    /// Short phases, few loads and no peers: shows that everything works, proves nothing.
    #[arg(long)]
    quick: bool,
    /// Targets such as T1, or scenarios by name, separated by commas; all if not given. Only with all of them, or with
    /// `controls`, is there anything beside the fixed limit.
    #[arg(long, value_delimiter = ',', value_parser = known)]
    only: Vec<String>,
    /// Without the peers, which the first time take minutes to build.
    #[arg(long)]
    no_peers: bool,
    /// Rounds of the matrix; 3 if not given, 1 with --quick.
    #[arg(long)]
    rounds: Option<usize>,
    /// Length of each measured phase; 3 if not given, 0.1 with --quick.
    #[arg(long)]
    seconds: Option<f64>,
    /// Write every figure, and every point of the charts, to this file as a line of JSON.
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

/// A line of the JSON file.
#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged)]
enum Line {
    Figure(Figure),
    Point(Point),
}

/// Targets that are measured by calling a server in each way under each load, and by its parts.
const OF_W1: &[&str] = &["T1", "T5", "T6", "T7"];
const OF_W2: &[&str] = &["T2", "T5", "T6", "T7", "T10"];
const OTHERS: &[&str] = &["T3", "T8", "T9", "T11", "T17", CONTROLS];
const CONTROLS: &str = "controls";

/// Measures all that was asked for. Fails if calls were lost; a figure that misses its target is no failure.
pub(crate) fn overload(args: &OverloadArgs) -> Result<(), BoxError> {
    let seconds = args.seconds.unwrap_or(if args.quick { 0.1 } else { 3.0 });
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 3 }).max(1);
    let mut json = args.json.as_ref().map(File::create).transpose()?;
    println!("{}", procfs::machine());
    println!("{rounds} rounds x {seconds} s, server on CPU 0, generator on CPU 1, a thread each");
    crate::run::warn_about_noise();
    let mut bench = Bench::new(args.quick, rounds, harness::window_len(seconds)?)?;
    let (figures, points) = measure(args, &mut bench)?;
    if let Some(json) = &mut json {
        for line in points.into_iter().map(Line::Point).chain(figures.iter().cloned().map(Line::Figure)) {
            writeln!(json, "{}", serde_json::to_string(&line)?)?;
        }
    }
    println!("{}", target::table(&figures));
    Ok(())
}

fn measure(args: &OverloadArgs, bench: &mut Bench) -> Result<(Vec<Figure>, Vec<Point>), BoxError> {
    let asked = |names: &[&str]| args.only.is_empty() || names.iter().any(|name| args.only.iter().any(|o| o == name));
    let controls = controls(args, bench, asked(&[CONTROLS]))?;
    let (mut figures, mut points) = (Vec::new(), Vec::new());
    for (workload, targets) in [(&W1, OF_W1), (&W2, OF_W2)] {
        if asked(targets) || asked(&[CONTROLS]) {
            points.extend(matrix::measure(bench, workload, &controls)?);
            figures.extend(matrix::judge(workload, &points));
        }
    }
    if asked(&["T10"]) {
        let (echo_p99_us, void) = parts::unloaded_echo_p99_us(bench)?;
        let note = format!("p99 of an echo is {echo_p99_us:.0} us");
        let judged = matrix::judge_refusals(&points, echo_p99_us).into_iter();
        figures.extend(judged.map(|figure| figure.note(&*note).void_if(void.as_deref())));
    }
    if asked(&["T3", "T8"]) {
        figures.extend(parts::cost_of_a_refusal(bench)?);
    }
    if asked(&["T9"]) {
        figures.extend(parts::held_elsewhere());
    }
    if asked(&["T11"]) {
        figures.extend(parts::rate_checks(bench)?);
    }
    for scenario in SCENARIOS.iter().filter(|scenario| asked(&[scenario.name, scenario.target])) {
        eprintln!("scenario {}", scenario.name);
        figures.extend((scenario.run)(bench)?);
    }
    if asked(&["T17"]) {
        figures.extend(parts::rate_errors()?);
    }
    figures
        .retain(|figure| args.only.is_empty() || asked(&[&figure.target]) || is_scenario(&figure.target, &args.only));
    figures
        .sort_by_key(|figure| figure.target.strip_prefix('T').and_then(|nth| nth.parse().ok()).unwrap_or(usize::MAX));
    Ok((figures, points))
}

/// Ways to protect a server that are to be compared; builds those that are other programs.
fn controls(args: &OverloadArgs, bench: &mut Bench, all: bool) -> Result<Vec<Control>, BoxError> {
    let peers = all && !args.quick && !args.no_peers;
    let chosen = |control: &Control| match control {
        Control::Fixed => true,
        Control::None => all,
        Control::Adaptive => all && !args.quick,
        Control::Tonic | Control::Tarpc => peers,
    };
    let controls: Vec<_> = Control::ALL.into_iter().filter(chosen).collect();
    for (package, stack) in controls.iter().filter_map(|control| control.peer()) {
        bench.build(package, stack)?;
    }
    Ok(controls)
}

/// Whether a figure, whatever its target, is of a scenario that was asked for by name.
fn is_scenario(target: &str, only: &[String]) -> bool {
    let asked = |name: &str| only.iter().any(|only| only == name);
    SCENARIOS.iter().any(|scenario| asked(scenario.name) && (scenario.target == target || scenario.name == target))
}

/// For the command line: all that `--only` knows.
fn known(name: &str) -> Result<String, String> {
    let names = [OF_W1, OF_W2, OTHERS].concat().into_iter();
    let mut names: Vec<_> = names.chain(SCENARIOS.iter().flat_map(|s| [s.name, s.target])).collect();
    names.sort_by_key(|name| (name.len(), *name));
    names.dedup();
    if names.contains(&name) { Ok(name.to_owned()) } else { Err(format!("there are {}", names.join(", "))) }
}

/// Draws goodput and latency over the offered load.
pub(crate) fn draw(args: &DrawArgs) -> Result<(), BoxError> {
    let text = fs::read_to_string(&args.json).map_err(|error| format!("{}: {error}", args.json.display()))?;
    let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Line>, _>>()?;
    let points: Vec<_> =
        lines.into_iter().filter_map(|line| if let Line::Point(point) = line { Some(point) } else { None }).collect();
    let files = chart::draw(&points, &args.out)?;
    if files.is_empty() {
        return Err(format!("{} has no points to draw", args.json.display()).into());
    }
    files.iter().for_each(|file| println!("drew {}", file.display()));
    Ok(())
}
