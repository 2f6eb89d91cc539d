#!/usr/bin/env bash
# The applications' broker: a process that outlives the shell that started it, so that an application can have it killed.
#
#   tests/applications/broker.sh start FOLDER BINARY PORT TLS_PORT    on fresh data, and waits until it answers
#   tests/applications/broker.sh restart FOLDER                       kill -9, then a start on the data as they are
#   tests/applications/broker.sh stop FOLDER                          SIGTERM, and waits for its end
set -euo pipefail
verb=$1 folder=$2

launch() {
  local binary port tls_port
  { read -r binary && read -r port && read -r tls_port; } <"$folder/command"
  # Its own variable for the binary would be an unknown setting to the broker.
  env -u LEVERET_BIN setsid "$binary" server --data-dir "$folder/data" --amqp "127.0.0.1:$port" --amqps "127.0.0.1:$tls_port" \
    --tls-certificate "$folder/server.pem" --tls-key "$folder/server.key" --management none >>"$folder/broker.log" 2>&1 </dev/null &
  echo $! >"$folder/pid"
  for _ in $(seq 300); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && return
    kill -0 "$(<"$folder/pid")" 2>/dev/null || break
    sleep 0.1
  done
  tail -5 "$folder/broker.log" >&2
  return 1
}

end() { # with a signal, and waits until it is gone
  local pid
  pid=$(<"$folder/pid")
  kill -"$1" "$pid"
  for _ in $(seq 600); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.05
  done
  echo "the broker does not end" >&2
  return 1
}

case $verb in
start)
  rm -rf "$folder/data" "$folder/broker.log"
  printf '%s\n%s\n%s\n' "$3" "$4" "$5" >"$folder/command"
  openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout "$folder/server.key" -out "$folder/server.pem" 2>>"$folder/broker.log"
  launch
  ;;
restart) end KILL && launch ;;
stop) end TERM ;;
*) echo "there is no verb '$verb': start, restart, stop" >&2; exit 2 ;;
esac
