#!/bin/sh
# Finds words that make a text hard to read (CONTRIBUTING.md, "Words") in pages, configurations, rules, code and
# scripts. It skips names in backticks, blocks of code, and links.
set -eu
cd "$(dirname "$0")/../.."

# Whole words, as an extended regular expression; and what to write instead.
words='
told|tells = who reports, sends, answers or prints it
(go|goes|going|went) by = use, follow, keep
dear = costly
whoever = who acts: a client, a user, a producer, an operator
so many = N, as many, too many
by way of = through
looks (at|whether|what|again) = checks, reads, examines
looked (at|whether) = checked, read, examined
takes? (itself|themselves) for = acts as
begins? anew = starts again
mends?|mended = correct, repair
died of|dies of = became a dead letter because of
as ever = as always
at hand = available, installed
singly = one by one
whatever|whichever = any, every, all, with any, at any
lest|thereby|whereupon|afresh = so that not, so, then, new
(go|goes|went|going) on = continue, still
all the same = still, too
in vain = without use
made up for = caught up
trying on = trying again
'

found=$(mktemp)
trap 'rm -f "$found" "$found.text"' EXIT
# docs/benchmarks.md is written by `make bench`.
find README.md CONTRIBUTING.md SECURITY.md tests/README.md docs config deploy src tests benches examples -type f \
    \( -name '*.md' -o -name '*.rs' -o -name '*.lua' -o -name '*.js' -o -name '*.toml' -o -name '*.y*ml' -o -name '*.service' -o -name '*.sh' \) ! -name benchmarks.md ! -name check-words.sh \
    -exec awk '
        FNR == 1 { code = 0 }
        /^```/ { code = !code }
        !code { gsub(/`[^`]*`|\]\([^)]*\)/, ""); print FILENAME ":" FNR ": " $0 }
    ' {} + >"$found.text"
echo "$words" | while IFS= read -r line; do
    [ -n "$line" ] || continue
    grep -iE ": (.*[^[:alnum:]_-])?(${line%% = *})([^[:alnum:]_-]|\$)" "$found.text" | sed "s|\$| [write: ${line#* = }]|" || true
done >"$found"
[ ! -s "$found" ] || { cat "$found" >&2; exit 1; }
