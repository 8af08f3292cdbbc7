#!/bin/sh
# What it takes to embed paced: makes a crate of ten lines outside of the checkout, counts the crates that it pulls in, times its
# build from nothing, and has two of its processes keep one pace through a private Redis.
#
# Usage: footprint.sh
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
cargo=${CARGO:-cargo}
scratch=$(mktemp -d)
server=
clean() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$scratch"
}
trap clean EXIT INT TERM

mkdir "$scratch/src"
cat >"$scratch/Cargo.toml" <<TOML
[package]
name = "scratch"
version = "0.0.0"
edition = "2024"

[dependencies]
paced = { path = "$here", features = ["redis"] }
tokio = { version = "1", features = ["macros", "rt-multi-thread"] }

[workspace]
TOML
cat >"$scratch/src/main.rs" <<'RUST'
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("give the URL of a Redis")?;
    let store = paced::RedisStore::connect(&url, paced::RedisOptions::default()).await?;
    let shaper = paced::Shaper::builder("scratch", "50/s".parse()?).store(store).build()?;
    for _ in 0..100 {
        shaper.acquire("any").await?;
        println!("{}", std::time::SystemTime::UNIX_EPOCH.elapsed()?.as_micros());
    }
    Ok(())
}
RUST
cp "$here/Cargo.lock" "$scratch/Cargo.lock"
cd "$scratch"

crates() { # crates ARGUMENTS: how many crates paced pulls in, itself not counted
    (cd "$here" && "$cargo" tree --locked -e normal --prefix none "$@" | sed 's/ .*//' | sort -u | grep -cv '^paced$')
}
echo "crates: $(crates --no-default-features) without features, $(crates) by default, $(crates --features redis) with redis"

"$cargo" fetch --quiet
begin=$(date +%s)
CARGO_TARGET_DIR=$scratch/target "$cargo" build --quiet
echo "cold build of the crate of ten lines with redis (debug): $(($(date +%s) - begin)) s on $(nproc) cores"

socket=$scratch/redis.sock
redis-server --port 0 --unixsocket "$socket" --save '' --appendonly no --dir "$scratch" >"$scratch/redis.log" 2>&1 &
server=$!
port=$(awk 'BEGIN { srand(); print 20000 + int(rand() * 20000) }')
tries=0
until redis-cli -s "$socket" CONFIG SET port "$port" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 50 ] || { cat "$scratch/redis.log" >&2; exit 1; }
    sleep 0.1
done
for process in 1 2; do
    target/debug/scratch "redis://127.0.0.1:$port" >"$scratch/calls.$process" &
    eval "process_$process=\$!"
done
wait "$process_1" && wait "$process_2"
sort -n "$scratch/calls.1" "$scratch/calls.2" | awk '
    { at[NR] = $1; while (at[NR] - at[first + 1] >= 1000000) first++; if (NR - first > most) most = NR - first }
    END {
        rate = (NR - 1) / (at[NR] - at[1]) * 1000000
        printf "two processes at 50/s: %d calls at %.2f/s, at most %d in any second\n", NR, rate, most
        exit !(NR == 200 && most <= 53 && rate > 48)
    }'
