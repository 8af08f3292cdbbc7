#!/bin/sh
# Cargo runs each test program through this: `test-runner.sh PROGRAM ARGUMENTS`. It has the program report how long each
# test took, where the toolchain can do that, and lets more tests of `it` and `faults` run at once than there are
# processors, since most of them wait for servers most of the time.
set -eu

program=$1
case ${program##*/} in
it-*) threads=$(($(nproc) * 4)) ;;
faults-*) threads=$(($(nproc) * 2)) ;;
*) threads=$(nproc) ;;
esac
# Each has daemons and servers: many processors do not make more memory.
case ${program##*/} in
it-* | faults-*) [ "$threads" -le 12 ] || threads=12 ;;
esac
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$threads}"

# The option is unstable; the variable concerns this program alone, which is built by now.
if RUSTC_BOOTSTRAP=1 "$program" -Zunstable-options --report-time --list no-such-test >/dev/null 2>&1; then
    export RUSTC_BOOTSTRAP=1
    set -- "$@" -Zunstable-options --report-time
fi
exec "$@"
