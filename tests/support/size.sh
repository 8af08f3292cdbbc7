#!/bin/sh
# Prints the lines of code, of comments and of tests, by folder (`make size`). Blank lines do not count. Of what is compiled for
# tests alone all lines count as tests, comments too: files below `tests`, and items and modules under `#[cfg(test)]`. With a
# revision as argument, those of that revision.
set -eu

cd "$(dirname "$0")/../.."
folder=.
if [ $# -gt 0 ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    git archive "$1" | tar -x -C "$folder"
fi
cd "$folder"
files=$(find src tests benches examples \( -name '*.rs' -o -name '*.lua' -o -name '*.js' -o -name '*.mjs' \) | sort)
# The files are read twice: first for the names of modules that only tests have.
awk '
    function count(number) { if (!is_first) { if (is_test || for_tests || in_item) tests[row] += number; else code[row] += number } }
    function show(name, c, m, t) { printf "%-20s %8d %9d %8d\n", name, c, m, t }
    # Whether the file is a module that only tests have, or below one.
    function in_test_module(file) {
        if (file ~ /^tests\/|\/tests(\/|\.rs$)/) return 1
        sub(/\.rs$/, "", file)
        do if (file in test_module) return 1; while (sub(/\/[^\/]*$/, "", file))
        return 0
    }
    # Notes the module of this line, `mod NAME;`, whose file is below that of its parent unless an attribute names it.
    function note_module(name) {
        folder = FILENAME
        if (!sub(/\/(mod|lib|main)\.rs$/, "", folder)) sub(/\.rs$/, "", folder)
        sub(/^.*mod /, "", name); sub(/;.*$/, "", name)
        test_module[folder "/" name] = 1
    }
    FNR == 1 {
        is_first = ++files <= (ARGC - 1) / 2
        split(FILENAME, part, "/")
        row = part[1]
        if (row == "src") { sub(/\.rs$/, "", part[2]); row = "src/" part[2] }
        if (!(row in seen)) { seen[row] = 1; order[++rows] = row }
        is_test = in_test_module(FILENAME); attributes = for_tests = in_item = in_attribute = 0
    }
    /^[ \t]*$/ { next }
    is_test { count(1); next }
    # The rest of an item for tests: it ends where its first line began, or at that line.
    in_item {
        count(1)
        match($0, /^ */)
        if (RLENGTH <= indent && /[;},]$/) in_item = 0
        next
    }
    # Attributes belong to the item behind them.
    in_attribute || /^[ \t]*#\[/ {
        attributes++
        if (/#\[cfg\((all\()?test[,)]/) for_tests = 1
        in_attribute = !/\]$/
        next
    }
    /^[ \t]*(\/\/|--|\/\*|\* )/ { if (for_tests) count(1); else if (!is_first) comments[row]++; next }
    {
        count(attributes + 1)
        if (for_tests) {
            match($0, /^ */); indent = RLENGTH
            if (/^(pub(\([a-z]+\))? )?mod .*\{$/) is_test = 1
            else if (/^(pub(\([a-z]+\))? )?mod .*;$/) note_module($0)
            else in_item = !/[;},]$/
        }
        attributes = for_tests = 0
    }
    END {
        printf "%-20s %8s %9s %8s\n", "folder", "code", "comments", "tests"
        for (i = 1; i <= rows; i++) {
            row = order[i]
            show(row, code[row], comments[row], tests[row])
            c += code[row]; m += comments[row]; t += tests[row]
            if (row ~ /^src/) { sc += code[row]; sm += comments[row]; st += tests[row] }
        }
        show("src, all of it", sc, sm, st)
        show("all", c, m, t)
    }' $files $files
