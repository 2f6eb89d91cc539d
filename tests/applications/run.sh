#!/usr/bin/env bash
# Applications as people write them, on client libraries as they are published, against Leveret: a Celery worker, services on the
# clients of Node, Java, Go, Ruby and PHP, and a script on the tools of the C client. Each service does an RPC, retries what fails with
# dead-lettering (Celery: with its own retries), runs a delayed job, goes on after its broker was killed with -9 and started again, and
# says so in one line.
#
#   tests/applications/run.sh                 all of them, on a fresh broker that goes when they are done
#   tests/applications/run.sh node java       some of them
#   AMQP_URI=amqp://… tests/applications/run.sh    against a broker that runs already, RabbitMQ for one; RESTART may name a program that
#                                             kills and starts it, AMQPS_URI where it serves TLS, else those parts are left out
#   NODES=3 tests/applications/run.sh celery  on three nodes behind one port, all of which are killed in turn; without TLS. PYTHON names
#                                             a python that has pytest and pika
#
# Needs python3 with venv, openssl, node with npm, a JDK with maven, go; Ruby, PHP and C come with their libraries from Debian's packages, all other
# libraries from their registries. WORK is the scratch folder (default target/applications), LEVERET_BIN the binary (default: cargo
# builds one).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work=${WORK:-$root/target/applications}
mkdir -p "$work"
applications=("$@")
[ ${#applications[@]} -gt 0 ] || applications=(celery node java go ruby php shell)

started= nodes=
leave() {
  [ -z "$started" ] || "$here/broker.sh" stop "$work" || true
  [ -z "$nodes" ] || { kill "$nodes" && wait "$nodes"; } || true
}
trap leave EXIT

if [ -z "${AMQP_URI:-}" ]; then
  if [ -z "${LEVERET_BIN:-}" ]; then
    (cd "$root" && cargo build -p leveret)
    LEVERET_BIN=$(cd "$root" && cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/debug/leveret
  fi
  read -r port tls_port < <(python3 -c 'import socket; s = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]; print(*(x.getsockname()[1] for x in s))')
  if [ "${NODES:-1}" = 3 ]; then
    folder=$work/nodes
    rm -rf "$folder" && mkdir -p "$folder"
    LEVERET_BIN=$LEVERET_BIN "${PYTHON:-python3}" "$here/nodes.py" "$folder" "$port" >"$folder/nodes.log" 2>&1 &
    nodes=$!
    until [ -e "$folder/ready" ]; do kill -0 "$nodes" && sleep 0.1; done
    export AMQP_URI=amqp://guest:guest@127.0.0.1:$port/%2f RESTART=$work/restart
    printf '#!/bin/sh\ntouch "%s/kill"; while [ -e "%s/kill" ]; do kill -0 %s || exit 1; sleep 0.1; done\n' "$folder" "$folder" "$nodes" >"$RESTART"
  else
    started=1
    "$here/broker.sh" start "$work" "$LEVERET_BIN" "$port" "$tls_port"
    export AMQPS_URI=amqps://guest:guest@127.0.0.1:$tls_port/%2f
    export AMQP_URI=amqp://guest:guest@127.0.0.1:$port/%2f
    export RESTART=$work/restart
    printf '#!/bin/sh\nexec "%s" restart "%s"\n' "$here/broker.sh" "$work" >"$RESTART"
  fi
  chmod +x "$RESTART"
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
go_() {
  (cd "$here/go" && go build -o "$work/go-application" .) && "$work/go-application"
}
debian() { # package, and the packages of what it needs: installed if it is missing
  dpkg -s "$1" >/dev/null 2>&1 || { apt-get update -q && apt-get install -y -q --no-install-recommends "$@"; } >"$work/apt.log" 2>&1
}
ruby_() {
  debian ruby-bunny ruby && ruby "$here/ruby/application.rb"
}
php_() {
  debian php-amqplib php-cli && php "$here/php/application.php"
}
shell_() {
  debian amqp-tools && "$here/shell/application.sh"
}

failed=0
for application in "${applications[@]}"; do
  case $application in
  celery) run=celery ;;
  node) run=node_ ;;
  java) run=java_ ;;
  go) run=go_ ;;
  ruby) run=ruby_ ;;
  php) run=php_ ;;
  shell) run=shell_ ;;
  *) echo "there is no application '$application': celery, node, java, go, ruby, php, shell" >&2; exit 2 ;;
  esac
  if $run; then echo "$application: ok"; else echo "$application: FAILED"; failed=1; fi
done
exit $failed
