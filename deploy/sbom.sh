#!/bin/sh
# Lists every crate that is in the daemon's binary, as CycloneDX in JSON, by cargo-cyclonedx.
#
# Usage: sbom.sh
#   $OUT     where it goes; target/packages unless set
#   $TARGET  what the binary is for; this machine's unless set
set -eu

cd "$(dirname "$0")/.."
out=${OUT:-target/packages}
target=${TARGET:-$(uname -m)-unknown-linux-gnu}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name=paced-$version-$target.cdx

# It writes beside Cargo.toml, and nowhere else.
trap 'rm -f "$name.json"' EXIT
"${CARGO:-cargo}" cyclonedx --format json --spec-version 1.5 --features daemon --target "$target" --override-filename "$name" --quiet
mkdir -p "$out"
mv "$name.json" "$out/"
echo "$out/$name.json"
