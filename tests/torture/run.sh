#!/usr/bin/env bash
# Three nodes of a broker, each in a network namespace and on a file system of its own, under faults and clients; then a checker that
# knows only what the clients saw.
#
#   tests/torture/run.sh                          Leveret, five minutes
#   TORTURE_MINUTES=120 tests/torture/run.sh      longer
#   tests/torture/run.sh --broker rabbitmq        Debian's RabbitMQ 3.10.8, the same faults
#   tests/torture/run.sh --only kill,cut --seed 7 --rate 300 --keep
#
# Needs root (namespaces, mounts), go, iproute2, iptables, e2fsprogs and util-linux; RabbitMQ where it is asked for. WORK is the scratch
# folder (default target/torture): histories of bad rounds, logs, BROKER.json with all figures. LEVERET_BIN is the binary (default: cargo
# builds a release one). `go run . faults`, here, lists the faults; docs/reliability.md has results.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work=${WORK:-$root/target/torture}
mkdir -p "$work"
[ "$(id -u)" = 0 ] || { echo "the torture makes network namespaces and mounts: run it as root" >&2; exit 2; }
for tool in go ip iptables tc nsenter fsfreeze mkfs.ext4 mount; do
  command -v "$tool" >/dev/null || { echo "the torture needs $tool" >&2; exit 2; }
done
case " $* " in
*" rabbitmq "* | *"=rabbitmq "*) ;;
*)
  if [ -z "${LEVERET_BIN:-}" ]; then
    (cd "$root" && cargo build --release -p leveret)
    LEVERET_BIN=$(cd "$root" && cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/leveret
  fi
  # A copy: a build in the middle of the torture would change what is started next.
  cp "$LEVERET_BIN" "$work/leveret"
  set -- --binary "$work/leveret" "$@"
  ;;
esac
(cd "$here" && go build -o "$work/torture" .)
exec "$work/torture" run --folder "$work" --for "${TORTURE_MINUTES:-5}m" "$@"
