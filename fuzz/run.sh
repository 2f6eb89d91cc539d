#!/usr/bin/env bash
# fuzz/run.sh [SECONDS [TARGET...]]: builds every fuzz target and runs each for SECONDS (default 60); stops at the first finding.
#
# The corpus grows in target/fuzz/corpus/TARGET, findings go to target/fuzz/findings; a finding becomes a named test of its crate.
# Coverage instrumentation is asked of a stable compiler through LLVM's own options, so neither cargo-fuzz nor a nightly is needed.
# Without a C++ compiler libFuzzer can't be built: apt-get install g++.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(frames tables properties connection handshake wal extent checkpoint node topology peer)
out=${FUZZ_OUT:-$PWD/target/fuzz}
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
# With --target the instrumentation stays out of build scripts.
cargo build -q --release --manifest-path fuzz/Cargo.toml --target-dir "$out/build" --target "$host"
python3 fuzz/seeds.py "$out/corpus"
env -u RUSTFLAGS cargo run -q --release --manifest-path fuzz/Cargo.toml --target-dir "$out/seeds" --example files -- "$out/corpus"
for target in "${targets[@]}"; do
  mkdir -p "$out/corpus/$target" "$out/findings"
  echo "fuzz $target for $seconds s"
  log=$out/$target.log
  if ! "$out/build/$host/release/$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$out/findings/$target-" "$out/corpus/$target" >"$log" 2>&1; then
    tail -40 "$log" >&2
    echo "fuzz $target: a finding in $out/findings" >&2
    exit 1
  fi
  sed -n 's/^stat::number_of_executed_units: */  inputs tried: /p; s/^stat::peak_rss_mb: */  peak memory, MB: /p' "$log"
  grep -o 'cov: [0-9]*' "$log" | tail -1 | sed 's/^/  /'
done
echo "fuzz: ok, ${#targets[@]} targets, $seconds s each"
