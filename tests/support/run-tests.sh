#!/bin/sh
# Runs the tests: `run-tests.sh all` (`make test`), `quick` or `noisy`. It writes a line for each phase with its time, the
# failures, and at the end the ten slowest tests and the counts. The whole output of each phase is in target/test-logs.
set -eu

cd "$(dirname "$0")/../.."
mode=${1:-all}
case $mode in
all | noisy | quick) ;;
*)
    echo "run-tests: all, quick or noisy, not $mode" >&2
    exit 2
    ;;
esac
# It may be a list of words, such as `cargo +stable`.
cargo=${CARGO:-cargo}
logs=${CARGO_TARGET_DIR:-target}/test-logs
mkdir -p "$logs"
rm -f "$logs"/*

# The private servers' data, in memory where there is room: then a busy disk delays no test. Servers in a root folder see
# only the folder for temporary files.
if [ -z "${PACED_TEST_DATA:-}" ] && [ -z "${PACED_TEST_ROOT:-}" ] && [ -w /dev/shm ]; then
    free=$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')
    [ "$free" -lt 4194304 ] || export PACED_TEST_DATA=/dev/shm
fi

duration() { # duration SECONDS
    if [ "$1" -lt 60 ]; then echo "$1 s"; else echo "$(($1 / 60)) min $(($1 % 60)) s"; fi
}

counts() { # counts LOG...
    awk '/^test result: / { passed += $4; failed += $6 } END { print passed + 0 " passed, " failed + 0 " failed" }' "$@"
}

# The programs that this script has started and that are to end with it.
started=
# shellcheck disable=SC2086 # a list of numbers
stop() {
    [ -z "$started" ] || kill $started 2>/dev/null || true
    started=
    rm -f "$logs/noise"
}
trap stop EXIT
trap 'echo "run-tests: interrupted; $logs has the output so far" >&2; exit 130' INT TERM HUP

# Two loops that take all the time they can get, and one that writes to the disk and waits for it: for two hours at most.
noise() {
    for _ in 1 2; do
        timeout 7200 sh -c 'while :; do :; done' &
        started="$started $!"
    done
    timeout 7200 sh -c 'while dd if=/dev/zero of="$0" bs=1M count=256 conv=fsync 2>/dev/null; do :; done' "$logs/noise" &
    started="$started $!"
}

# Shows on a terminal how many tests are done, until it is ended.
progress() { # progress LOG
    while sleep 5; do
        printf '\r%s tests are done ' "$(grep -c '^test .* \.\.\. ' "$1")" >&2
    done
}

begun=$(date +%s)

# Runs the test programs that cargo selects by these arguments; a phase that fails writes its name into the file `failed`.
phase() { # phase NAME ARGUMENTS...
    name=$1 log=$logs/$1.log start=$(date +%s) status=0 watch=
    shift
    : >"$log"
    if [ -t 2 ]; then
        progress "$log" &
        watch=$!
        started="$started $watch"
    fi
    # shellcheck disable=SC2086
    $cargo test --locked --all-features "$@" >"$log" 2>&1 || status=$?
    [ -z "$watch" ] || { kill "$watch" 2>/dev/null || true; printf "\r%30s\r" "" >&2; }
    # A name that selects no test must not pass.
    [ "$status" != 0 ] || ! counts "$log" | grep -q '^0 passed' || status=1
    printf '%-8s %s: %s\n' "$name" "$(duration $(($(date +%s) - start)))" "$(counts "$log")"
    [ "$status" = 0 ] || {
        printf ' %s' "$name" >>"$logs/failed"
        # Without failures of tests, it did not build, or ended early.
        if grep -q '^failures:' "$log"; then sed -n '/^failures:/,$p' "$log"; else tail -n 60 "$log"; fi
    }
}

# shellcheck disable=SC2086
tests/support/install-beside.sh tests $cargo test --locked --all-features --no-run
printf '%-8s %s\n' build "$(duration $(($(date +%s) - begun)))"

runner="target.'cfg(all())'.runner=[\"$PWD/tests/support/test-runner.sh\"]"
case $mode in
quick)
    phase unit --config "$runner" --lib --bins
    # One way through everything: two replicas, RabbitMQ, Redis and an API.
    phase smoke --config "$runner" --test it -- --exact \
        pace::two_replicas_share_one_pace_and_deliver_everything_once
    ;;
*)
    [ "$mode" = all ] || noise
    phase unit --config "$runner" --lib --bins
    # All of these wait for something much of their time: for servers, each for its own, or, the examples in the docs, for
    # one thread of the compiler. Only the last one shows its progress on a terminal.
    phase bytes --config "$runner" --test bytes 2>/dev/null &
    bytes=$!
    phase faults --config "$runner" --test faults 2>/dev/null &
    faults=$!
    # The examples are no programs with the options that the runner adds.
    phase docs --doc 2>/dev/null &
    docs=$!
    started="$started $bytes $faults $docs"
    phase it --config "$runner" --test it
    wait "$bytes" || printf ' bytes' >>"$logs/failed"
    wait "$faults" || printf ' faults' >>"$logs/failed"
    wait "$docs" || printf ' docs' >>"$logs/failed"
    ;;
esac

echo "The slowest tests:"
sed -nE 's/^test (.*) \.\.\. ok <([0-9.]+)s>$/\2 \1/p' "$logs"/*.log | sort -rn | head -n 10 |
    awk '{ printf "%8.1f s  %s\n", $1, $2 }'
echo "All took $(duration $(($(date +%s) - begun)))."
[ ! -e "$logs/failed" ] || echo "Failed:$(cat "$logs/failed")."
counts "$logs"/*.log
[ ! -e "$logs/failed" ]
