#!/bin/sh
# Runs a command, such as a build, while install-servers.sh installs what is missing: `install-beside.sh KIND COMMAND...`,
# with an empty KIND for the two servers alone. Fails as the command does, and with 3 if only the installation failed.
set -eu

kind=$1
shift
install="$(dirname "$0")/install-servers.sh"
# A question for a password must not be lost among the lines of the build.
if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
    "$install" "$kind" || exit 3
    exec "$@"
fi
"$install" "$kind" &
installer=$!
# An installation that is cut off may leave packages half installed: it continues to its end.
trap 'echo "install-beside: waiting for the installation to end" >&2; wait "$installer"; exit 130' INT TERM HUP
status=0
"$@" || status=$?
wait "$installer" || [ "$status" != 0 ] || status=3
exit "$status"
