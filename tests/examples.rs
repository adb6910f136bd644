//! The examples as their users run them: processes that talk over loopback.
#![cfg(all(unix, feature = "macros", feature = "server", feature = "client"))]

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

#[test]
fn quickstart_does_what_it_promises() {
    let output = Process::start("quickstart", &[]).finish();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    for promise in [
        "A library of 148 books",
        "get 9780131103627: The C Programming Language by Brian W. Kernighan and Dennis M. Ritchie (1978)",
        "9780139376818 The UNIX Programming Environment",
        "not found: no book has the ISBN 9780000000002",
        "by the limit \"global\"",
        "by the limit \"connection rate\"",
        "by the limit \"global rate\"",
        "it says CONCURRENCY_LIMIT: limit global, max_in_flight 8, in_flight 8",
        "it says RATE_LIMIT: limit connection rate, max_per_second 2, burst 10",
        "it says to come back in ",
        "we did, and were served",
        " released, 0 held",
    ] {
        assert!(text.contains(promise), "no {promise:?} in\n{text}");
    }
}

/// Runs an example that ends by itself; what it says.
fn said(example: &str) -> String {
    let output = Process::start(example, &[]).finish();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn auth_lets_in_whom_it_knows_and_to_what_they_may_do() {
    let text = said("auth");
    let expected = [
        "sesame: written",
        "sesame: Ada reads: buy milk",
        "open: permission denied: Bob may only read",
        "open: Bob reads: buy milk",
        "guess: unauthenticated: this token is nobody's (never executed)",
        "guess: unauthenticated: this token is nobody's (never executed)",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn handler_audits_every_call_and_limits_each_tenant() {
    let text = said("handler");
    for line in [
        "acme called Greeter/greet: refused by the limit \"tenant\"",
        "acme called Greeter/greet: 15 bytes",
        "initech called Greeter/greet: 15 bytes",
        "acme is told that 1 of Some(\"tenant\") are in flight",
        "acme called Greeter/greet: invalid argument: whom?",
        "nobody called Greeter/greet: invalid argument: say for which tenant: metadata `tenant` (never executed)",
        "2 served, 2 failed, 1 refused",
    ] {
        assert!(text.lines().any(|said| said == line), "no {line:?} in\n{text}");
    }
}

#[test]
fn errors_are_told_with_what_to_do_about_each() {
    let text = said("errors");
    let promises = [
        "not found: no book has the ISBN 9780000000002 [library.example/NO_SUCH_BOOK: isbn 9780000000002]",
        "  -> look for another book",
        "unavailable: nobody is at the desk [library.example/DESK_BUSY] (try again in 100ms)",
        "  -> come back in 100ms",
        "invalid argument: this is no ISBN",
        "  -> correct isbn: 13 digits",
        "internal: the cover cannot be read",
        "  -> tell a person",
        "  -> try elsewhere; nothing happened here",
    ];
    for line in promises {
        assert!(text.lines().any(|said| said == line), "no {line:?} in\n{text}");
    }
    assert!(text.contains("cannot connect to 127.0.0.1:") && text.contains(": Connection refused"), "{text}");
    assert!(!text.contains("desk 7"), "what stays at home is not told: {text}");
}

#[test]
fn embed_serves_pages_and_calls_with_one_state_and_stops_both() {
    let mut process = Process::start("embed", &[]);
    let mut lines = BufReader::new(process.0.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    let ready = lines.next().expect("it says where it listens");
    let (pages, calls) = ready.split_once(", ").expect("two addresses");
    let (pages, calls) = (pages.trim_start_matches("pages on "), calls.trim_start_matches("calls on "));
    for visitor in 1..=3 {
        assert!(get(pages, "/").ends_with(&format!("visitor {visitor}\n")));
    }
    assert!(get(pages, "/ready").ends_with("ready\n"));
    let client = sluicegate::Client::new(calls);
    let visitors = client.call::<_, u64>(sluicegate::client::Method::new("Counter", "visitors"), ()).wait();
    assert_eq!(visitors.expect("it is served"), 3);
    let health = client.service::<sluicegate::client::HealthClient>().check("").wait();
    assert_eq!(health.expect("it is served"), sluicegate::Health::Serving);
    process.signal("INT");
    assert_eq!(lines.next().as_deref(), Some("both have stopped, 0 calls were cut off"));
    assert!(process.0.wait().expect("it is our child").success());
}

#[cfg(all(feature = "metrics", feature = "config"))]
#[test]
fn metrics_shows_prometheus_the_figures_of_server_and_client() {
    let mut process = Process::start("metrics", &["127.0.0.1:0", "120"]);
    let mut lines = BufReader::new(process.0.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    let ready = lines.next().expect("it says where it listens");
    let address = ready.trim_start_matches("http://").split('/').next().expect("an address");
    // Both export once a second.
    let wanted = [
        "sluicegate_max{limit=\"Reports/yearly\"} 2",
        "sluicegate_refused_total{by=\"Reports/yearly\"}",
        "sluicegate_service_seconds{method=\"Reports/daily\",quantile=",
        "sluicegate_client_connects_total{client=\"reports\"} 1",
        "sluicegate_client_call_seconds_count{method=\"Reports/yearly\",code=\"RESOURCE_EXHAUSTED\"}",
    ];
    let mut page = get(address, "/metrics");
    while !wanted.iter().all(|line| page.contains(line)) {
        assert!(
            process.0.try_wait().expect("it is our child").is_none(),
            "it ended, and never said all of that: {page}"
        );
        page = get(address, "/metrics");
    }
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
}

#[test]
fn a_client_looks_up_and_searches_and_says_what_went_wrong() {
    let server = Server::start(&[]);
    let found = server.client(&["get", "9780131103627"]).finish();
    assert!(found.status.success());
    assert!(String::from_utf8_lossy(&found.stdout).contains("The C Programming Language"), "{found:?}");
    let found = server.client(&["search", "kernighan"]).finish();
    assert_eq!(String::from_utf8_lossy(&found.stdout).lines().count(), 4, "{found:?}");
    let missing = server.client(&["get", "9780000000002"]).finish();
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("not found: no book has the ISBN"), "{missing:?}");
    let addr = server.addr.clone();
    server.stop();
    let refused = Process::start("client", &["--addr", &addr, "get", "9780131103627"]).finish();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("never executed, so it is safe"), "{refused:?}");
}

#[test]
fn load_without_limits_is_served_without_an_error_or_a_leaked_permit() {
    let server = Server::start(&[]);
    let load = server.load(20_000).json();
    assert_eq!(figures(&load, ["calls", "ok", "refused", "failed"]), [20_000, 20_000, 0, 0], "{load}");
    let stopped = server.stop();
    assert_eq!(figures(&stopped, ["acquired", "released", "held"]), [20_000, 20_000, 0], "{stopped}");
}

#[test]
fn load_beyond_a_limit_is_refused_politely_and_accounted_for() {
    let server = Server::start(&["--max-concurrent", "8", "--delay-us", "5000"]);
    let load = server.load(2_000).json();
    let [calls, ok, refused, failed] = figures(&load, ["calls", "ok", "refused", "failed"]);
    assert_eq!((calls, ok + refused, failed), (2_000, 2_000, 0), "{load}");
    assert!(ok >= 8 && refused > 0, "{load}");
    let stopped = server.stop();
    assert_eq!(figures(&stopped, ["acquired", "released", "held", "max_in_flight"]), [ok, ok, 0, 8], "{stopped}");
    assert_eq!(stopped["refused"], load["refused_by"], "both ends count the same");
}

#[test]
fn a_signal_in_the_middle_of_load_drains() {
    // As many callers as the limit lets in, so that it is full, and hardly a call is refused.
    let server = Server::start(&["--max-concurrent", "256", "--delay-us", "20000"]);
    let load = server.load(100_000);
    server.await_full();
    let stopped = server.stop();
    let [acquired, released, held, cut] = figures(&stopped, ["acquired", "released", "held", "cut"]);
    assert_eq!((released, held, cut), (acquired, 0, 0), "{stopped}");
    let load = load.json();
    let [calls, ok, refused, failed] = figures(&load, ["calls", "ok", "refused", "failed"]);
    assert_eq!((calls, ok + refused + failed), (100_000, 100_000), "{load}");
    // Other calls than those of the load have been admitted, too: those that looked whether it is full.
    assert!(0 < ok && ok <= acquired, "{load}");
    // None was lost: calls that were not answered were not sent, for there was no server any more.
    let failures = load["failures"].as_object().expect("failures by their text");
    assert!(failures.keys().all(|text| text.starts_with("cannot connect")), "{load}");
}

#[test]
fn a_second_signal_does_not_wait() {
    let server = Server::start(&["--max-concurrent", "1", "--delay-us", "60000000"]);
    let waiting = server.client(&["load", "--connections", "1", "--in-flight", "1", "--timeout-ms", "0"]);
    server.await_full();
    server.process.signal("TERM");
    // Two signals at once may be taken for one; the first has been heard when nobody is let in.
    server.await_error("cannot connect");
    let stopped = server.stop();
    assert_eq!(figures(&stopped, ["held", "max_in_flight", "cut"]), [0, 1, 1], "{stopped}");
    waiting.kill();
}

#[test]
fn clients_that_are_killed_in_the_middle_of_load_leave_nothing_behind() {
    let server = Server::start(&["--max-concurrent", "256", "--delay-us", "20000"]);
    for _ in 0..3 {
        let load = server.load(1_000_000);
        server.await_full();
        load.kill();
        server.await_success();
    }
    let stopped = server.stop();
    let [acquired, released, held] = figures(&stopped, ["acquired", "released", "held"]);
    assert_eq!((released, held), (acquired, 0), "{stopped}");
}

#[test]
fn a_search_pauses_for_a_slow_consumer_and_holds_little_meanwhile() {
    let output = Process::start("search", &[]).finish();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    for promise in [
        "after 3 s, 300 taken",
        "paused",
        "all 148000 taken",
        "the producer was stopped",
        "permits: 2 acquired, 2 released",
    ] {
        assert!(text.contains(promise), "no {promise:?} in\n{text}");
    }
}

#[test]
fn people_in_processes_of_their_own_hear_each_other() {
    let mut room = Process::start("chat", &["serve", "--addr", "127.0.0.1:0"]);
    let opened = lines_of(&mut room).recv_timeout(PATIENCE).expect("the room opens");
    let addr = opened.rsplit(' ').next().expect("an address").to_owned();
    let join = |name: &str| Process::talking("chat", &["join", "--addr", &addr, "--name", name]);
    let mut ada = join("Ada");
    let heard_by_ada = lines_of(&mut ada);
    let next = |heard: &Receiver<String>| heard.recv_timeout(PATIENCE).expect("something is heard");
    assert_eq!(next(&heard_by_ada), "* Ada joined");
    let mut grace = join("Grace");
    let heard_by_grace = lines_of(&mut grace);
    assert_eq!((next(&heard_by_ada), next(&heard_by_grace)), ("* Grace joined".into(), "* Grace joined".into()));
    grace.say("good morning");
    assert_eq!(
        (next(&heard_by_ada), next(&heard_by_grace)),
        ("Grace: good morning".into(), "Grace: good morning".into())
    );
    // One leaves in peace, one without a word.
    drop(grace.0.stdin.take());
    assert!(grace.0.wait().expect("it is our child").success());
    assert_eq!(next(&heard_by_ada), "* Grace left");
    let mut joan = join("Joan");
    assert_eq!(next(&lines_of(&mut joan)), "* Joan joined");
    assert_eq!(next(&heard_by_ada), "* Joan joined");
    joan.kill();
    assert_eq!(next(&heard_by_ada), "* Joan left");
}

fn lines_of(process: &mut Process) -> Receiver<String> {
    let stdout = BufReader::new(process.0.stdout.take().expect("it is piped"));
    let (sender, lines) = channel();
    thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}

/// The server example, ready to be called.
struct Server {
    process: Process,
    lines: Receiver<String>,
    addr: String,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let mut process = Process::start("server", &[&["--addr", "127.0.0.1:0", "--json"], args].concat());
        let lines = lines_of(&mut process);
        let mut server = Self { process, lines, addr: String::new() };
        let ready = server.event("ready");
        server.addr = ready["addr"].as_str().expect("an address").to_owned();
        server
    }

    fn client(&self, args: &[&str]) -> Process {
        Process::start("client", &[&["--addr", &*self.addr], args].concat())
    }

    /// Load by 4 connections with 64 calls in flight on each.
    fn load(&self, calls: u32) -> Process {
        self.client(&["--json", "load", "--calls", &calls.to_string(), "--connections", "4", "--in-flight", "64"])
    }

    /// Waits until as many calls are in flight as may be, which is when one more is refused.
    fn await_full(&self) {
        self.await_error("CONCURRENCY_LIMIT");
    }

    /// Waits until a call meets this error.
    fn await_error(&self, error: &str) {
        self.await_outcome(|output| String::from_utf8_lossy(&output.stderr).contains(error));
    }

    /// Waits until a call succeeds.
    fn await_success(&self) {
        self.await_outcome(|output| output.status.success());
    }

    fn await_outcome(&self, expected: impl Fn(&Output) -> bool) {
        let begun = Instant::now();
        loop {
            let output = self.client(&["get", "9780131103627", "--timeout-ms", "200"]).finish();
            if expected(&output) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "still {output:?}");
        }
    }

    /// Asks it to end and waits until it has; what it said last.
    fn stop(mut self) -> Value {
        self.process.signal("TERM");
        let stopped = self.event("stopped");
        let status = self.process.0.wait().expect("it is our child");
        assert!(status.success(), "{status}");
        stopped
    }

    fn event(&mut self, name: &str) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("no event {name:?}: {error}"));
        let event: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
        assert_eq!(event["event"], name, "{line}");
        event
    }
}

