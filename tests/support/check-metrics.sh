#!/bin/sh
# Runs paced on its own (no servers: a memory store, a broker that is not there) and has promtool read
# its metrics. Usage: check-metrics.sh COMMAND, which is paced or starts it, built already.
set -eu

# Nothing of the caller's environment configures it.
for name in $(env | sed -n 's/^\(PACED_[A-Za-z0-9_]*\)=.*/\1/p'); do
    unset "$name"
done

folder=$(mktemp -d)
daemon=
finish() {
    status=$?
    trap - EXIT
    # timeout passes it on, and kills after a second.
    [ -z "$daemon" ] || kill -s TERM "$daemon" 2>/dev/null || true
    [ -z "$daemon" ] || wait "$daemon" || true
    rm -rf "$folder"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Port 1 is nobody's. Port 0 is any that is free: the log has the one it became.
cat >"$folder/paced.toml" <<'TOML'
[amqp]
url = "amqp://127.0.0.1:1/%2f"
[admin]
listen = "127.0.0.1:0"
[downstreams.billing]
rate = "50/s"
http.base_url = "http://127.0.0.1:1/"
[downstreams.crm]
rate = "7/7d"
http.base_url = "http://127.0.0.1:1/"
TOML
: >"$folder/log"
RUST_LOG=info NO_COLOR=1 timeout -k 1 60 "$@" -c "$folder/paced.toml" run 2>"$folder/log" &
daemon=$!

address=
tries=0
while [ -z "$address" ]; do
    address=$(sed -n 's/.*probes and metrics are served.* address=\([0-9.:]*\).*/\1/p' "$folder/log")
    tries=$((tries + 1))
    if [ "$tries" -gt 200 ] || ! kill -0 "$daemon" 2>/dev/null; then
        echo "paced did not start to serve its metrics:" >&2
        cat "$folder/log" >&2
        exit 1
    fi
    [ -n "$address" ] || sleep 0.1
done

# The series of a downstream are there once its dispatcher runs, which is a moment later.
tries=0
until curl --silent --show-error --fail --noproxy '*' --max-time 10 "http://$address/metrics" >"$folder/metrics" &&
    grep -q 'paced_jobs_received_total{downstream="crm"} 0' "$folder/metrics"; do
    tries=$((tries + 1))
    if [ "$tries" -gt 100 ]; then
        echo "the metrics lack a downstream's series:" >&2
        cat "$folder/metrics" >&2
        exit 1
    fi
    sleep 0.1
done
promtool check metrics <"$folder/metrics"
echo "promtool finds nothing wrong with $(grep -c '^# TYPE' "$folder/metrics") metrics"
