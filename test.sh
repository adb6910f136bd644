#!/usr/bin/env bash
# Builds and tests everything; fails on any warning. Installs the tools it needs into target/tools.
#
#   ./test.sh          all of it
#   ./test.sh quick    formatting, lints and tests, without unkind transports, the model checker, the policy and fuzzing
set -euo pipefail
cd "$(dirname "$0")"

step() { printf '\n== %s\n' "$*"; }
quick=${1:-}
tools=$PWD/target/tools
export PATH="$tools/bin:$PATH"

step "format"
cargo fmt --all --check

# Every feature of ours, by name: `--all-features` would build what `bench` compares us with as well.
features=$(sed -n '/^\[features\]/,/^$/s/^\([a-z-]*\) = .*/sluicegate\/\1/p' Cargo.toml | paste -sd,)
everything=(--workspace --features "$features" --locked)

step "lints"
cargo clippy "${everything[@]}" --all-targets -- -D warnings
cargo clippy --package sluicegate --no-default-features --locked -- -D warnings
cargo clippy --package sluicegate --no-default-features --features client --locked -- -D warnings
cargo clippy --package sluicegate --no-default-features --features server --locked -- -D warnings

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc "${everything[@]}" --no-deps --quiet

step "packages in the core tree"
packages=$(cargo tree --package sluicegate --edges normal --prefix none --locked | sed 's/ (\*)$//' | sort -u | wc -l)
echo "$packages packages, at most 65"
[ "$packages" -le 65 ]

# Runs beside the tests, which leave a core idle now and then.
apart() {
    step "model checker: limits under every interleaving"
    RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 CARGO_TARGET_DIR=target/loom \
        cargo test --package rpc-core --release --locked --test limit_loom

    step "schedules: callers, wakers and limits under drawn ones"
    RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle \
        cargo test --package rpc-client --package rpc-server --lib --locked schedules
    RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle \
        cargo test --package rpc-core --locked --test limit_shuttle

    step "policy: licences, bans, sources"
    if ! cargo deny --version >/dev/null 2>&1; then
        # It runs once: to optimise it would take longer than it saves.
        CARGO_PROFILE_DEV_DEBUG=none \
            cargo install cargo-deny --version '^0.20' --locked --debug --quiet --root "$tools"
    fi
    cargo deny --all-features check bans licenses sources

    step "fuzzing, five seconds for each target"
    fuzz/run.sh --seconds 5
}
if [ "$quick" != quick ]; then
    # In a group of its own, which ends with this script.
    set -m
    (
        renice -n 10 "$BASHPID" >/dev/null
        apart
    ) >target/apart.log 2>&1 &
    apart=$!
    set +m
    trap 'kill -- -$apart 2>/dev/null || true' EXIT
fi

step "tests"
cargo test "${everything[@]}"

if [ "$quick" != quick ]; then
    step "tests over transports that take a byte at a time, that are reluctant, and that hold back"
    # Those whose transports come from tests/support; sieges have sockets.
    over_transports=(--test calls --test client --test server --test memory --test macro_service --test soak)
    # over <manner>: silent unless it fails.
    over() {
        local log=target/over-$1.log
        SLUICEGATE_TEST_IO=$1 cargo test "${everything[@]}" --no-fail-fast "${over_transports[@]}" >"$log" 2>&1 || {
            grep -E -B 40 '^(test .* FAILED|error)' "$log" >&2
            echo "$1: FAILED, see $log" >&2
            return 1
        }
        echo "$1: $(grep -c '^test .* ok$' "$log") passed"
    }
    # Each waits for itself most of the time.
    over one-byte & pids=$!
    over reluctant & pids+=" $!"
    over withholding & pids+=" $!"
    for pid in $pids; do wait "$pid"; done

    ended=0
    wait "$apart" || ended=$?
    cat target/apart.log
    [ "$ended" -eq 0 ]
fi

step "all passed"
