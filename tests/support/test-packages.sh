#!/bin/sh
# Checks the .deb with lintian, then installs, upgrades, removes and purges it in a root folder of this machine's Debian,
# which mmdebstrap makes: it lies in target/packages-root (or $PACED_PACKAGES_ROOT), takes 250 MB, and is kept; remove it to
# have it made anew. Each run works on a copy.
#
# Usage: test-packages.sh PACKAGE.deb
#
# What is mounted into the copy is so in a mount namespace of this script alone. Says why and succeeds where such a folder
# cannot be had: not root, no mmdebstrap, no network, not Debian. With $PACED_REQUIRE set, what is skipped fails.
set -eu

skip() {
    echo "test-packages: skipped $1: $2" >&2
    [ -z "${PACED_REQUIRE:-}" ] || exit 1
}

fail() {
    echo "test-packages: $1" >&2
    exit 1
}

# In the copy: what follows.
if [ "${1:-}" = --in-root ]; then
    new=$2
    next=$3
    unit=/lib/systemd/system/paced.service
    LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
    export LC_ALL DEBIAN_FRONTEND
    holds() { # holds WHAT COMMAND...
        what=$1
        shift
        "$@" || fail "not so: $what"
        echo "ok: $what"
    }
    not() { ! "$@"; }
    same() { # same EXPECTED FOUND
        [ "$1" = "$2" ] || {
            echo "test-packages: expected \`$1\`, found \`$2\`" >&2
            return 1
        }
    }
    # Everything of it that there is, but for what brought it here and the pages that man has formatted.
    traces() {
        find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /var/cache/man \) -prune -o -iname '*paced*' -print
        grep -l paced /etc/passwd /etc/group /etc/shadow /etc/gshadow || true
    }
    exit_of() {
        set +e
        "$@" >/tmp/out 2>&1
        code=$?
        set -e
        echo "$code"
    }

    holds "nothing of it is there before" same "" "$(traces)"
    dpkg --install "$new" || fail "cannot be installed"
    holds "the user is there" getent passwd paced
    holds "the user has no shell" same /usr/sbin/nologin "$(getent passwd paced | cut -d : -f 7)"
    holds "the configuration is for root and the daemon alone" same "root:paced 750" "$(stat -c '%U:%G %a' /etc/paced)"
    holds "secrets are for root alone" same "root:root 700" "$(stat -c '%U:%G %a' /etc/paced/credentials)"
    holds "it runs" paced --version
    holds "the man page is there" test -s /usr/share/man/man1/paced.1.gz
    holds "its completions are bash" bash -n /usr/share/bash-completion/completions/paced
    holds "it is not enabled" same disabled "$(systemctl is-enabled paced || true)"
    holds "before it is configured it ends with 78" same 78 "$(exit_of paced run)"
    holds "it says what to do" grep -q "add a downstream" /tmp/out
    holds "systemd has nothing to say of the unit" same "" "$(systemd-analyze verify "$unit" 2>&1)"
    holds "its exposure is under 2.0" same 0 "$(exit_of systemd-analyze security --offline=true --threshold=20 --no-pager "$unit")"

    printf '\n[downstreams.mine]\nrate = "1/s"\nhttp.base_url = "http://127.0.0.1:1/"\n' >>/etc/paced/paced.toml
    echo amqp://me:secret@broker >/etc/paced/credentials/amqp-url
    holds "the daemon's user can read the configuration" \
        setpriv --reuid=paced --regid=paced --clear-groups paced check
    systemctl enable paced || fail "cannot be enabled"
    before=$(sha256sum /etc/paced/paced.toml)

    dpkg --force-confdef --install "$next" || fail "cannot be upgraded"
    holds "it is upgraded" same 9999 "$(dpkg-query -W -f '${Version}' paced)"
    holds "an upgrade keeps the configuration" same "$before" "$(sha256sum /etc/paced/paced.toml)"
    holds "an upgrade keeps the secrets" test -s /etc/paced/credentials/amqp-url
    holds "an upgrade keeps it enabled" same enabled "$(systemctl is-enabled paced)"
    holds "an upgrade keeps who may read" same "root:paced 750" "$(stat -c '%U:%G %a' /etc/paced)"

    dpkg --remove paced || fail "cannot be removed"
    holds "a removal takes the program" not test -e /usr/bin/paced
    holds "a removal keeps the configuration" same "$before" "$(sha256sum /etc/paced/paced.toml)"
    dpkg --force-confdef --install "$new" || fail "cannot be installed again"
    holds "it is as it was before the removal" same enabled "$(systemctl is-enabled paced)"
    dpkg --purge paced || fail "cannot be purged"
    holds "a purge leaves nothing" same "" "$(traces)"

    # A removal takes the folder of secrets where it is empty.
    dpkg --install "$new" && dpkg --remove paced && dpkg --install "$new" || fail "cannot be installed after a removal"
    holds "secrets are for root alone again" same "root:root 700" "$(stat -c '%U:%G %a' /etc/paced/credentials)"

    # Once more, with a purge of what is already removed and the tools gone that it would use.
    dpkg --remove paced && mv /usr/sbin/deluser /tmp && dpkg --purge paced ||
        fail "cannot be purged after a removal"
    holds "a purge without deluser leaves nothing but the user" same "/etc/passwd" "$(traces | grep passwd)"
    holds "its folder is gone" test ! -e /etc/paced
    exit 0
