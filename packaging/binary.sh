#!/usr/bin/env bash
# Builds the binary that is handed out: binary.sh [TARGET [ARGUMENTS OF cargo build...]]. Without symbols, at most 16 MB, and guided by a
# profile of what a node and a cluster of three do under load (packaging/profile.sh): that takes a sixth off the CPU of a message at a moderate rate.
# LEVERET_PROFILE names a profile that is there already, or is `none` for a build without one, in half of the time.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:-}
shift || true
profile=${LEVERET_PROFILE:-}
[ -n "$profile" ] || profile=$(packaging/profile.sh)
flags=${RUSTFLAGS:-}
[ "$profile" = none ] || flags="$flags -Cprofile-use=$(realpath "$profile")"
RUSTFLAGS=$flags "${CARGO:-cargo}" build --locked --profile dist -p leveret ${target:+--target "$target"} "$@"
binary=${CARGO_TARGET_DIR:-target}/${target:+$target/}dist/leveret
bytes=$(stat -c %s "$binary")
echo "$binary: $bytes bytes"
[ "$bytes" -le 16000000 ] || { echo "a binary has at most 16 MB" >&2; exit 1; }
