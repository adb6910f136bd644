//! The whole program, once over its own stacks and workloads, with windows too short to mean anything.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BENCH: &str = env!("CARGO_BIN_EXE_bench");

/// Workloads that take longer than a moment wherever they are measured.
const LARGE: [&str; 2] = ["e", "g"];

#[test]
fn every_stack_answers_every_workload() {
    let (stacks, workloads) = listed();
    let small: Vec<_> = workloads.iter().map(|name| &**name).filter(|name| !LARGE.contains(name)).collect();
    assert!(stacks.len() >= 8 && small.len() >= 7);
    let rows = run("small", &["--workloads", &small.join(","), "--seconds", "0.05"]);
    // Where calls are refused, and of streams, only those take part that have something to show.
    assert_eq!(rows.len(), stacks.len() * (small.len() - 2) + 3 + 2);
}

#[test]
fn large_messages_and_many_connections_are_measured_too() {
    let rows = run("large", &["--workloads", "e,g", "--stacks", "raw,raw-spawn,sluicegate", "--seconds", "1.5"]);
    assert_eq!(rows.len(), 6);
    for row in rows.iter().filter(|row| row["workload"] == "g") {
        assert!(row["server_bytes_per_connection"].as_f64().is_some_and(|bytes| bytes > 100.0), "{row}");
    }
}

#[cfg(feature = "plot")]
#[test]
fn results_are_drawn_as_svg_and_png() {
    run("plot", &["--workloads", "a,refused", "--stacks", "raw-mux,sluicegate", "--seconds", "0.05"]);
    let json = results("plot");
    let output = Command::new(BENCH).args(["plot", "--json"]).arg(&json).output().expect("bench starts");
    assert!(output.status.success(), "{output:?}");
    let svg = std::fs::read_to_string(json.with_extension("svg")).expect("drawn");
    assert!(svg.contains("raw-mux") && svg.contains("(refused)"));
    assert!(std::fs::read(json.with_extension("png")).expect("drawn").starts_with(b"\x89PNG"));
}

#[test]
fn servers_are_overloaded_in_our_own_ways_and_no_call_is_lost() {
    let (lines, json) = overloaded("overload", &[]);
    let targets: BTreeSet<_> = lines.iter().filter_map(|line| line["target"].as_str()).collect();
    for target in
        ["T1", "T2", "T3", "T6", "T7", "T8", "T9", "T10", "T11", "T12", "T13", "T14", "T15", "T17", "downstream"]
    {
        assert!(targets.contains(target), "{target} is missing in {targets:?}");
    }
    for figure in lines.iter().filter(|line| line["target"].is_string()) {
        assert!(figure["gate_met"].is_null(), "nothing is judged: {figure}");
    }
    let points = || lines.iter().filter(|line| line["workload"].is_string());
    assert_eq!(points().count(), 2 * 2 * 3);
    for point in points() {
        let calls = |head: &str| point[head].as_u64().expect("a number");
        let heads = ["ok", "late", "refused", "expired", "not_begun", "held_back", "failed"];
        let ended: u64 = heads.map(calls).iter().sum();
        assert!(calls("offered") > 0 && calls("offered") == ended, "{point}");
    }

    let folder = json.with_extension("");
    let drawn = Command::new(BENCH).args(["draw-overload", "--json"]).arg(&json).arg("--out").arg(&folder).output();
    // On a machine with other things to do all may be void, and then there is nothing to draw.
    let output = drawn.expect("bench starts");
    if output.status.success() {
        let drawn = std::fs::read_dir(&folder).expect("a folder").count();
        assert!((1..=4).contains(&drawn), "{drawn} pictures");
    } else {
        assert!(String::from_utf8_lossy(&output.stderr).contains("no points"), "{output:?}");
    }
}

#[test]
fn a_part_is_measured_by_its_name_alone() {
    let (lines, _) = overloaded("part", &["--only", "rate-errors"]);
    assert!(lines.iter().all(|line| line["target"] == "T17"), "{lines:?}");
    assert_eq!(lines.len(), 2);
}

/// What `bench overload --quick` found. It fails if a call is not accounted for.
fn overloaded(name: &str, args: &[&str]) -> (Vec<serde_json::Value>, PathBuf) {
    let json = results(name);
    let output = Command::new(BENCH).args(["overload", "--quick", "--json"]).arg(&json).args(args).output();
    let output = output.expect("bench starts");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&json).expect("written by bench");
    (text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect(), json)
}

#[test]
fn a_target_that_nobody_knows_is_answered_with_those_there_are() {
    let output = Command::new(BENCH).args(["overload", "--only", "T99"]).output().expect("bench starts");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("T12"), "{output:?}");
}

/// Runs one round, and returns the lines of its results.
fn run(name: &str, args: &[&str]) -> Vec<serde_json::Value> {
    let json = results(name);
    let output = Command::new(BENCH)
        .args(["run", "--rounds", "1", "--json"])
        .arg(&json)
        .args(args)
        .output()
        .expect("bench starts");
    assert!(output.status.success(), "{output:?}");

    let text = std::fs::read_to_string(&json).expect("written by bench");
    let rows: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let mut measured = BTreeSet::new();
    for row in &rows {
        assert!(row["per_sec"].as_f64().is_some_and(|calls| calls > 0.0), "{row}");
        assert!(row["server_peak_rss_kib"].as_u64().is_some_and(|kib| kib > 0), "{row}");
        let name = |key: &str| row[key].as_str().expect("a name").to_owned();
        assert!(measured.insert((name("stack"), name("workload"))), "{row} twice");
    }
    rows
}

fn results(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).with_extension("jsonl")
}

#[test]
fn server_ends_when_its_runner_is_gone() {
    let mut server = Command::new(BENCH)
        .args(["serve", "--stack", "raw", "--until-stdin-ends"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("bench starts");
    drop(server.stdin.take());
    assert!(server.wait().expect("the server was started").success());
}

#[test]
fn client_ends_when_its_runner_is_gone() {
    let mut server = Command::new(BENCH)
        .args(["serve", "--stack", "raw", "--until-stdin-ends"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bench starts");
    let mut addr = String::new();
    BufReader::new(server.stdout.take().expect("piped")).read_line(&mut addr).expect("it says where it listens");
    let load = ["load", "--stack", "raw", "--workload", "a", "--seconds", "3600", "--until-stdin-ends", "--addr"];
    let mut client = Command::new(BENCH)
        .args(load)
        .arg(addr.trim_end())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("bench starts");
    drop(client.stdin.take());
    assert!(client.wait().expect("the client was started").success());
    drop(server.stdin.take());
    server.wait().expect("the server was started");
}

/// The stacks of the program itself, and the workloads, as `bench list` has them.
fn listed() -> (Vec<String>, Vec<String>) {
    let output = Command::new(BENCH).arg("list").output().expect("bench starts");
    let text = String::from_utf8(output.stdout).expect("names are text");
    let (stacks, others) = text.split_once("peers,").expect("a section of stacks");
    let (_, workloads) = others.split_once("workloads\n").expect("a section of workloads");
    let names = |section: &str| {
        section
            .lines()
            .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    };
    (names(stacks), names(workloads))
}
