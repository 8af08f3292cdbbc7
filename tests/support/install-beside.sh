#!/bin/sh
# Runs a command, such as a build, while install-servers.sh installs what is missing: `install-beside.sh KIND COMMAND...`,
# with an empty KIND for the two servers alone. Fails if either fails.
set -eu

kind=$1
shift
install="$(dirname "$0")/install-servers.sh"
# A question for a password must not be lost among the lines of the build.
if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
    "$install" "$kind"
    exec "$@"
fi
"$install" "$kind" &
installer=$!
status=0
"$@" || status=$?
wait "$installer" || status=$?
exit "$status"
