#!/usr/bin/env bash
# Client libraries' own test suites against Leveret, each on a fresh broker on the default ports in a network namespace of its own,
# compared with what RabbitMQ 3.10.8 gives.
#
#   tests/conformance/run.sh                      all of them
#   tests/conformance/run.sh go-amqp091 kombu     some of them
#
# Suites: go-amqp091 lapin amqprs kombu py-amqp perftest-seeds, and of the management API rabbit-hole (Go) and rabbitmqadmin (that of
# RabbitMQ 3.10 in Python; the second version too where RABBITMQADMIN_NG names its command). Needs root (network namespaces), go, cargo,
# openssl, python3 with venv, a JRE and maven, Debian's rabbitmq-server for its rabbitmqadmin; downloads come from package registries. CONFORMANCE is the runners' folder (default ../shared/conformance, beside
# the project), LAB the scratch folder (default target/conformance), LEVERET_BIN the binary (default: cargo builds a release one).
#
# The broker has what the suites expect of one and what the RabbitMQ that they are compared with has: TLS on 5671 with certificates of
# an authority of this run, a definitions file with guest, with amqprs's user and with that of the client's certificate, all mechanisms;
# the binary is rabbitmqctl too, under a link of that name.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
runners=$(cd "${CONFORMANCE:-$root/../shared/conformance}" 2>/dev/null && pwd) || { echo "no runners: set CONFORMANCE to the folder that holds them" >&2; exit 2; }
cd "$root"
export LAB=${LAB:-$root/target/conformance} LABEL=leveret NETNS=${NETNS:-leveret-conformance}
export RESULTS=${RESULTS:-$LAB/results} SUITE_TIMEOUT=${SUITE_TIMEOUT:-1200}
mkdir -p "$LAB/logs" "$RESULTS"
if [ -z "${LEVERET_BIN:-}" ]; then
  cargo build --release -p leveret
  LEVERET_BIN=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/leveret
fi
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(go-amqp091 lapin amqprs kombu py-amqp perftest-seeds rabbit-hole rabbitmqadmin)

runner() {
  case $1 in
  lapin | amqprs) echo "run-rust-crate.sh $1" ;;
  *) echo "run-$1.sh" ;;
  esac
}
result() {
  case $1 in
  lapin | amqprs) echo "rust-$1" ;;
  *) echo "$1" ;;
  esac
}

broker= made=
leave() {
  [ -z "$broker" ] || kill -KILL "$broker" 2>/dev/null || true
  [ -z "$made" ] || ip netns delete "$NETNS"
}
trap leave EXIT
if ! ip netns list | grep -qw "$NETNS"; then
  ip netns add "$NETNS" && ip -n "$NETNS" link set lo up
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
      printf 'subjectAltName=DNS:%s,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=%sAuth\n' "$host" "$name" >"$name.ext"
      openssl req -newkey rsa:2048 -nodes -subj "/CN=$name" -keyout "${name}_${host}_key.pem" -out "$name.csr" || exit
      openssl x509 -req -in "$name.csr" -CA ca_certificate.pem -CAkey ca_key.pem -CAcreateserial -days 2 -extfile "$name.ext" \
        -out "${name}_${host}_certificate.pem" || exit
    done
  ) >"$LAB/logs/openssl.log" 2>&1; then
    cat "$LAB/logs/openssl.log" >&2
    exit 1
  fi
  tls=(
    --amqps '127.0.0.1:5671,[::1]:5671' --tls-ca "$TLS_DIR/ca_certificate.pem" --tls-verify optional
    --tls-certificate "$TLS_DIR/server_${host}_certificate.pem" --tls-key "$TLS_DIR/server_${host}_key.pem"
  )
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

serve() { # starts a broker on fresh data and waits until it answers
  data=$LAB/data
  rm -rf "$data"
  # Its own variable for the binary would be an unknown setting to the broker.
  ip netns exec "$NETNS" env -u LEVERET_BIN "$LEVERET_BIN" server --data-dir "$data" --node-name rabbit@localhost \
    --definitions "$LAB/definitions.json" --auth-mechanisms PLAIN,AMQPLAIN,EXTERNAL,RABBIT-CR-DEMO \
    --certificate-login common_name "${tls[@]}" >"$LAB/broker.log" 2>&1 &
  broker=$!
  for _ in $(seq 600); do
    ip netns exec "$NETNS" bash -c 'exec 3<>/dev/tcp/127.0.0.1/5672 && printf "AMQP\0\0\11\1" >&3 && read -r -N 1 -t 2 -u 3' 2>/dev/null && return
    kill -0 "$broker" 2>/dev/null || break
    sleep 0.1
  done
  echo "the broker does not answer:" >&2
  tail -5 "$LAB/broker.log" >&2
  return 1
}

certificates
definitions
failed=0
for suite in "${suites[@]}"; do
  read -ra command <<<"$(runner "$suite")"
  name=$(result "$suite")
  [ -x "$runners/${command[0]}" ] || { echo "$suite: there is no such suite in $runners" >&2; exit 2; }
  PHASE=prepare "$runners/${command[0]}" "${command[@]:1}"
  serve
  # Others would add users with it, whom the definitions have.
  if [ "$suite" = go-amqp091 ]; then
    ln -sf "$LEVERET_BIN" "$LAB/rabbitmqctl"
    export RABBITMQCTL=$LAB/rabbitmqctl LEVERET_DATA_DIR=$data
  else
    unset RABBITMQCTL LEVERET_DATA_DIR
  fi
  PHASE=run "$runners/${command[0]}" "${command[@]:1}" || true
  if ! kill -0 "$broker" 2>/dev/null; then
    echo "$suite: the broker ended while the suite ran:" >&2
    tail -5 "$LAB/broker.log" >&2
    failed=1
  else
    kill -TERM "$broker"
    wait "$broker" || { echo "$suite: the broker did not end in good order" >&2; failed=1; }
  fi
  cp "$LAB/broker.log" "$LAB/logs/$name.broker.log"
  "$here/judge.py" "$name" "$runners/reference/$name.3.10.8.txt" "$runners/reference/$name.none.txt" "$RESULTS/$name.leveret.txt" || failed=1
done
exit $failed
