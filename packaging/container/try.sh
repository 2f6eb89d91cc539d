#!/usr/bin/env bash
# Tries an image: try.sh TAG. It has to start as somebody who is not root, with nothing that it may write but its volume, without a shell
# in it; to answer its health check; to let a client publish and consume; and to end with 0.
# BUILDER names the tool, docker unless said; PYTHON a python3 that has pika; USER_IN_IT somebody else than the image says, as 65532:0.
set -euo pipefail
[ $# = 1 ] || { echo "try.sh TAG" >&2; exit 2; }
tag=$1 builder=${BUILDER:-docker} python=${PYTHON:-python3} name=leveret-try-$$
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
amqp=$(free_port) http=$(free_port)
trap '"$builder" rm -f "$name" > /dev/null 2>&1 || true; "$builder" volume rm "$name" > /dev/null 2>&1 || true' EXIT
"$builder" volume create "$name" > /dev/null
# The host's network, so that guest, who counts on this machine alone, may log in.
"$builder" run -d --name "$name" --network host --read-only --cap-drop all --security-opt no-new-privileges ${USER_IN_IT:+--user "$USER_IN_IT"} \
  -v "$name:/var/lib/leveret" -e LEVERET_AMQP="127.0.0.1:$amqp" -e LEVERET_MANAGEMENT="127.0.0.1:$http" "$tag" > /dev/null
for _ in $(seq 1 100); do
  "$builder" exec "$name" /leveret ctl check_running -q > /dev/null 2>&1 && break
  sleep 0.1
done
"$builder" exec "$name" /leveret ctl check_running -q > /dev/null || { "$builder" logs "$name"; exit 1; }
pid=$("$builder" inspect --format '{{.State.Pid}}' "$name")
uid=$(awk '/^Uid:/ { print $2 }' "/proc/$pid/status")
[ "$uid" != 0 ] || { echo "it runs as root" >&2; exit 1; }
for shell in /bin/sh /bin/bash /bin/busybox; do
  if "$builder" exec "$name" "$shell" -c true > /dev/null 2>&1; then echo "there is a shell in it: $shell" >&2; exit 1; fi
done
"$builder" exec "$name" /rabbitmqctl list_queues -q > /dev/null
AMQP=$amqp "$python" - << 'END'
import os, pika
parameters = pika.ConnectionParameters("127.0.0.1", int(os.environ["AMQP"]))
connection = pika.BlockingConnection(parameters)
channel = connection.channel()
channel.confirm_delivery()
channel.queue_declare("tried", durable=True, arguments={"x-queue-type": "quorum"})
for number in range(1000):
    channel.basic_publish("", "tried", str(number).encode(), pika.BasicProperties(delivery_mode=2), mandatory=True)
read = []
for method, _, body in channel.consume("tried", inactivity_timeout=10):
    assert method is not None, f"only {len(read)} messages came"
    read.append(int(body))
    channel.basic_ack(method.delivery_tag)
    if len(read) == 1000:
        break
assert read == list(range(1000)), "they are not in their order"
channel.cancel()
connection.close()
END
"$builder" stop -t 30 "$name" > /dev/null
code=$("$builder" inspect --format '{{.State.ExitCode}}' "$name")
[ "$code" = 0 ] || { "$builder" logs "$name"; echo "it ended with $code" >&2; exit 1; }
echo "it ran as $uid, without a shell, with a file system that is read-only; 1000 messages published and consumed; it ended with 0"
