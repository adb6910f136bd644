#!/usr/bin/env bash
# Runs the fuzz targets for a bounded time from their corpus; fails on a crash, a hang, growth, or a corpus that
# reaches less than it did.
#
#   fuzz/run.sh [--seconds N] [target...]    each target for N seconds (default 30), all by default
#   fuzz/run.sh --coverage [target...]       what the corpus covers, by source file
#   fuzz/run.sh --minimise [target...]       puts what runs found into the corpus, and makes it small
#
# Stable Rust and a C++ compiler are enough; --coverage needs LLVM's tools of rustc's version.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=run
seconds=30
targets=()
while [ $# -gt 0 ]; do
    case $1 in
        --seconds) seconds=${2:?--seconds wants a number}; shift ;;
        --coverage) mode=coverage ;;
        --minimise) mode=minimise ;;
        -*) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
        *) targets+=("$1") ;;
    esac
    shift
done
if [ ${#targets[@]} -eq 0 ]; then
    for folder in fuzz/corpus/*/; do targets+=("$(basename "$folder")"); done
fi
for target in "${targets[@]}"; do
    [ -d "fuzz/corpus/$target" ] || { echo "there is no target $target" >&2; exit 2; }
done

# Flags count for the target platform only once it is named; build scripts and macros stay plain.
host=$(rustc -vV | sed -n 's/^host: //p')
target_dir=${CARGO_TARGET_DIR:-$PWD/target}
work=$target_dir/fuzz
binary=$target_dir/$host/debug/fuzz
# What is measured or fuzzed is optimised, and still checks arithmetic and its own assertions. Who fuzzes for
# seconds may want it built in less time.
build() {
    CARGO_PROFILE_DEV_OPT_LEVEL=${CARGO_PROFILE_DEV_OPT_LEVEL:-3} \
    CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-line-tables-only} RUSTFLAGS="$1" \
        cargo build --package fuzz --bin fuzz --target "$host" --locked --quiet
}

if [ $mode = coverage ]; then
    llvm=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
    for tool in profdata cov; do
        command -v "llvm-$tool-$llvm" >/dev/null || {
            echo "llvm-$tool-$llvm is missing: install LLVM $llvm, such as Debian's package llvm-$llvm" >&2
            exit 2
        }
    done
    build "-Cinstrument-coverage"
    rm -f "$work"/*.profraw
    for target in "${targets[@]}"; do
        LLVM_PROFILE_FILE="$work/$target.profraw" "$binary" "$target" "fuzz/corpus/$target"
    done
    "llvm-profdata-$llvm" merge -sparse "$work"/*.profraw -o "$work/corpus.profdata"
    "llvm-cov-$llvm" report "$binary" --instr-profile="$work/corpus.profdata" \
        --show-branch-summary=false --show-instantiation-summary=false \
        --sources rpc-core/src rpc-codec/src rpc-server/src rpc-client/src
    exit
fi

build "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
# A second for one input is a thousand times what most take; others may have the cores.
limits=(-timeout=20 -rss_limit_mb=512 -max_len=4096)

# fuzzer <target> <argument>...: libFuzzer, silent unless it fails.
fuzzer() {
    local target=$1
    shift
    FUZZ_TARGET=$target "$binary" "${limits[@]}" -artifact_prefix="$work/failed-$target-" "$@" >"$work/$target.log" 2>&1 || {
        tail -n 60 "$work/$target.log" >&2
        echo "$target FAILED; the input is in $work/failed-$target-*" >&2
        return 1
    }
}

# edges <target> <folder>...: how many the inputs there reach.
edges() {
    fuzzer "$1" -runs=0 "${@:2}"
    sed -n 's/.*INITED cov: \([0-9]*\).*/\1/p' "$work/$1.log"
}

# lost <target> <edges>: whether its corpus reaches less than 95 % of what README.md says. Edges are only comparable
# where the same compiler has optimised in the same way.
lost() {
    local kept
    grep -qxF "rustc $(rustc -vV | sed -n 's/^release: //p') at opt-level ${CARGO_PROFILE_DEV_OPT_LEVEL:-3}" fuzz/README.md || return 1
    kept=$(sed -n "s/^$1 *\([0-9]*\)$/\1/p" fuzz/README.md)
    [ $(($2 * 100)) -lt $((${kept:-0} * 95)) ] || return 1
    echo "$1: its corpus reaches $2 edges, and reached $kept" >&2
}

# minimise <target>: puts what runs found into the corpus, and makes it small.
minimise() {
    local target=$1 corpus=fuzz/corpus/$1 found=$work/found/$1
    rm -rf "$work/small" && mkdir "$work/small"
    # An edge counts once, however often it is taken: a tenth of the files for the same edges.
    fuzzer "$target" -set_cover_merge=1 -use_counters=0 "$work/small" "$corpus" "$found"
    rm -rf "$corpus" "$found" && mkdir "$corpus"
    cp "$work"/small/* "$corpus"
    printf '%-18s %4d inputs\n' "$target" "$(ls "$corpus" | wc -l)"
}

# run <target>: from the corpus, for the time asked for.
run() {
    local target=$1 corpus=fuzz/corpus/$1 found=$work/found/$1 from_corpus runs memory reached
    from_corpus=$(edges "$target" "$corpus") || return 1
    if lost "$target" "$from_corpus"; then return 1; fi
    fuzzer "$target" -max_total_time="$seconds" -print_final_stats=1 "$found" "$corpus" || return 1
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$target.log")
    memory=$(sed -n 's/^stat::peak_rss_mb: *//p' "$work/$target.log")
    reached=$(sed -n 's/.*cov: \([0-9]*\).*/\1/p' "$work/$target.log" | tail -n 1)
    printf '%-18s corpus: %4d inputs, %5d edges; run: %5d edges, %9d inputs, %3d MiB\n' \
        "$target" "$(ls "$corpus" | wc -l)" "$from_corpus" "$reached" "$runs" "$memory"
}

failed=0
running=0
for target in "${targets[@]}"; do
    mkdir -p "$work/found/$target"
    if [ $mode = minimise ]; then
        minimise "$target"
        continue
    fi
    # A target takes one core; two at a time suit the smallest machine that runs this.
    if [ $running -eq 2 ]; then
        wait -n || failed=1
        running=1
    fi
    run "$target" &
    running=$((running + 1))
done
while [ $running -gt 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
done
exit $failed
