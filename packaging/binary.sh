#!/usr/bin/env bash
# Builds the binary that is handed out: binary.sh [TARGET [ARGUMENTS OF cargo build...]]. Without symbols, at most 17 MB, and guided by a
# profile of what a node and a cluster of three do under load (packaging/profile.sh): that takes a sixth off the CPU of a message at a moderate rate.
# LEVERET_PROFILE names a profile that is there already, or is `none` for a build without one, in half of the time. Without TARGET it is this
# machine's, and the binary lies in target/dist/leveret besides.
set -euo pipefail
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
target=${1:-}
shift || true
built_for=${target:-$host}
profile=${LEVERET_PROFILE:-}
[ -n "$profile" ] || profile=$(packaging/profile.sh "$built_for")
flags=${RUSTFLAGS:-}
[ "$profile" = none ] || flags="$flags -Cprofile-use=$(realpath "$profile")"
folder=${CARGO_TARGET_DIR:-target}
RUSTFLAGS=$flags "${CARGO:-cargo}" build --locked --profile dist -p leveret --target "$built_for" "$@"
binary=$folder/$built_for/dist/leveret
if [ "$profile" != none ]; then
  # A profile of another target, or of other code, guides nothing, and the compiler says nothing of it.
  tools=$(rustc --print sysroot)/lib/rustlib/$host/bin
  [ -x "$tools/llvm-nm" ] || rustup component add llvm-tools
  library=$(ls -t "$folder/$built_for"/dist/deps/libpartition-*.rlib | head -1)
  known=$(comm -12 \
    <("$tools/llvm-profdata" show --all-functions "$profile" | sed -n 's/^ *\(_ZN9partition.*\):$/\1/p' | sort -u) \
    <("$tools/llvm-nm" "$library" 2>/dev/null | sed -n 's/.* \(_ZN9partition.*\)$/\1/p' | sort -u) | wc -l)
  [ "$known" -gt 0 ] || { echo "the profile $profile knows no function of this build: it is of another target, or of other code" >&2; exit 1; }
fi
if [ -z "$target" ]; then
  mkdir -p "$folder/dist"
  cp "$binary" "$folder/dist/leveret"
  binary=$folder/dist/leveret
fi
bytes=$(stat -c %s "$binary")
echo "$binary: $bytes bytes"
[ "$bytes" -le 17000000 ] || { echo "a binary has at most 17 MB" >&2; exit 1; }
