#!/usr/bin/env bash
# Client libraries' own test suites against Leveret, each on a fresh broker on the default ports in a network namespace of its own,
# compared with what RabbitMQ 3.10.8 gives.
#
#   tests/conformance/run.sh                      all of them
#   tests/conformance/run.sh go-amqp091 kombu     some of them
#
# Suites: go-amqp091 lapin amqprs kombu py-amqp perftest-seeds java, and of the management API rabbit-hole (Go) and rabbitmqadmin (that
# of RabbitMQ 3.10 in Python; the second version too where RABBITMQADMIN_NG names its command). Without names all run for which there
# is what they need. Needs root (network namespaces), go, cargo, openssl, python3 with venv, a JDK and maven, Debian's rabbitmq-server
# for its rabbitmqadmin; downloads come from package registries, but for the tests of the Java client, of which JAVA_CLIENT is a
# checkout: without it that suite is left out. CONFORMANCE is the runners' folder (default ../shared/conformance, beside the project),
# LAB the scratch folder (default target/conformance), LEVERET_BIN the binary (default: cargo builds a release one).
#
# The broker is node.sh's; the binary is rabbitmqctl too, under a link of that name.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
runners=$(cd "${CONFORMANCE:-$root/../shared/conformance}" 2>/dev/null && pwd) || { echo "no runners: set CONFORMANCE to the folder that holds them" >&2; exit 2; }
cd "$root"
export LAB=${LAB:-$root/target/conformance} LABEL=leveret NETNS=${NETNS:-leveret-conformance}
export RESULTS=${RESULTS:-$LAB/results} SUITE_TIMEOUT=${SUITE_TIMEOUT:-1200}
export CONFORMANCE=$runners NODE_CONTROL=$here/node.sh LEVERET_CTL=$LAB/rabbitmqctl
mkdir -p "$LAB/logs" "$RESULTS"
rm -f "$LAB/broker.pid"
if [ -z "${LEVERET_BIN:-}" ]; then
  cargo build --release -p leveret
  LEVERET_BIN=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/leveret
fi
export LEVERET_BIN
ln -sf "$LEVERET_BIN" "$LEVERET_CTL"
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(go-amqp091 lapin amqprs kombu py-amqp perftest-seeds rabbit-hole rabbitmqadmin ${JAVA_CLIENT:+java})

runner() {
  case $1 in
  lapin | amqprs) echo "$runners/run-rust-crate.sh $1" ;;
  java) echo "$here/java/run.sh" ;;
  *) echo "$runners/run-$1.sh" ;;
  esac
}
result() {
  case $1 in
  lapin | amqprs) echo "rust-$1" ;;
  *) echo "$1" ;;
  esac
}

made=
leave() {
  "$here/node.sh" kill || true
  [ -z "$made" ] || ip netns delete "$NETNS"
}
trap leave EXIT
if ! ip netns list | grep -qw "$NETNS"; then
  ip netns add "$NETNS" && ip -n "$NETNS" link set lo up
  # An address that is no loopback: some users may not log in over one.
  ip -n "$NETNS" link add outside type veth peer name nowhere
  ip -n "$NETNS" address add 192.0.2.1/24 dev outside
  ip -n "$NETNS" link set nowhere up && ip -n "$NETNS" link set outside up
  made=1
fi

# An authority, the broker's certificate and a client's, where the runners look for them.
certificates() {
  export TLS_DIR=$LAB/tls
  rm -rf "$TLS_DIR" && mkdir -p "$TLS_DIR"
  local host name
  host=$(hostname)
  if ! (
    cd "$TLS_DIR" || exit
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=conformance -keyout ca_key.pem -out ca_certificate.pem \
      -addext basicConstraints=critical,CA:TRUE -addext keyUsage=keyCertSign || exit
    for name in server client; do
      printf 'subjectAltName=DNS:%s,DNS:localhost\nextendedKeyUsage=%sAuth\n' "$host" "$name" >"$name.ext"
      openssl req -newkey rsa:2048 -nodes -subj "/CN=$name" -keyout "${name}_${host}_key.pem" -out "$name.csr" || exit
      openssl x509 -req -in "$name.csr" -CA ca_certificate.pem -CAkey ca_key.pem -CAcreateserial -days 2 -extfile "$name.ext" \
        -out "${name}_${host}_certificate.pem" || exit
    done
  ) >"$LAB/logs/openssl.log" 2>&1; then
    cat "$LAB/logs/openssl.log" >&2
    exit 1
  fi
}

definitions() {
  cat >"$LAB/definitions.json" <<'END'
{
  "users": [
    { "name": "guest", "password": "guest", "tags": ["administrator"] },
    { "name": "user", "password": "bitnami", "tags": ["administrator"] },
    { "name": "client", "password_hash": "", "tags": [] }
  ],
  "vhosts": [{ "name": "/" }],
  "permissions": [
    { "user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*" },
    { "user": "user", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*" },
    { "user": "client", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*" }
  ]
}
END
}

certificates
definitions
failed=0
for suite in "${suites[@]}"; do
  read -ra command <<<"$(runner "$suite")"
  name=$(result "$suite")
  [ -x "${command[0]}" ] || { echo "$suite: there is no such suite in $runners" >&2; exit 2; }
  PHASE=prepare "${command[@]}"
  rm -rf "$LAB/data" "$LAB/data.alarms" "$LAB/broker.log"
  "$here/node.sh" start
  # Others would add users with it, whom the definitions have.
  unset RABBITMQCTL LEVERET_DATA_DIR
  if [ "$suite" = go-amqp091 ]; then
    export RABBITMQCTL=$LEVERET_CTL LEVERET_DATA_DIR=$LAB/data
  elif [ "$suite" = java ]; then
    export RABBITMQCTL=$here/java/rabbitmqctl LEVERET_DATA_DIR=$LAB/data
  fi
  PHASE=run "${command[@]}" || true
  if ! "$here/node.sh" runs; then
    echo "$suite: the broker ended while the suite ran:" >&2
    tail -5 "$LAB/broker.log" >&2
    failed=1
  else
    "$here/node.sh" stop || failed=1
  fi
  cp "$LAB/broker.log" "$LAB/logs/$name.broker.log"
  reference=$runners/reference
  [ "$suite" != java ] || reference=$here/reference
  "$here/judge.py" "$name" "$reference/$name.3.10.8.txt" "$reference/$name.none.txt" "$RESULTS/$name.leveret.txt" || failed=1
done
exit $failed
