#!/bin/sh
# Makes packages of a paced that is built: a .deb and a tarball in target/packages, both reproducible.
#
# Usage: package.sh [deb] [tarball] [sums]
#   $PACED       the binary; target/release/paced unless set
#   $OUT         where the packages go; target/packages unless set
#   $TARGET      what the binary is for; this machine's unless set
#   $MAINTAINER  who answers for the .deb
#
# It needs dpkg-dev (dpkg-deb, dpkg-shlibdeps) for the .deb, and binutils (strip). The man pages and the completions
# are those that the binary prints, so that it must run here.
set -eu

cd "$(dirname "$0")/.."
paced=${PACED:-target/release/paced}
out=${OUT:-target/packages}
target=${TARGET:-$(uname -m)-unknown-linux-gnu}
maintainer=${MAINTAINER:-The paced authors <paced@users.noreply.github.com>}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

case $target in
x86_64-*) arch=amd64 ;;
aarch64-*) arch=arm64 ;;
*) arch=$(dpkg --print-architecture) ;;
esac

# The instant that all files are of: that of the commit, so that the same commit makes the same packages.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}
export SOURCE_DATE_EPOCH

mkdir -p "$out"
out=$(realpath "$out")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

# What both packages have: the stripped binary, and what it prints about itself.
prepare() {
    [ ! -e "$work/paced" ] || return 0
    [ -x "$paced" ] || {
        echo "package.sh: there is no $paced: run \`make build\` first" >&2
        exit 1
    }
    paced=$(realpath "$paced")
    "${STRIP:-strip}" --strip-unneeded --remove-section=.comment --remove-section=.note -o "$work/paced" "$paced"
    chmod 755 "$work/paced"
    mkdir "$work/man" "$work/completions"
    "$paced" man --dir "$work/man" >/dev/null
    for shell in bash zsh fish; do
        "$paced" completions "$shell" >"$work/completions/$shell"
    done
}

# put MODE SOURCE DESTINATION
put() {
    install -D -m "$1" "$2" "$3"
}

# Compresses as Debian wants it; without a time, so that the result is always the same.
compress() {
    gzip -9n "$@"
}

deb() {
    prepare
    tree=$work/deb
    doc=$tree/usr/share/doc/paced
    mkdir -p "$tree/DEBIAN"
    put 755 "$work/paced" "$tree/usr/bin/paced"
    put 644 deploy/paced.service "$tree/lib/systemd/system/paced.service"
    put 644 deploy/debian/paced.toml "$tree/etc/paced/paced.toml"
    install -d -m 700 "$tree/etc/paced/credentials"
    for page in "$work"/man/*.1; do
        put 644 "$page" "$tree/usr/share/man/man1/${page##*/}"
    done
    compress "$tree"/usr/share/man/man1/*
    put 644 "$work/completions/bash" "$tree/usr/share/bash-completion/completions/paced"
    put 644 "$work/completions/zsh" "$tree/usr/share/zsh/vendor-completions/_paced"
    put 644 "$work/completions/fish" "$tree/usr/share/fish/vendor_completions.d/paced.fish"
    put 644 deploy/debian/copyright "$doc/copyright"
    put 644 CHANGELOG.md "$doc/changelog"
    put 644 config/paced.toml "$doc/paced.toml"
    for example in config/examples/*.toml; do
        put 644 "$example" "$doc/examples/${example##*/}"
    done
    {
        printf 'paced (%s-1) unstable; urgency=medium\n\n  * Version %s; changelog.gz lists the changes.\n\n' "$version" "$version"
        printf ' -- %s  %s\n' "$maintainer" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
    } >"$doc/changelog.Debian"
    compress "$doc/changelog" "$doc/changelog.Debian"

    echo /etc/paced/paced.toml >"$tree/DEBIAN/conffiles"
    for script in postinst prerm postrm; do
        put 755 "deploy/debian/$script" "$tree/DEBIAN/$script"
    done
    size=$(du -sk --apparent-size --exclude=DEBIAN "$tree" | cut -f 1)
    sed -e "s/@VERSION@/$version-1/" -e "s/@ARCH@/$arch/" -e "s/@SIZE@/$size/" \
        -e "s/@MAINTAINER@/$maintainer/" -e "s/@DEPENDS@/$(libraries)/" \
        deploy/debian/control.in >"$tree/DEBIAN/control"
    (cd "$tree" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    package=$out/paced_${version}-1_$arch.deb
    dpkg-deb --root-owner-group -Zxz --build "$tree" "$package" >/dev/null
    echo "$package"
}

# The packages of the libraries that the binary is linked with, in the versions that it needs.
libraries() {
    mkdir -p "$work/shlibs/debian"
    printf 'Source: paced\n\nPackage: paced\nArchitecture: any\n' >"$work/shlibs/debian/control"
    (cd "$work/shlibs" && dpkg-shlibdeps -O "$work/paced") | sed -n 's/^shlibs:Depends=//p'
}

tarball() {
    prepare
    name=paced-$version-$target
    tree=$work/tar/$name
    put 755 "$work/paced" "$tree/bin/paced"
    for page in "$work"/man/*.1; do
        put 644 "$page" "$tree/share/man/man1/${page##*/}"
    done
    put 644 "$work/completions/bash" "$tree/share/bash-completion/completions/paced"
    put 644 "$work/completions/zsh" "$tree/share/zsh/site-functions/_paced"
    put 644 "$work/completions/fish" "$tree/share/fish/vendor_completions.d/paced.fish"
    for file in README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT docs/deploy.md deploy/paced.service config/paced.toml; do
        put 644 "$file" "$tree/share/doc/paced/${file##*/}"
    done
    for example in config/examples/*.toml; do
        put 644 "$example" "$tree/share/doc/paced/examples/${example##*/}"
    done
    package=$out/$name.tar.gz
    tar -C "$work/tar" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" |
        compress >"$package"
    echo "$package"
}

# One file of checksums for all that is there, which `sha256sum -c SHA256SUMS` checks.
sums() {
    (cd "$out" && find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum >SHA256SUMS)
    echo "$out/SHA256SUMS"
}

[ $# -gt 0 ] || set -- deb tarball sums
for what in "$@"; do
    case $what in
    deb | tarball | sums) "$what" ;;
    *)
        echo "package.sh: $what is none of deb, tarball and sums" >&2
        exit 2
        ;;
    esac
done
