#!/usr/bin/env bash
# The pages of `leveret bench` and `leveret sizing`, made from the measurements of measurements.py and looked at in a headless Chromium: at 400,
# 1300, 2560 and 3840 px, light and dark, none scrolls sideways, asks anybody for anything or complains, each chart is drawn, all text can
# be read on what is behind it, and each says what its golden says. Then the live page of a run. Half a minute.
#
#   tests/page/lab.sh                 compare
#   UPDATE=1 tests/page/lab.sh        write the goldens anew (look at the pictures before)
#
# Pages and pictures are in target/lab-pages. Needs node with npm, and chromium (CHROMIUM names it). LEVERET_BIN is the program
# (default: cargo builds one).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
if [ -z "${LEVERET_BIN:-}" ]; then
  (cd "$root" && cargo build -q -p leveret)
  LEVERET_BIN=$(cd "$root" && cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/debug/leveret
fi
[ -d "$here/node_modules/puppeteer-core" ] || (cd "$here" && npm ci --no-audit --no-fund --silent)
out=$root/target/lab-pages
rm -rf "$out"
mkdir -p "$out/pages"
python3 "$here/measurements.py" "$out/data"
cd "$out/data"
quiet() { "$LEVERET_BIN" "$@" >"$out/words" || [ $? -eq 1 ]; }
quiet bench report leveret.jsonl --html "$out/pages/bench-report.html"
quiet bench report leveret.jsonl rabbitmq.jsonl --html "$out/pages/bench-compare.html" --title "Two brokers"
quiet bench report unconfirmed.jsonl --html "$out/pages/bench-unconfirmed.html"
quiet bench report cut.jsonl --html "$out/pages/bench-cut.html"
quiet bench campaign campaign.toml --page
mv campaign/index.html "$out/pages/campaign.html"
quiet bench report durability.jsonl --html "$out/pages/durability.html" --title "Durability against latency"
quiet sizing report sizing.jsonl --prices prices.toml --html "$out/pages/sizing-report.html"
quiet sizing predict sizing.jsonl --prices prices.toml --html "$out/pages/sizing-predict.html"
quiet sizing report --study --html "$out/pages/study.html"
quiet sizing predict --study --html "$out/pages/study-predict.html"
cd "$here"
node lab.mjs "$out/pages" "$here/golden" "$out/pictures" 2> >(grep -v "unexpected operator" >&2)
node live.mjs "$LEVERET_BIN" "$out/pictures" 2> >(grep -v "unexpected operator" >&2)
