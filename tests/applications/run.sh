#!/usr/bin/env bash
# Applications as people write them, on client libraries as they are published, against Leveret: a Celery worker, a Node and a Java service.
# Each does an RPC, retries what fails with dead-lettering (Celery: with its own retries), and runs a delayed job, and says so in one line.
#
#   tests/applications/run.sh                 all of them, on a fresh broker that goes when they are done
#   tests/applications/run.sh node java       some of them
#   AMQP_URI=amqp://… tests/applications/run.sh    against a broker that runs already, RabbitMQ for one
#
# Needs python3 with venv, node with npm, a JDK with maven; libraries come from their registries. WORK is the scratch folder (default
# target/applications), LEVERET_BIN the binary (default: cargo builds one).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work=${WORK:-$root/target/applications}
mkdir -p "$work"
applications=("$@")
[ ${#applications[@]} -gt 0 ] || applications=(celery node java)

broker=
leave() { [ -z "$broker" ] || { kill -TERM "$broker" 2>/dev/null && wait "$broker"; } || true; }
trap leave EXIT

if [ -z "${AMQP_URI:-}" ]; then
  if [ -z "${LEVERET_BIN:-}" ]; then
    (cd "$root" && cargo build -p leveret)
    LEVERET_BIN=$(cd "$root" && cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/debug/leveret
  fi
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  rm -rf "$work/data"
  # Its own variable for the binary would be an unknown setting to the broker.
  env -u LEVERET_BIN "$LEVERET_BIN" server --data-dir "$work/data" --amqp "127.0.0.1:$port" --management none >"$work/broker.log" 2>&1 &
  broker=$!
  export AMQP_URI=amqp://guest:guest@127.0.0.1:$port/%2f
  for _ in $(seq 300); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
    kill -0 "$broker" 2>/dev/null || { tail -5 "$work/broker.log" >&2; exit 1; }
    sleep 0.1
  done
fi
export AMQP_URI

celery() {
  [ -x "$work/venv/bin/celery" ] || { python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q --disable-pip-version-check -r "$here/celery/requirements.txt"; }
  (cd "$here/celery" && PYTHONDONTWRITEBYTECODE=1 "$work/venv/bin/python" application.py)
}
node_() {
  mkdir -p "$work/node"
  cp "$here"/node/* "$work/node/"
  [ -d "$work/node/node_modules" ] || (cd "$work/node" && npm install --silent --no-audit --no-fund)
  (cd "$work/node" && node application.js)
}
java_() {
  mvn -q -f "$here/java/pom.xml" -DbuildFolder="$work/java" compile exec:java
}

failed=0
for application in "${applications[@]}"; do
  case $application in
  celery) run=celery ;;
  node) run=node_ ;;
  java) run=java_ ;;
  *) echo "there is no application '$application': celery, node, java" >&2; exit 2 ;;
  esac
  if $run; then echo "$application: ok"; else echo "$application: FAILED"; failed=1; fi
done
exit $failed
