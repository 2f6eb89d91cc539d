#!/usr/bin/env bash
# Takes all pages of docs/examples anew, on this commit, unattended: the articles' campaigns, Leveret beside RabbitMQ 3.10.8 and, where
# RABBITMQ_4_ROOT names a root that has it (docs/benchmarking.md), a newer one, and the sizing of three nodes. As root, on a machine
# that does nothing else, from the root of the repository. Begun again it goes on where it was.
#
#   bench/examples.sh                      all of them, with windows of SECONDS_A_RUN=4: about 20 minutes
#   bench/examples.sh durability sizing    some of them
#   DRY=1 bench/examples.sh                what would be run, and how long it takes
#
# LEVERET_BIN is the program (default: a release build), OUT the folder of all results (default target/examples).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${SECONDS_A_RUN:-4}
out=${OUT:-$PWD/target/examples}
if [ -z "${LEVERET_BIN:-}" ]; then
  cargo build --release --locked -p leveret
  LEVERET_BIN=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/leveret
fi
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(rabbitmq-3.10 cluster-sizing durability small-box three-nodes sizing)
mkdir -p "$out"
failed=0

# NAME BROKERS: a campaign; its page and its results' files go to docs/examples.
campaign() {
  local words=("crates/bench/campaigns/$1.toml" --out "$out/$1" --seconds "$seconds" --brokers "$2")
  if [ -n "${DRY:-}" ]; then "$LEVERET_BIN" bench campaign "${words[@]}" --dry-run; return; fi
  # 1 and 4 say that a run did not hold its rate, which is a result.
  "$LEVERET_BIN" bench campaign "${words[@]}" >"$out/$1.log" 2>&1 || case $? in 1 | 4) ;; *) echo "$1: see $out/$1.log" >&2; failed=1; return ;; esac
  tail -n 4 "$out/$1.log"
  cp "$out/$1/index.html" "docs/examples/$1.html"
}

both="Leveret,RabbitMQ 3.10"
all=$both${RABBITMQ_4_ROOT:+,RabbitMQ 4}
for part in "${parts[@]}"; do
  echo "== $part, $(date +%H:%M:%S)"
  case $part in
  # The whole table with a third broker would take the time of everything else.
  rabbitmq-3.10) campaign "$part" "$both" ;;
  cluster-sizing | durability) campaign "$part" "$all" ;;
  small-box) campaign "$part" Leveret ;;
  three-nodes) campaign "$part" "$both" ;;
  sizing)
    plan=docs/examples/sizing/plan-three-nodes.toml
    if [ -n "${DRY:-}" ]; then "$LEVERET_BIN" sizing run $plan --results "$out/three-nodes.jsonl" --dry-run; continue; fi
    ERL_EPMD_PORT=4399 epmd -daemon
    "$LEVERET_BIN" sizing run $plan --results "$out/three-nodes.jsonl" >"$out/sizing.log" 2>&1 || { echo "sizing: see $out/sizing.log" >&2; failed=1; }
    ERL_EPMD_PORT=4399 epmd -kill >"$out/epmd.log" 2>&1 || true
    cp "$out/three-nodes.jsonl" docs/examples/sizing/
    "$LEVERET_BIN" sizing report docs/examples/sizing/three-nodes.jsonl --prices docs/examples/sizing/prices-local.toml \
      --html docs/examples/sizing/three-nodes.html >>"$out/sizing.log" || failed=1
    ;;
  *) echo "unknown: $part" >&2; exit 2 ;;
  esac
done
exit $failed
