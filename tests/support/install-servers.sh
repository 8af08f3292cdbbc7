#!/bin/sh
# Installs what the demo and the tests start privately, where it is missing: redis-server and
# rabbitmq-server; with the argument `tests` also python3-pika, with `chaos` also libfaketime, with
# `page` also chromium, nodejs and npm, with `mmdebstrap` also that, with `packages` also what makes and checks
# a .deb. With `promtool` it installs only that (20 MB, in Debian's prometheus) and curl. Debian and Ubuntu, by apt.
# Leaves no system service behind. Says nothing when everything is there.
set -eu

redis_is_there() {
    command -v redis-server >/dev/null 2>&1 || [ -x /usr/bin/redis-server ]
}

# The start script that runs as any user; the one in the path switches the user.
rabbitmq_is_there() {
    [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]
}

# Debian's Python, not one that comes first in the path.
pika_is_there() {
    [ -x /usr/bin/python3 ] && /usr/bin/python3 -c 'import pika' >/dev/null 2>&1
}

# As Redis loads it, whose clock it steps.
faketime_is_there() {
    ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1
}

missing=
if [ "${1:-}" != promtool ]; then
    redis_is_there || missing="$missing redis-server"
    rabbitmq_is_there || missing="$missing rabbitmq-server"
fi
case ${1:-} in
tests) pika_is_there || missing="$missing python3-pika" ;;
chaos) faketime_is_there || missing="$missing libfaketime" ;;
page)
    [ -n "${CHROMIUM:-}" ] || [ -x /usr/bin/chromium ] || missing="$missing chromium"
    command -v node >/dev/null 2>&1 || missing="$missing nodejs"
    command -v npm >/dev/null 2>&1 || missing="$missing npm"
    ;;
mmdebstrap) command -v mmdebstrap >/dev/null 2>&1 || missing="$missing mmdebstrap" ;;
promtool)
    command -v promtool >/dev/null 2>&1 || missing="$missing prometheus"
    command -v curl >/dev/null 2>&1 || missing="$missing curl"
    ;;
packages)
    command -v mmdebstrap >/dev/null 2>&1 || missing="$missing mmdebstrap"
    command -v lintian >/dev/null 2>&1 || missing="$missing lintian"
    command -v dpkg-shlibdeps >/dev/null 2>&1 || missing="$missing dpkg-dev"
    command -v strip >/dev/null 2>&1 || missing="$missing binutils"
    ;;
esac
[ -n "$missing" ] || exit 0

fail() {
    echo "install-servers: $1" >&2
    exit 1
}

if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-query >/dev/null 2>&1; then
    fail "there is no apt here; install these by other means, and run it again:$missing"
fi

if [ "$(id -u)" = 0 ]; then
    as_root=
elif ! command -v sudo >/dev/null 2>&1; then
    fail "not root, and there is no sudo; run as root: apt-get install --no-install-recommends$missing"
elif [ -t 0 ]; then
    as_root=sudo
else
    as_root="sudo -n"
    $as_root true 2>/dev/null ||
        fail "sudo wants a password; run: sudo apt-get install --no-install-recommends$missing"
fi

work=$(mktemp -d)
policy=/usr/sbin/policy-rc.d
own_policy=
clean_up() {
    if [ -n "$own_policy" ]; then
        $as_root rm -f "$policy"
        own_policy=
    fi
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

apt() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 \
        "$@" </dev/null >"$work/apt.log" 2>&1
}

installed() {
    # shellcheck disable=SC2016 # the fields are dpkg-query's
    dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p' | sort
}

has_candidates() {
    for package in $missing; do
        apt-cache policy "$package" 2>/dev/null | grep -q '^  Candidate: [0-9]' || return 1
    done
}

# The packages start their servers, unless this says no.
if [ ! -e "$policy" ]; then
    own_policy=yes
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
fi

echo "Installing$missing (apt, a minute or two; no service is left running)." >&2
installed >"$work/before"
done=
if has_candidates; then
    # shellcheck disable=SC2086 # a list of words
    apt install --no-install-recommends $missing && done=yes
fi
if [ -z "$done" ]; then
    # No lists yet, or lists so old that the packages have moved.
    apt update || { tail -n 20 "$work/apt.log" >&2; fail "apt-get update failed"; }
    # shellcheck disable=SC2086
    apt install --no-install-recommends $missing ||
        { tail -n 20 "$work/apt.log" >&2; fail "apt-get could not install$missing"; }
fi
installed >"$work/after"

# Services that came with this installation are not to start at the next boot either.
if command -v systemctl >/dev/null 2>&1; then
    now=
    [ ! -d /run/systemd/system ] || now=--now
    comm -13 "$work/before" "$work/after" | while read -r package; do
        dpkg-query -L "$package" | sed -n 's%^\(/usr\)\{0,1\}/lib/systemd/system/\([^/]*\.\(service\|socket\)\)$%\2%p'
    done | grep -v '@\.' | sort -u >"$work/units" || true
    while read -r unit; do
        # shellcheck disable=SC2086
        $as_root systemctl disable $now "$unit" >/dev/null 2>&1 </dev/null || true
    done <"$work/units"
fi

[ "${1:-}" != promtool ] || exit 0
redis_is_there || fail "redis-server is installed, but not to be found"
rabbitmq_is_there || fail "rabbitmq-server is installed, but not where Debian puts it"
