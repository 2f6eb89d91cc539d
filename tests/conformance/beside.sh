#!/usr/bin/env bash
# RabbitMQ 3.10.8 and Leveret beside each other, on folders and ports of their own: what both answer over HTTP, field by field
# (fields.py), and what their metrics are called (metric_names.py). Differences without a reason make the exit code 1.
#
# Needs Debian's rabbitmq-server, and a python3 that has pika (PYTHON). LEVERET_BIN: the binary; else cargo builds one.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
if [ -z "${LEVERET_BIN:-}" ]; then
  cargo build --locked -p leveret
  LEVERET_BIN=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/debug/leveret
fi
port=${PORT:-5690}
folder=$(mktemp -d)
export RABBITMQ_TEST_FOLDER=$folder/rabbitmq RABBITMQ_TEST_PORT=$port RABBITMQ_TEST_PLUGINS=rabbitmq_prometheus
broker=
leave() {
  [ -z "$broker" ] || kill -TERM "$broker" 2>/dev/null || true
  tests/rabbitmq.sh stop || true
  wait
  rm -rf "$folder"
}
trap leave EXIT
tests/rabbitmq.sh start
amqp=$((port + 10)) http=$((port + 11))
env -u LEVERET_BIN "$LEVERET_BIN" server --data-dir "$folder/leveret" --amqp "127.0.0.1:$amqp" --management "127.0.0.1:$http" >"$folder/log" 2>&1 &
broker=$!
for _ in $(seq 300); do
  curl -sf -o /dev/null -u guest:guest "http://127.0.0.1:$http/api/overview" && break
  kill -0 "$broker" 2>/dev/null || { cat "$folder/log" >&2; exit 1; }
  sleep 0.1
done
failed=0
"${PYTHON:-python3}" "$here/fields.py" "$port" $((port + 1)) "$amqp" "$http" || failed=1
"${PYTHON:-python3}" "$here/metric_names.py" "$port" $((port + 1)) $((port + 4)) "$amqp" "$http" || failed=1
exit $failed
