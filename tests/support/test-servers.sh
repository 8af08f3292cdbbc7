#!/bin/sh
# Runs the tests that need servers against newer ones than this machine's, in root folders of Debian's that
# mmdebstrap makes: they lie in target/servers (or $PACED_TEST_ROOTS), take 250 MB each, and are kept; remove one
# to have it made anew, with what its suite has by then.
#
# Usage: test-servers.sh [PAIR]...
#   PAIR   a part of a pair's name; all pairs otherwise
#   $TESTS "it", "bytes", "faults", "chaos": only these; other words there select tests by their names
#
# What is mounted into a root folder is so in a mount namespace of this script alone, which goes with its last
# process: nothing has to be unmounted, for any end of it, and `rm -r target` reaches nothing else.
# Says why and succeeds where such a folder cannot be had: not root, no mmdebstrap, no network, no such suite.
set -eu

cd "$(dirname "$0")/../.."
here=$(pwd)
roots=${PACED_TEST_ROOTS:-$here/target/servers}
mirror=${PACED_TEST_MIRROR:-http://deb.debian.org/debian}
cargo=${CARGO:-cargo}
temporary=${TMPDIR:-/tmp}

# Name, suite, packages. The name says what the suite has; the servers themselves say what it was.
pairs() {
    echo "rabbitmq-4.0+redis-8.0 trixie rabbitmq-server,redis-server"
    echo "rabbitmq-4.3+valkey-9.1 sid rabbitmq-server,valkey-server"
}

skip() { # skip WHAT WHY
    echo "test-servers: skipped $1: $2" >&2
}

# Makes the root folder of a suite, unless it is there. It gets its name only when it is whole.
make_root() { # make_root SUITE PACKAGES
    root=$roots/$1
    [ ! -e "$root/etc/debian_version" ] || return 0
    mkdir -p "$roots"
    echo "Making $root (Debian $1, a minute or so)." >&2
    part=$roots/.$1.$$
    # It may be an old snapshot of the mirror, which is still signed.
    if mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' \
        --include="$2,libfaketime" "$1" "$part" "$mirror" >"$roots/$1.log" 2>&1; then
        grep -q localhost "$part/etc/hosts" 2>/dev/null || echo "127.0.0.1 localhost" >>"$part/etc/hosts"
        mkdir -p "$part$temporary"
        mv "$part" "$root"
    else
        rm -rf --one-file-system "$part"
        return 1
    fi
}

# In the namespace: has the root folder show this machine's devices, processes and temporary files.
mount_root() { # mount_root ROOT
    mkdir -p "$1$temporary"
    mount --rbind /dev "$1/dev" && mount --rbind /proc "$1/proc" && mount --bind "$temporary" "$1$temporary"
}

# Sums up what the test programs wrote: "PASSED FAILED FILTERED".
count() { # count LOG
    awk '/^test result:/ { p += $4; f += $6; s += $8 } END { printf "%d %d %d\n", p, f, s }' "$1"
}

# One test program; its output goes to a file as well. Fails as it does, and where it ended without a result.
run_test() { # run_test LOG CARGO_ARGUMENTS...
    log=$1
    shift
    : >"$log"
    {
        "$cargo" test --locked --all-features "$@" 2>&1 && echo "test-servers: ok"
    } | tee "$log"
    [ "$(tail -n 1 "$log")" = "test-servers: ok" ]
}

# One pair, in the namespace. Writes a row of the table.
run_pair() { # run_pair NAME SUITE
    name=$1
    root=$roots/$2
    logs=$roots/logs/$name
    mkdir -p "$logs"
    mount_root "$root" || {
        skip "$name" "cannot mount into $root"
        return 0
    }
    PACED_TEST_ROOT=$root
    # These brokers take no message over 16 MiB, and some drop what comes back 20 times.
    PACED_LONG_MIB=${PACED_LONG_MIB:-15}
    PACED_LONG_JOBS=${PACED_LONG_JOBS:-20}
    PACED_OUTAGES=${PACED_OUTAGES:-30}
    PACED_DELIVERY_LIMIT=${PACED_DELIVERY_LIMIT:-20}
    PACED_PARITY_TIMELINES=${PACED_PARITY_TIMELINES:-500}
    export PACED_PARITY_TIMELINES PACED_TEST_ROOT PACED_LONG_MIB PACED_LONG_JOBS PACED_OUTAGES PACED_DELIVERY_LIMIT
    started=$(date +%s)
    bad=
    echo "== $name"
    run_test "$logs/versions.log" --test it -- --exact support_selftest::servers_say_what_they_are --nocapture ||
        bad=" versions"
    versions=$(sed -n 's/^.*server: //p' "$logs/versions.log" | sort | paste -sd ',' | sed 's/,/, /g')
    if [ -z "$bad" ]; then
        for test in $programs; do
            # Chaos wants the machine for itself, and one test at a time.
            threads=
            [ "$test" != chaos ] || threads="--test-threads=1 --nocapture"
            # shellcheck disable=SC2086 # lists of words
            run_test "$logs/$test.log" --test "$test" -- $threads $filters || bad="$bad $test"
            # shellcheck disable=SC2046 # three numbers
            set -- $(count "$logs/$test.log")
            echo "$name | $test | $1 | $2 | $3 | ${versions:-not known}" >>"$table"
        done
    else
        echo "$name | versions | 0 | 1 | 0 | ${versions:-not known}" >>"$table"
    fi
    echo "== $name: $(($(date +%s) - started)) s"
    [ -z "$bad" ] || echo "$name:$bad" >>"$table.bad"
}

programs=
filters=
for word in ${TESTS:-}; do
    case $word in
    it | bytes | faults | chaos) programs="$programs $word" ;;
    *) filters="$filters $word" ;;
    esac
