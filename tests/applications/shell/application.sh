#!/usr/bin/env bash
# A shell script on the tools of librabbitmq, the C client: publish, consume and get a hundred lines. They know no confirms, so that a
# script cannot know what a broker that is killed has to have kept.
#
# Invariant: it ends with status 0 only if every part did what it should; nothing it declared is left behind.
set -euo pipefail
queue=shell-$$
tool() { # name, arguments
  timeout 30 "amqp-$1" --url="$AMQP_URI" "${@:2}"
}
same() {
  [ "$1" = "$2" ] || { echo "wanted '$1', got '$2'" >&2; exit 1; }
}

same "$queue" "$(tool declare-queue --queue="$queue" --durable)"
trap 'tool delete-queue --queue="$queue" >/dev/null' EXIT
seq 100 | tool publish --routing-key="$queue" --persistent --line-buffered
same "$(seq 99)" "$(tool consume --queue="$queue" --count=99 --prefetch-count=10 cat)"
same 100 "$(tool get --queue="$queue")"
if tool get --queue="$queue"; then
  echo "there is one message too many" >&2
  exit 1
fi
echo "shell: publish, consume, get"
