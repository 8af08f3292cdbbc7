#!/bin/sh
# Runs the commands of the README and of docs/tour.md as they stand there, in their order: the blocks below comments such as
# `<!-- tour: check -->`.
# A block of `sh` is run; another one is written to the file that the comment names. Around them are a private Redis, a
# private RabbitMQ and an API, on the ports that the README has, which end with this script; and after each block it is looked
# whether it did what the page says.
#
# Usage: readme-tour.sh            builds paced, as the README does
#        PACED=DIR readme-tour.sh  takes DIR/paced instead
# KEEP=FILE keeps what the commands wrote.
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d "${TMPDIR:-/tmp}/paced-tour-XXXXXXXX")
blocks=$folder/blocks
play=$folder/play
mkdir "$blocks" "$play" "$folder/home"
pids=

end_all() {
    status=$?
    trap - EXIT
    # The last one first, and one after the other: the daemon before its servers.
    for pid in $pids; do
        /bin/kill -TERM -- "$pid" 2>/dev/null || true
        wait "${pid#-}" 2>/dev/null || true
    done
    rm -rf "$folder" 2>/dev/null || { sleep 1 && rm -rf "$folder"; }
    exit "$status"
}
trap end_all EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    echo "readme-tour: $1" >&2
    [ ! -s "$folder/out" ] || sed 's/^/  | /' "$folder/out" >&2
    [ ! -s "$folder/run.log" ] || tail -n 20 "$folder/run.log" | sed 's/^/  paced run: /' >&2
    exit 1
}

start() { # start NAME COMMAND...: in the background, until the end
    name=$1
    shift
    "$@" </dev/null >"$folder/$name.log" 2>&1 &
    pids="$! $pids"
}

until_so() { # until_so SECONDS WHAT COMMAND...
    tries=$(($1 * 10))
    what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "not in time: $what"
        sleep 0.1
    done
}

has_output() { # has_output TEXT: the last block wrote this
    grep -qF -- "$1" "$folder/out" || fail "the block does not say: $1"
}

listens() { # listens PORT
    python3 -c 'import socket, sys; socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1).close()' "$1"
}

logged() { # logged TEXT: in the log of paced run
    grep -qF -- "$1" "$folder/run.log"
}

has_sent() { # has_sent NUMBER: the API had at least this many requests
    [ "$(wc -l <"$folder/requests")" -ge "$1" ]
}

# Debian's Python has pika; another one may come first.
python3 -c 'import pika' 2>/dev/null || PATH=/usr/bin:$PATH
python3 -c 'import pika' || fail "there is no pika; tests/support/install-servers.sh tests installs it"
for port in 6379 5672 9750; do
    ! listens "$port" 2>/dev/null || fail "something listens on port $port, which the README uses; stop it for the tour"
done

start redis redis-server --port 6379 --bind 127.0.0.1 --dir "$folder" --appendonly yes

free() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
dist=$(free)
epmd=$(free)
local='-kernel inet_dist_use_interface {127,0,0,1}'
echo '[].' >"$folder/enabled_plugins"
: >"$folder/empty.conf"
cat >"$folder/rabbitmq.conf" <<CONF
listeners.tcp.local = 127.0.0.1:5672
disk_free_limit.absolute = 1MB
log.console = false
CONF
start epmd env ERL_EPMD_PORT="$epmd" epmd -port "$epmd" -address 127.0.0.1
until_so 10 "epmd answers" epmd -port "$epmd" -names
start rabbit env HOME="$folder/home" ERL_EPMD_PORT="$epmd" ERL_EPMD_ADDRESS=127.0.0.1 RABBITMQ_NODENAME="tour-$dist@localhost" \
    RABBITMQ_DIST_PORT="$dist" RABBITMQ_CONF_ENV_FILE="$folder/empty.conf" RABBITMQ_CONFIG_FILE="$folder/rabbitmq.conf" \
    RABBITMQ_ENABLED_PLUGINS_FILE="$folder/enabled_plugins" RABBITMQ_MNESIA_BASE="$folder/data" RABBITMQ_LOG_BASE="$folder/log" \
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+S 1:1 $local" RUNNING_UNDER_SYSTEMD=true /usr/lib/rabbitmq/bin/rabbitmq-server

# The API: it fails while there is a file `fails`.
cat >"$folder/api.py" <<'PYTHON'
import http.server, os, sys

