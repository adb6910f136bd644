//! The whole program, once over every stack and workload with windows too short to mean anything.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

const BENCH: &str = env!("CARGO_BIN_EXE_bench");

#[test]
fn every_stack_answers_every_workload() {
    let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join("smoke.jsonl");
    let output = Command::new(BENCH)
        .args(["run", "--rounds", "1", "--seconds", "0.05", "--json"])
        .arg(&json)
        .output()
        .expect("bench starts");
    assert!(output.status.success(), "{output:?}");

    let mut measured = BTreeSet::new();
    for line in std::fs::read_to_string(&json).expect("written by bench").lines() {
        let row: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
        assert!(row["per_sec"].as_f64().is_some_and(|calls| calls > 0.0), "{line}");
        assert!(row["server_peak_rss_kib"].as_u64().is_some_and(|kib| kib > 0), "{line}");
        let name = |key: &str| row[key].as_str().expect("a name").to_owned();
        measured.insert((name("stack"), name("workload")));
    }
    let (stacks, workloads) = listed();
    assert!(stacks.len() >= 2 && workloads.len() >= 4);
    assert_eq!(measured.len(), stacks.len() * workloads.len());
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

/// The names in the two sections of `bench list`.
fn listed() -> (Vec<String>, Vec<String>) {
    let output = Command::new(BENCH).arg("list").output().expect("bench starts");
    let text = String::from_utf8(output.stdout).expect("names are text");
    let (stacks, workloads) = text.split_once("workloads\n").expect("two sections");
    let names = |section: &str| {
        section
            .lines()
            .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
            .map(str::to_owned)
            .collect()
    };
    (names(stacks), names(workloads))
}
