#!/usr/bin/env bash
# Makes the profile that guides the release build, and prints where it is, or `none` where it cannot be made: profile.sh. A build that counts
# what it does runs the scenarios of the load generator, as one node and as three (a quarter of an hour, on two cores). One that was made of
# the same commit is taken again. Needs rustc's llvm-tools, which it adds by rustup.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/profile
profile=$folder/leveret.profdata
commit=$(git describe --always --dirty 2>/dev/null || echo dirty)
case $commit in
*dirty) ;;
*) if [ "$(cat "$folder/commit" 2>/dev/null)" = "$commit" ]; then echo "$profile"; exit 0; fi ;;
esac
host=$(rustc -vV | sed -n 's/^host: //p')
tool=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
[ -x "$tool" ] || rustup component add llvm-tools >&2 || true
[ -x "$tool" ] || { echo "no profile: rustc's llvm-tools are not there" >&2; echo none; exit 0; }
rm -rf "$folder/counts" "$folder/commit"
mkdir -p "$folder"
RUSTFLAGS="${RUSTFLAGS:-} -Cprofile-generate=$folder/counts" CARGO_TARGET_DIR=$folder/build \
  "${CARGO:-cargo}" build --locked --profile dist -p leveret --target "$host" >&2
for nodes in 3 1; do
  for scenario in s2 s1 s3; do
    # What it measures is of no interest, whether it passes neither: counting takes time.
    echo "profile: scenario $scenario on $nodes nodes" >&2
    (cd "$folder" && timeout 300 "build/$host/dist/leveret" bench scenario $scenario --seconds 5 --nodes $nodes --plain) >"$folder/log" 2>&1 || true
  done
done
"$tool" merge -o "$profile" "$folder"/counts/*.profraw
rm -rf "$folder/counts"
echo "$commit" >"$folder/commit"
echo "$profile"