class Api(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        with open("requests", "a") as log:
            log.write(f"{self.path} {self.headers['idempotency-key']} {self.headers['authorization']}\n")
        self.send_response(500 if os.path.exists("fails") else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass

os.chdir(sys.argv[1])
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
open("port", "w").write(str(server.server_port))
server.serve_forever()
PYTHON
: >"$folder/requests"
start api python3 "$folder/api.py" "$folder"
until_so 10 "the API listens" test -s "$folder/port"
until_so 20 "Redis listens" listens 6379
until_so 120 "RabbitMQ listens" listens 5672

# The README's API is not this machine's; and two attempts with short waits, or a job would take minutes to die.
export PACED_DOWNSTREAMS__BILLING__HTTP__BASE_URL="http://127.0.0.1:$(cat "$folder/port")/v1/"
export PACED_DOWNSTREAMS__BILLING__RETRY__MAX_ATTEMPTS=2 PACED_DOWNSTREAMS__BILLING__RETRY__MAX_BACKOFF=1s

awk -v folder="$blocks" '
    /^<!-- tour: .* -->$/ { name = $3; next }
    /^```/ && inside { close(file); inside = 0; name = ""; next }
    /^```/ && name != "" { kind = substr($0, 4); file = sprintf("%s/%02d %s %s", folder, ++number, kind, name); inside = 1; next }
    inside { print > file }
' "$here/README.md" "$here/docs/tour.md"

before() {
    case $1 in
    # The state is a second old.
    watch) until_so 10 "all is done" sh -c 'paced status | grep -q "nothing to do"' ;;
    failing)
        touch "$folder/fails"
        printf '{"id": "invoice-%s", "path": "invoices"}\n' 4714 4715 4716 4717 >"$folder/failing.ndjson"
        paced publish billing "$folder/failing.ndjson"
        until_so 20 "the log reports the API" logged "the downstream fails, attempt after attempt"
        until_so 5 "the state reports the API" sh -c 'paced status billing | grep -q "fails .* 500"'
        ;;
    dead)
        until_so 20 "the jobs are dead" sh -c '[ "$(paced dead list billing | grep -c attempts-exhausted)" = 4 ]'
        rm "$folder/fails"
        ;;
    esac
}

after() {
    case $1 in
    check) has_output "configuration ok: 1 downstream(s): billing" && has_output "broker ok" && has_output "store ok" ;;
    publish)
        has_output "published 3 job(s) to billing" && has_output "published 1 job(s) to billing"
        until_so 20 "the API has 5 jobs" has_sent 5
        grep -qx '/v1/invoices/4711 invoice-4711 Bearer what-the-API-wants' "$folder/requests" || fail "no request of invoice-4711"
        ;;
    watch) has_output "WHAT BINDS" && has_output "nothing to do" && has_output "readyz check passed" && has_output 'outcome="delivered"} 5' ;;
    control)
        has_output "billing is paused until" && has_output "paused until" && has_output "billing is resumed"
        grep -q 'leaky-bucket-0 .* 50/s  *20/s .* by 127.0.0.1 at ' "$folder/out" || fail "the rate that was set is not shown"
        until_so 20 "the jobs behind the pause arrive" has_sent 8
        ;;
    quota)
        has_output "is used up until"
        until_so 20 "the jobs behind the quota arrive" has_sent 13
        ;;
    failing)
        grep -q 'fails .* 500 ×' "$folder/out" || fail "the state does not report the API"
        [ "$(grep -cF 'the downstream fails, attempt after attempt' "$folder/run.log")" = 1 ] || fail "not one line"
        ;;
    dead)
        has_output invoice-4714 && has_output attempts-exhausted && has_output "replayed 4 of 4"
        until_so 20 "the API is reported to work" logged "the downstream works again"
        ;;
    esac
}

if [ -n "${PACED:-}" ]; then
    PATH=$PACED:$PATH
fi
for block in "$blocks"/*; do
    words=${block##*/}
    name=${words##* }
    kind=${words#* }
    kind=${kind%% *}
    echo "readme-tour: $name"
    cd "$play"
    before "$name"
    case $kind:$name in
    sh:demo | sh:install)
        if [ -z "${PACED:-}" ]; then
            cd "$here"
            # shellcheck disable=SC1090 # a block of the README
            . "$block"
        fi
        ;;
    sh:run)
        # As a group of its own, so that the program ends with the shell.
        setsid sh "$block" </dev/null >"$folder/run.log" 2>&1 &
        pids="-$! $pids"
        until_so 60 "paced run is ready" logged "ready"
        ;;
    sh:*)
        (
            set -e
            # shellcheck disable=SC1090
            . "$block"
        ) </dev/null >"$folder/out" 2>&1 || fail "the block $name ended with an error"
        [ -z "${KEEP:-}" ] || { echo "== $name" && cat "$folder/out"; } >>"$KEEP"
        ;;
    *) cp "$block" "$play/$name" ;;
    esac
    after "$name"
done
[ -z "${KEEP:-}" ] || { echo "== log" && cat "$folder/run.log"; } >>"$KEEP"
[ "$(ls "$blocks" | wc -l)" = 12 ] || fail "the README and docs/tour.md have other blocks than they had"
echo "readme-tour: every command did what the pages say"
