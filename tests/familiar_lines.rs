//! The examples that users of tarpc and tonic know take fewer lines here: `tests/calls/familiar_*.rs` are counted against
//! what is published there.
//!
//! Lines that rustfmt writes by its own defaults, as those there are formatted, without blank ones and comments. Of both it
//! is the whole program, definition, service, server and client, without what neither framework decides: flags, logging,
//! what is printed, data that is read from a file, and the attribute of `main`. There the definition is the `.proto` file, and
//! `build.rs`, which has it compiled, is not counted. Where editions of theirs differ, the shortest counts.

use std::{
    io::Write,
    process::{Command, Stdio},
};

/// The three files of tarpc's `example-service`.
const TARPC_WORLD: usize = 54;
/// `helloworld.proto` with `server.rs` and `client.rs` of tonic's `helloworld`.
const TONIC_GREETER: usize = 56;
/// The same of its `routeguide`, all four methods.
const TONIC_ROUTE_GUIDE: usize = 251;

#[test]
fn a_program_that_is_known_from_elsewhere_takes_fewer_lines_here() {
    for (program, there) in [
        (include_str!("calls/familiar_world.rs"), TARPC_WORLD),
        (include_str!("calls/familiar_greeter.rs"), TONIC_GREETER),
        (include_str!("calls/familiar_route_guide.rs"), TONIC_ROUTE_GUIDE),
    ] {
        let (title, here) = (program.lines().next().unwrap_or_default(), lines_of(program));
        println!("{here} here, {there} there: {title}");
        assert!(here < there, "{here} lines here, {there} there: {title}");
        // The page that says so.
        let said = format!("| {here} | {there} |");
        assert!(include_str!("../docs/migrating.md").contains(&said), "docs/migrating.md does not say {said}: {title}");
    }
}

#[test]
fn tests_comments_and_blank_lines_do_not_count_and_each_line_that_rustfmt_breaks_does() {
    let program =
        "//! Title.\n\nuse crate::support::within;\n\n/// Doc.\nfn f(){g();/* h */}\n\n#[tokio::test]\nfn t() {}\n";
    assert_eq!(lines_of(program), 3 + SERVES);
}

/// What stands above the tests is the program, but for what they need.
fn lines_of(file: &str) -> usize {
    let program = file.split("#[tokio::test").next().expect("splitting gives something");
    let counts = |line: &&str| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with("//") && !line.starts_with("use crate::support")
    };
    formatted(program).lines().filter(counts).count() + SERVES
}

/// `bound.serve().await`, which the tests write, for they look at the server meanwhile.
const SERVES: usize = 1;

/// As rustfmt has it without settings, whatever those of this repository are.
fn formatted(code: &str) -> String {
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--config", "max_width=100,use_small_heuristics=Default"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("rustfmt, which `cargo fmt` needs as well");
    rustfmt.stdin.take().expect("a pipe").write_all(code.as_bytes()).expect("rustfmt reads");
    let output = rustfmt.wait_with_output().expect("rustfmt ends");
    assert!(output.status.success(), "rustfmt does not understand {code}");
    String::from_utf8(output.stdout).expect("code is text")
}