fi

package=$(realpath "$1")
cd "$(dirname "$0")/../.."
root=${PACED_PACKAGES_ROOT:-$(pwd)/target/packages-root}
mirror=${PACED_TEST_MIRROR:-http://deb.debian.org/debian}

tests/support/install-servers.sh packages || exit 1
if command -v lintian >/dev/null 2>&1; then
    # As root it needs an option that confirms this.
    lintian --allow-root --fail-on error --suppress-tags initial-upload-closes-no-bugs "$package" || fail "lintian has errors"
    echo "ok: lintian has no errors"
else
    skip lintian "it is not installed"
fi

if [ "$(id -u)" != 0 ]; then
    skip "the installation" "not root, which chroot and mounts want"
    exit 0
fi
if ! command -v mmdebstrap >/dev/null 2>&1; then
    skip "the installation" "no mmdebstrap"
    exit 0
fi
if ! unshare --mount --propagation private true; then
    skip "the installation" "no mount namespace of our own"
    exit 0
fi
suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
if [ ! -e "$root/etc/debian_version" ]; then
    mkdir -p "$(dirname "$root")"
    echo "Making $root (Debian $suite, a minute or so)." >&2
    if ! mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' \
        --include=systemd,adduser,ca-certificates,man-db "$suite" "$root.$$" "$mirror" >"$root.log" 2>&1; then
        rm -rf --one-file-system "$root.$$"
        skip "the installation" "cannot make a root folder of Debian $suite; $root.log says why"
        exit 0
    fi
    mv "$root.$$" "$root"
fi

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
cp -a "$root" "$work/root"
cp "$package" "$work/root/tmp/new.deb"
cp "$0" "$work/root/tmp/test.sh"
# The next version, whose configuration differs.
dpkg-deb --raw-extract "$package" "$work/next"
sed -i 's/^Version: .*/Version: 9999/' "$work/next/DEBIAN/control"
echo "# Something new." >>"$work/next/etc/paced/paced.toml"
dpkg-deb --root-owner-group --build "$work/next" "$work/root/tmp/next.deb" >/dev/null

unshare --mount --pid --fork --propagation private sh -eu -c '
    mount --bind "$1" "$1"
    mount --rbind /dev "$1/dev"
    mount -t proc proc "$1/proc"
    exec chroot "$1" sh /tmp/test.sh --in-root /tmp/new.deb /tmp/next.deb
' sh "$work/root" || fail "the installation failed"
echo "test-packages: all is well"
