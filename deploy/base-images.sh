#!/bin/sh
# Prints the base images of a Dockerfile with the digests that their tags have now, as NAME=IMAGE@sha256:..., for
# `docker build --build-arg`. The names are those of the ARG lines before the first FROM. Needs docker with buildx, and asks the
# registries.
#
# Usage: base-images.sh DOCKERFILE
set -eu

bases=$(sed -n '/^FROM /q; s/^ARG \([A-Z_]*_IMAGE\)=\([^ ]*\)$/\1 \2/p' "$1")
[ -n "$bases" ] || {
    echo "base-images: $1 names no image in an ARG before its first FROM" >&2
    exit 1
}
echo "$bases" | while read -r name image; do
    digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$image")
    echo "$digest" | grep -qxE 'sha256:[0-9a-f]{64}' || {
        echo "base-images: $image has no digest: $digest" >&2
        exit 1
    }
    echo "$name=${image%@*}@$digest"
done
