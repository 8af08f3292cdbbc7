#!/bin/sh
# Runs the tests of the live page in a headless Chromium, against real daemons: tests/page/main.js, or the program of that
# folder that is named first, such as `screenshots`, which wants the programs of the demo, too. What follows is for Node, such as --test-name-pattern=keyboard.
# Installs what is missing: Chromium and Node by apt, and three npm packages into the target folder.
#
# PAGE_PROFILE=dev takes the build of `make test` instead of a release build; then the cost of a page is not judged.
set -eu

here=$(dirname "$0")
page=$(CDPATH='' cd -- "$here/../page" && pwd)
"$here/install-servers.sh" page

PAGE_MODULES=${CARGO_TARGET_DIR:-$page/../../target}/page
mkdir -p "$PAGE_MODULES"
if ! cmp -s "$page/package-lock.json" "$PAGE_MODULES/installed.json"; then
    cp "$page/package.json" "$page/package-lock.json" "$page/.npmrc" "$PAGE_MODULES"
    (cd "$PAGE_MODULES" && npm ci --no-audit --no-fund --loglevel=error)
    cp "$page/package-lock.json" "$PAGE_MODULES/installed.json"
fi
PAGE_MODULES=$(CDPATH='' cd -- "$PAGE_MODULES" && pwd)

: "${PAGE_PROFILE:=release}"
programs=${CARGO_TARGET_DIR:-$page/../../target}
case $PAGE_PROFILE in
release) build="--release --features demo" PAGE_PROGRAMS=$programs/release ;;
dev) build="--all-features" PAGE_PROGRAMS=$programs/debug ;;
*) echo "test-page: PAGE_PROFILE is release or dev, not $PAGE_PROFILE" >&2; exit 2 ;;
esac
# shellcheck disable=SC2086 # a list of words
${CARGO:-cargo} test --locked $build --test page --no-run
if [ "${1:-main}" = screenshots ]; then
    # shellcheck disable=SC2086 # a list of words
    ${CARGO:-cargo} build --locked $build --bin paced --bin paced-demo
fi
PAGE_STAGE="${CARGO:-cargo} test --locked --quiet $build --test page"
export PAGE_MODULES PAGE_PROFILE PAGE_PROGRAMS PAGE_STAGE

program=${1:-main}
[ $# = 0 ] || shift
exec node --no-warnings --test-reporter=spec "$@" "$page/$program.js"