done
[ -n "$programs" ] || programs="it bytes faults chaos"

# The second time this script runs itself, in the namespace, for one pair.
if [ "${1:-}" = --in-namespace ]; then
    table=$4
    run_pair "$2" "$3"
    exit 0
fi

if [ "$(id -u)" != 0 ]; then
    skip "all pairs" "not root, which chroot and mounts want"
    exit 0
fi
tests/support/install-servers.sh tests || exit 1
if ! tests/support/install-servers.sh mmdebstrap; then
    skip "all pairs" "no mmdebstrap"
    exit 0
fi
if ! unshare --mount --propagation private true; then
    skip "all pairs" "no mount namespace of our own"
    exit 0
fi

for word in "$@"; do
    pairs | cut -d ' ' -f 1 | grep -qF -- "$word" || {
        echo "test-servers: no pair has \`$word\` in its name; there are: $(pairs | cut -d ' ' -f 1 | paste -sd ' ')" >&2
        exit 2
    }
done

set -f
# shellcheck disable=SC2086 # a list of words
"$cargo" test --locked --all-features --no-run $(for test in $programs; do echo "--test $test"; done) --test it
# Some tests run the examples.
"$cargo" build --locked --all-features --examples

table=$(mktemp)
trap 'rm -f "$table" "$table.bad"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

wanted() { # wanted NAME WORD...
    name=$1
    shift
    [ $# -gt 0 ] || return 0
    for word in "$@"; do
        case $name in *"$word"*) return 0 ;; esac
    done
    return 1
}

for line in $(pairs | tr ' ' ':'); do
    name=${line%%:*}
    rest=${line#*:}
    suite=${rest%%:*}
    wanted "$name" "$@" || continue
    if ! make_root "$suite" "${rest#*:}"; then
        skip "$name" "cannot make a root folder of Debian $suite; $roots/$suite.log says why"
        echo "$name | skipped | | | | no Debian $suite" >>"$table"
        continue
    fi
    unshare --mount --propagation private "$0" --in-namespace "$name" "$suite" "$table"
done

echo
{
    echo "pair | tests | passed | failed | not selected | versions"
    cat "$table"
} | column -t -s '|' -o '|' 2>/dev/null || cat "$table"
if [ -s "$table.bad" ]; then
    cat "$table.bad" >&2
    exit 1
fi
