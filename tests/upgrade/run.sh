#!/usr/bin/env bash
# Three nodes of an earlier build go over to this one, one after the other, under load, and the first of them back and over again (a
# minute or two; needs python3 with venv). LEVERET_OLD names the earlier binary, or EARLIER the commit that it is built of; LEVERET_BIN
# names this one's, otherwise it is built.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
target=${CARGO_TARGET_DIR:-target}
if [ -z "${LEVERET_BIN:-}" ]; then
  cargo build --locked --workspace --bin leveret
  LEVERET_BIN=$target/debug/leveret
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${LEVERET_OLD:-}" ]; then
  : "${EARLIER:?name an earlier binary in LEVERET_OLD, or the commit that it is to be built of in EARLIER}"
  mkdir "$folder/source"
  git archive "$EARLIER" | tar -x -C "$folder/source"
  (cd "$folder/source" && CARGO_TARGET_DIR="$folder/target" cargo build --locked --workspace --bin leveret)
  LEVERET_OLD=$folder/target/debug/leveret
fi
venv=$target/upgrade-python
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install -q --disable-pip-version-check pika==1.3.2 pytest==8.4.2
LEVERET_BIN=$(realpath "$LEVERET_BIN") LEVERET_OLD=$(realpath "$LEVERET_OLD") "$venv/bin/python" "$here/roll.py" "$folder/nodes"
