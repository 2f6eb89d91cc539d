#!/usr/bin/env bash
# Walks docs/migrating-from-rabbitmq.md, from a RabbitMQ of this machine to a Leveret beside it, under load (a minute; needs Debian's
# rabbitmq-server and python3 with venv). LEVERET_BIN names the binary, otherwise it is built; RABBITMQ_TEST_PORT the first of four ports.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
folder=$(mktemp -d)
export RABBITMQ_TEST_FOLDER=$folder/rabbitmq RABBITMQ_TEST_PORT=${RABBITMQ_TEST_PORT:-5691} RABBITMQ_TEST_PLUGINS=rabbitmq_shovel
trap 'tests/rabbitmq.sh stop || true; rm -rf "$folder"' EXIT
if [ -z "${LEVERET_BIN:-}" ]; then
  cargo build --locked --workspace --bin leveret
  LEVERET_BIN=${CARGO_TARGET_DIR:-target}/debug/leveret
fi
venv=${CARGO_TARGET_DIR:-target}/migration-python
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install -q --disable-pip-version-check pika==1.3.2
tests/rabbitmq.sh start
LEVERET_BIN=$LEVERET_BIN WALK_FOLDER=$folder "$venv/bin/python" "$here/walk.py"
