#!/usr/bin/env bash
# Builds the binary against musl: it needs nothing of the system it runs on. Arguments are those of cargo build.
# Needs `rustup target add x86_64-unknown-linux-musl` and musl-gcc (Debian: musl-tools) for the parts in C.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${TARGET:-$(uname -m)-unknown-linux-musl}
command -v musl-gcc > /dev/null || { echo "musl-gcc is missing: install musl-tools" >&2; exit 1; }
export CC_x86_64_unknown_linux_musl=musl-gcc CC_aarch64_unknown_linux_musl=musl-gcc
packaging/binary.sh "$target" "$@"
if ldd "${CARGO_TARGET_DIR:-target}/$target/dist/leveret" 2>&1 | grep -q '=>'; then
  echo "it is not static" >&2
  exit 1
fi
