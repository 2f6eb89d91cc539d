#!/usr/bin/env bash
# Builds the binary that is handed out: binary.sh [TARGET [ARGUMENTS OF cargo build...]]. Without symbols, and at most 15 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:-}
shift || true
"${CARGO:-cargo}" build --locked --profile dist -p leveret ${target:+--target "$target"} "$@"
binary=${CARGO_TARGET_DIR:-target}/${target:+$target/}dist/leveret
bytes=$(stat -c %s "$binary")
echo "$binary: $bytes bytes"
[ "$bytes" -le 15000000 ] || { echo "a binary has at most 15 MB" >&2; exit 1; }
