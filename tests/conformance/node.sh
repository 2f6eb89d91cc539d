#!/usr/bin/env bash
# The broker that a suite is run against: `node.sh start [ARGUMENT...]` starts it on what is in its folder, with these arguments behind
# all others, and returns once it answers; `stop` ends it by SIGTERM and fails unless it ends in good order; `kill` ends it at once.
#
# Environment: LEVERET_BIN, NETNS (its network namespace), LAB (data, broker.log, broker.pid, definitions.json), TLS_DIR (certificates).
#
# It has what the suites expect of a broker and what the RabbitMQ that they are compared with has: TLS on 5671 with certificates of
# an authority of the run (for names, no address), a definitions file with guest, with amqprs's user and with that of the client's certificate, all mechanisms.
set -euo pipefail
answers() {
  ip netns exec "$NETNS" bash -c 'exec 3<>/dev/tcp/127.0.0.1/5672 && printf "AMQP\0\0\11\1" >&3 && read -r -N 1 -t 2 -u 3' 2>/dev/null
}
runs() { kill -0 "$(cat "$LAB/broker.pid" 2>/dev/null || echo none)" 2>/dev/null; }

case ${1:-} in
start)
  shift
  host=$(hostname)
  rm -f "$LAB/broker.pid" "$LAB/broker.status"
  (
    # Variables of this run would be unknown settings to the broker.
    ip netns exec "$NETNS" env -u LEVERET_BIN -u LEVERET_CTL "$LEVERET_BIN" server --data-dir "$LAB/data" --node-name rabbit@localhost \
      --definitions "$LAB/definitions.json" --auth-mechanisms PLAIN,AMQPLAIN,EXTERNAL,RABBIT-CR-DEMO --certificate-login common_name \
      --amqps '127.0.0.1:5671,[::1]:5671' --tls-ca "$TLS_DIR/ca_certificate.pem" --tls-verify optional \
      --tls-certificate "$TLS_DIR/server_${host}_certificate.pem" --tls-key "$TLS_DIR/server_${host}_key.pem" "$@" &
    echo $! >"$LAB/broker.pid"
    status=0
    wait $! || status=$?
    echo "$status" >"$LAB/broker.status"
  ) </dev/null >>"$LAB/broker.log" 2>&1 &
  for _ in $(seq 600); do
    [ ! -e "$LAB/broker.status" ] || break
    if answers; then exit 0; fi
    sleep 0.1
  done
  echo "the broker does not answer:" >&2
  tail -5 "$LAB/broker.log" >&2
  exit 1
  ;;
stop)
  kill -TERM "$(cat "$LAB/broker.pid")"
  for _ in $(seq 600); do
    [ ! -e "$LAB/broker.status" ] || break
    sleep 0.1
  done
  [ "$(cat "$LAB/broker.status" 2>/dev/null)" = 0 ] || { echo "the broker did not end in good order" >&2; exit 1; }
  ;;
kill) if runs; then kill -KILL "$(cat "$LAB/broker.pid")"; fi ;;
runs) runs ;;
*) echo "usage: node.sh start [ARGUMENT...] | stop | kill | runs" >&2; exit 2 ;;
esac
