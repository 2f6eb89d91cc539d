#!/usr/bin/env bash
# rabbitmq.sh start|stop|kill|version: Debian's RabbitMQ on a folder and ports of its own, with the management API, for tests that
# restart their broker (BROKER_CONTROL). `start` goes on with what is in the folder and returns once AMQP is served.
# Environment: RABBITMQ_TEST_FOLDER, RABBITMQ_TEST_PORT (AMQP; +1 is the management API, +2 epmd, +3 Erlang's distribution, +4
# metrics where RABBITMQ_TEST_PLUGINS has rabbitmq_prometheus).
# RABBITMQ_TEST_PLUGINS: more plugins, with commas between them. RABBITMQ_TEST_ROOT: the root of another system in which another
# release is installed; the folder is then inside of it (as root: `mmdebstrap --variant=minbase --include=rabbitmq-server forky ROOT`).
# `version` prints the release.
# Only the Erlang machine of that folder is ever signalled.
set -eu
folder=${RABBITMQ_TEST_FOLDER:?} port=${RABBITMQ_TEST_PORT:?} root=${RABBITMQ_TEST_ROOT:-}
inside() { if [ -n "$root" ]; then chroot "$root" "$@"; else "$@"; fi; }
export ERL_EPMD_PORT=$((port + 2))

pids() {
  for pid in $(pgrep -x beam.smp || true); do
    { tr '\0' '\n' <"/proc/$pid/environ"; } 2>/dev/null | grep -qxF "RABBITMQ_MNESIA_BASE=$folder/mnesia" && echo "$pid"
  done
  true
}

end() {
  for pid in $(pids); do kill "-$1" "$pid"; done
  for _ in $(seq 1 300); do [ -n "$(pids)" ] || return 0; sleep 0.2; done
  echo "RabbitMQ does not end" >&2
  exit 1
}

case ${1:-} in
start)
  [ -z "$(pids)" ] || { echo "RabbitMQ runs already" >&2; exit 1; }
  # Or what is measured or tested would be somebody else's broker.
  for taken in "$port" $((port + 1)) $((port + 3)); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$taken") 2>/dev/null; then
      echo "somebody else listens on port $taken: end it, or choose another RABBITMQ_TEST_PORT" >&2
      exit 1
    fi
  done
  if [ -n "$root" ]; then
    # Its name resolution and its processes need these.
    mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
    cp /etc/hosts "$root/etc/hosts"
  fi
  mkdir -p "$root$folder/home" "$root$folder/log" "$root$folder/mnesia"
  printf 'loopback_users.guest = true\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %s\n' $((port + 1)) >"$root$folder/rabbitmq.conf"
  case ${RABBITMQ_TEST_PLUGINS:-} in
  *rabbitmq_prometheus*) printf 'prometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = %s\n' $((port + 4)) >>"$root$folder/rabbitmq.conf" ;;
  esac
  # `loopback_users.guest = true` keeps guest to this machine, which is where the tests are.
  echo "[rabbitmq_management${RABBITMQ_TEST_PLUGINS:+,$RABBITMQ_TEST_PLUGINS}]." >"$root$folder/enabled_plugins"
  : >"$root$folder/none.conf"
  cd /
  inside env HOME="$folder/home" RABBITMQ_NODENAME="test$port@localhost" RABBITMQ_NODE_PORT="$port" RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 \
    RABBITMQ_DIST_PORT=$((port + 3)) RABBITMQ_MNESIA_BASE="$folder/mnesia" RABBITMQ_LOG_BASE="$folder/log" \
    RABBITMQ_CONFIG_FILE="$folder/rabbitmq.conf" RABBITMQ_ADVANCED_CONFIG_FILE="$folder/none.config" \
    RABBITMQ_ENABLED_PLUGINS_FILE="$folder/enabled_plugins" RABBITMQ_CONF_ENV_FILE="$folder/none.conf" LANG=C.UTF-8 \
    setsid nohup /usr/lib/rabbitmq/bin/rabbitmq-server </dev/null >>"$root$folder/log/output.log" 2>&1 &
  server=$!
  for _ in $(seq 1 600); do
    if curl -sf -o /dev/null -u guest:guest "http://127.0.0.1:$((port + 1))/api/overview"; then exit 0; fi
    kill -0 "$server" 2>/dev/null || break
    sleep 0.2
  done
  tail -n 20 "$root$folder/log/output.log" >&2
  exit 1
  ;;
stop)
  end TERM
  # The name service of its nodes ends with the last of them.
  inside env LANG=C.UTF-8 epmd -port "$((port + 2))" -kill >/dev/null 2>&1 || true
  ;;
kill) end KILL ;;
version) inside dpkg-query -W rabbitmq-server ;;
*)
  echo "usage: rabbitmq.sh start|stop|kill|version" >&2
  exit 2
  ;;
esac
