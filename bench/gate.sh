#!/usr/bin/env bash
# Counts the server's instructions per call with valgrind; fails if any kind of call takes more than
# 3 % above the number that is kept in bench/micro/benches/instructions.rs.
#
#   bench/gate.sh [OPTION...]    options go to the benchmark, such as a part of a name
#
# Wants valgrind. Installs gungraun-runner, of the version in Cargo.lock, into target/tools.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v valgrind >/dev/null; then
    echo "valgrind is missing, and without it no instruction is counted: install it, such as Debian's package valgrind" >&2
    exit 2
fi

tools=$PWD/target/tools
export PATH="$tools/bin:$PATH"
version=$(sed -n '/^name = "gungraun"$/{n;s/^version = "\(.*\)"$/\1/p}' Cargo.lock)
if [ "$(gungraun-runner --version 2>/dev/null)" != "gungraun-runner $version" ]; then
    echo "installing gungraun-runner $version, which takes a minute or two"
    cargo install gungraun-runner --version "=$version" --locked --quiet --root "$tools"
fi

# The counts are those of the release profile; a user's own flags would make another program of it.
RUSTFLAGS="" cargo bench --package bench-micro --bench instructions --locked -- "$@"
