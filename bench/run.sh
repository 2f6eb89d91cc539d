#!/usr/bin/env bash
# The engine's benchmark, one command: RabbitMQ 3.10.8 and Leveret in turn, same machine, same run, same load; prints the table of ratios.
#
#   bench/run.sh                 short: about 15 minutes for both brokers
#   BENCH=full bench/run.sh      the published lengths: 10 million messages in scenario 4, minutes per scenario
#   BENCH=smoke bench/run.sh     a few seconds each: does it run at all? Its numbers mean nothing.
#
#   NODES=3 PARTS="s1 s2 s3" bench/run.sh    three nodes of each on this machine, clients at the first, quorum queues on all three
#
#   BROKERS="floor leveret" NODES=3 PARTS="s1 s2 s3" bench/run.sh    three processes that replicate, sync, answer, and do nothing else, beside ours
#
# More settings: BROKERS="rabbitmq leveret" (and floor) | PARTS="idle s1 s2 tail s3 s4 queues curve" | BENCH_OUT=folder for jars, data, logs and results
# (default target/bench) | LEVERET_BIN (default: cargo builds a release one) | SIZES="10 1000".
# Needs: Debian's rabbitmq-server, a JRE 17 and maven (installed when missing and this runs as root), python3. Loopback only.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/.."
export BENCH_OUT=${BENCH_OUT:-$PWD/target/bench}
mkdir -p "$BENCH_OUT"
ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
"$here/peers/install.sh" ${BROKERS:-rabbitmq leveret}
case " ${BROKERS:-rabbitmq leveret} " in
*" leveret "*)
  if [ -z "${LEVERET_BIN:-}" ]; then
    cargo build --release -p leveret
    LEVERET_BIN=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/leveret
    export LEVERET_BIN
  fi
  ;;
esac
case " ${BROKERS:-} " in
*" floor "*)
  if [ -z "${FLOOR_BIN:-}" ]; then
    cargo build --release -p server --example floor
    FLOOR_BIN=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/examples/floor
    export FLOOR_BIN
  fi
  ;;
esac
exec python3 "$here/peers/campaign.py" "$@"
