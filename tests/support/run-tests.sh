#!/bin/sh
# Runs the tests: `run-tests.sh all` (`make test`), `quick` or `noisy`. It writes a line for each phase with its time, the
# failures, and at the end the counts and the ten slowest tests. The whole output of each program is in target/test-logs.
set -eu

cd "$(dirname "$0")/../.."
mode=${1:-all}
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

begun=$(date +%s)

# phase NAME COMMAND...: its output goes to the terminal.
phase() {
    name=$1
    shift
    start=$(date +%s)
    "$@"
    printf '%-8s %s\n' "$name" "$(duration $(($(date +%s) - start)))"
}

# Copies the output of a test program to a log, and counts on a terminal what is done.
follow() {
    shown=
    [ ! -t 2 ] || shown=yes
    awk -v log_file="$1" -v shown="$shown" '
        { print >log_file }
        /^running [0-9]+ tests?$/ { all += $2 }
        /^test .* \.\.\. / { done += 1; if (shown) printf "\r%d of %d tests ", done, all >"/dev/stderr" }
        END { if (shown) printf "\r%40s\r", "" >"/dev/stderr" }'
}

failed=0

# tests NAME ARGUMENTS...: runs the programs that cargo selects by these arguments.
tests() {
    name=$1
    shift
    start=$(date +%s)
    { "$cargo" test --locked --all-features --config "$runner" "$@" 2>&1 && echo 0 >"$logs/code" || echo 1 >"$logs/code"; } |
        follow "$logs/$name.log"
    counts=$(sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed; .*/\1 \2/p' "$logs/$name.log" |
        awk '{ passed += $1; failed += $2 } END { print passed + 0 " passed, " failed + 0 " failed" }')
    printf '%-8s %s: %s\n' "$name" "$(duration $(($(date +%s) - start)))" "$counts"
    if [ "$(cat "$logs/code")" != 0 ]; then
        failed=1
        # Without failures of tests, the program did not build, or ended early.
        grep -q '^failures:' "$logs/$name.log" && sed -n '/^failures:/,$p' "$logs/$name.log" || tail -n 60 "$logs/$name.log"
    fi
}

summary() {
    echo "The slowest tests:"
    sed -nE 's/^test (.*) \.\.\. ok <([0-9.]+)s>$/\2 \1/p' "$logs"/*.log | sort -rn | head -n 10 |
        awk '{ printf "%8.1f s  %s\n", $1, $2 }'
    echo "All took $(duration $(($(date +%s) - begun)))."
    sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed; .*/\1 \2/p' "$logs"/*.log |
        awk '{ passed += $1; failed += $2 } END { print passed + 0 " passed, " failed + 0 " failed" }'
}

# Two loops that take all the time they can get, and one that writes to the disk and waits for it: for two hours at most.
noise() {
    for _ in 1 2; do
        timeout 7200 sh -c 'while :; do :; done' &
        noises="$noises $!"
    done
    timeout 7200 sh -c 'while dd if=/dev/zero of="$0" bs=1M count=256 conv=fsync 2>/dev/null; do :; done' "$logs/noise" &
    noises="$noises $!"
}

noises=
quiet() {
    # shellcheck disable=SC2086 # a list of numbers
    [ -z "$noises" ] || kill $noises 2>/dev/null || true
    rm -f "$logs/noise"
}
trap quiet EXIT
trap 'exit 130' INT TERM HUP

runner="target.'cfg(all())'.runner=['$PWD/tests/support/test-runner.sh']"
phase build tests/support/install-beside.sh tests "$cargo" test --locked --all-features --no-run
case $mode in
quick)
    tests unit --lib --bins
    # One way through everything: two replicas, RabbitMQ, Redis and an API.
    tests smoke --test it -- --exact pace::two_replicas_share_one_pace_and_deliver_everything_once
    ;;
all | noisy)
    [ "$mode" = all ] || noise
    tests unit --lib --bins
    tests bytes --test bytes
    tests faults --test faults
    tests it --test it
    tests docs --doc
    ;;
*)
    echo "run-tests: all, quick or noisy, not $mode" >&2
    exit 2
    ;;
esac
summary
exit $failed
