#!/usr/bin/env bash
# Makes the profile that guides the release build, and prints where it is, or `none` where it cannot be made: profile.sh TARGET. A build that
# counts what it does runs the scenarios of the load generator, as one node and as three (a quarter of an hour, on two cores). One that was made
# of the same commit is taken again. It is of this target alone, and of builds that name it: a target is part of every function's name. Needs
# rustc's llvm-tools, which it adds by rustup.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1
folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/profile/$target
profile=$folder/leveret.profdata
commit=$(git describe --always --dirty 2>/dev/null || echo dirty)
case $commit in
*dirty) ;;
*) if [ "$(cat "$folder/commit" 2>/dev/null)" = "$commit" ]; then echo "$profile"; exit 0; fi ;;
esac
host=$(rustc -vV | sed -n 's/^host: //p')
tools=$(rustc --print sysroot)/lib/rustlib/$host/bin
[ -x "$tools/llvm-profdata" ] || rustup component add llvm-tools >&2 || true
[ -x "$tools/llvm-profdata" ] || { echo "no profile: rustc's llvm-tools are not there" >&2; echo none; exit 0; }
rm -rf "$folder/counts" "$folder/commit"
mkdir -p "$folder"
# What is built for another processor cannot be tried here.
[ "${target%%-*}" = "${host%%-*}" ] || { echo "no profile: $target does not run here" >&2; echo none; exit 0; }
RUSTFLAGS="${RUSTFLAGS:-} -Cprofile-generate=$folder/counts" CARGO_TARGET_DIR=$folder/build \
  "${CARGO:-cargo}" build --locked --profile dist -p leveret --target "$target" >&2
for nodes in 3 1; do
  for scenario in s2 s1 s3; do
    # What it measures is of no interest, whether it passes neither: counting takes time.
    echo "profile: scenario $scenario on $nodes nodes" >&2
    (cd "$folder" && timeout 300 "build/$target/dist/leveret" bench scenario $scenario --seconds 5 --nodes $nodes --plain) >"$folder/log" 2>&1 || true
  done
done
"$tools/llvm-profdata" merge -o "$profile" "$folder"/counts/*.profraw
rm -rf "$folder/counts"
echo "$commit" >"$folder/commit"
echo "$profile"
