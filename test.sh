#!/usr/bin/env bash
# Builds and tests everything; fails on any warning.
#
#   ./test.sh          all of it
#   ./test.sh quick    formatting, lints and tests, without unkind transports, the model checker and fuzzing
set -euo pipefail
cd "$(dirname "$0")"

step() { printf '\n== %s\n' "$*"; }
quick=${1:-}
if [ "$quick" != quick ]; then
    # What helps whoever builds again and again, or debugs, costs a fifth of a build that is made once.
    export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=none
fi

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

step "packages as they would be published"
# Built from what is in them, side by side, with each other in place of a registry. `cargo package` would build them itself,
# but takes what it unpacked and built of the same version before, from a time before the change at hand.
packages=(rpc-core rpc-codec rpc-macros rpc-server rpc-client sluicegate)
if ! packaged=$(cargo package "${packages[@]/#/--package=}" --no-verify --allow-dirty --offline --locked 2>&1) ||
    grep '^warning' <<<"$packaged"; then
    echo "$packaged" >&2
    exit 1
fi
archives=${CARGO_TARGET_DIR:-target}/package unpacked=${CARGO_TARGET_DIR:-target}/package/unpacked
rm -rf "$unpacked" && mkdir "$unpacked" && cp Cargo.lock "$unpacked"
printf '[workspace]\nmembers = ["*-*"]\nresolver = "3"\n[patch.crates-io]\n' >"$unpacked/Cargo.toml"
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
for package in "${packages[@]}"; do
    # What is in an archive is as old as any: what has just been unpacked is new.
    tar -xzmf "$archives/$package-$version.crate" -C "$unpacked"
    echo "$package.path = \"$package-$version\"" >>"$unpacked/Cargo.toml"
done
for package in "${packages[@]}"; do
    # Alone, so that none lives on features that another one asks for.
    CARGO_TARGET_DIR=$(realpath "$archives/..") \
        cargo check --manifest-path "$unpacked/Cargo.toml" --package "$package" --offline --quiet
done

# Runs beside the tests, which leave a core idle now and then. Where the target is named, flags do not count for
# macros and build scripts, which then are those that all the rest has.
apart() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    step "model checker: limits under every interleaving"
    # It goes through millions of them; what only its log needs is not worth optimising.
    RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo \
        --config profile.dev.package.rpc-core.opt-level=3 \
        --config profile.dev.package.loom.opt-level=3 \
        --config profile.dev.package.generator.opt-level=3 \
        test --package rpc-core --locked --target "$host" --test limit_loom

    step "schedules: callers, wakers and limits under drawn ones"
    RUSTFLAGS="--cfg shuttle" cargo test --package rpc-core --package rpc-client --package rpc-server \
        --locked --target "$host" --lib --test limit_shuttle schedules

    step "fuzzing, five seconds for each target"
    CARGO_PROFILE_DEV_OPT_LEVEL=1 fuzz/run.sh --seconds 5
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
    # Those whose transports come from tests/support; sieges have sockets. They run as they were built: to have
    # cargo choose them would build all of them anew, with the features that they alone want.
    programs=$(cargo test "${everything[@]}" --no-run 2>&1 |
        sed -nE 's/^ *Executable tests\/(calls|client|server|memory|macro_service|soak)(\/main)?\.rs \((.*)\)$/\3/p')
    [ "$(wc -l <<<"$programs")" -eq 6 ]
    # over <manner>: silent unless it fails.
    over() {
        local log=target/over-$1.log program failed=0
        for program in $programs; do
            SLUICEGATE_TEST_IO=$1 "$program" || failed=1
        done >"$log" 2>&1
        if [ $failed -ne 0 ]; then
            grep -E -B 40 '^test .* FAILED' "$log" >&2
            echo "$1: FAILED, see $log" >&2
            return 1
        fi
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
