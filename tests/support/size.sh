#!/bin/sh
# Prints the lines of code, of comments and of tests, by folder (`make size`). Blank lines do not count. Of a file's own tests
# all lines count as tests, comments too. With a revision as argument, those of that revision.
set -eu

cd "$(dirname "$0")/../.."
folder=.
if [ $# -gt 0 ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    git archive "$1" | tar -x -C "$folder"
fi
cd "$folder"
find src tests benches examples \( -name '*.rs' -o -name '*.lua' -o -name '*.js' -o -name '*.mjs' \) | sort | xargs awk '
    FNR == 1 {
        split(FILENAME, part, "/")
        row = part[1]
        if (row == "src") { sub(/\.rs$/, "", part[2]); row = "src/" part[2] }
        if (!(row in seen)) { seen[row] = 1; order[++rows] = row }
        is_test = part[1] == "tests" || FILENAME ~ /\/tests(\/|\.rs$)/
        attribute = 0
    }
    /^[ \t]*$/ { next }
    /^#\[cfg\(test\)\]/ { attribute = 1 }
    attribute && /^mod .*\{$/ { is_test = 1 }
    !/^#\[/ { if (!is_test) attribute = 0 }
    is_test { tests[row]++; next }
    /^[ \t]*(\/\/|--|\/\*|\* )/ { comments[row]++; next }
    { code[row]++ }
    END {
        printf "%-20s %8s %9s %8s\n", "folder", "code", "comments", "tests"
        for (i = 1; i <= rows; i++) {
            row = order[i]
            printf "%-20s %8d %9d %8d\n", row, code[row], comments[row], tests[row]
            c += code[row]; m += comments[row]; t += tests[row]
            if (row ~ /^src/) { sc += code[row]; sm += comments[row]; st += tests[row] }
        }
        printf "%-20s %8d %9d %8d\n", "src, all of it", sc, sm, st
        printf "%-20s %8d %9d %8d\n", "all", c, m, t
    }'