/// What a server of HTTP answers.
fn get(address: &str, path: &str) -> String {
    let mut socket = std::net::TcpStream::connect(address).expect("it listens");
    write!(socket, "GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n").expect("it reads");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("it answers");
    text
}

/// An example as a process. It does not outlive its test.
struct Process(Child);

impl Process {
    fn start(example: &str, args: &[&str]) -> Self {
        Self::start_with(example, args, Stdio::null())
    }

    /// One that is talked to.
    fn talking(example: &str, args: &[&str]) -> Self {
        Self::start_with(example, args, Stdio::piped())
    }

    fn say(&mut self, line: &str) {
        let stdin = self.0.stdin.as_mut().expect("it is talked to");
        writeln!(stdin, "{line}").expect("it listens");
    }

    fn start_with(example: &str, args: &[&str], stdin: Stdio) -> Self {
        let test = env::current_exe().expect("the path of this test");
        // Cargo puts tests into `deps`, and examples beside it.
        let folder = test.parent().and_then(Path::parent).expect("tests are two levels deep");
        let path = folder.join("examples").join(example);
        // `cargo test` builds it, but not when it is told which tests to run.
        assert!(path.exists(), "no {}: `cargo build --examples` makes it", path.display());
        let mut command = Command::new(path);
        command.args(args).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("the example starts"))
    }

    /// Waits until it ends by itself.
    fn finish(mut self) -> Output {
        let stdout = read_in_background(self.0.stdout.take());
        let stderr = read_in_background(self.0.stderr.take());
        let stdout = stdout.recv_timeout(PATIENCE).expect("it ends in time");
        let stderr = stderr.recv_timeout(PATIENCE).expect("it ends in time");
        Output { status: self.0.wait().expect("it is our child"), stdout, stderr }
    }

    /// Waits until it ends by itself; its one line of output.
    fn json(self) -> Value {
        let output = self.finish();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    fn signal(&self, name: &str) {
        // The shell's own `kill` is there even where the program is not.
        let script = format!("kill -{name} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &script]).status().expect("there is a shell").success());
    }

    /// Ends it with SIGKILL, in the middle of whatever it does.
    fn kill(self) {
        drop(self);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn read_in_background(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, bytes) = channel();
    let mut pipe = pipe.expect("it is piped, and read once");
    thread::spawn(move || {
        let mut all = Vec::new();
        // What was read before an error is what there is.
        let _ = pipe.read_to_end(&mut all);
        let _ = sender.send(all);
    });
    bytes
}

fn figures<const N: usize>(event: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| event[name].as_u64().unwrap_or_else(|| panic!("no number {name:?} in {event}")))
}

/// Long enough for a busy machine. A test that works does not come near it.
const PATIENCE: Duration = Duration::from_secs(60);
