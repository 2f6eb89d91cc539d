#!/usr/bin/env bash
# Takes the pages of docs/examples anew, on this commit, unattended, from the root of the repository, on a machine that does nothing
# else: the articles' campaigns, Leveret beside Debian's RabbitMQ 3.10.8 and, where RABBITMQ_4_ROOT names the root of another system
# that has it (docs/benchmarking.md), RabbitMQ 4; then three nodes of each and their sizing. Begun again it goes on where it was.
#
#   bench/examples.sh                              all of them
#   bench/examples.sh durability sizing            some of them
#   DRY=1 bench/examples.sh                        what would be run, and about how long it takes
#   LIMIT_MINUTES=22 bench/examples.sh             end by then, with pages of what was measured until then, which name what is missing
#
# SECONDS_A_RUN is the window of a run (default 4). LEVERET_BIN is the program (default: a release build is made), OUT the folder of all
# results (default target/examples). Not as root, the small box and RabbitMQ 4 are left out, and the script says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${SECONDS_A_RUN:-4}
out=${OUT:-$PWD/target/examples}
if [ -z "${LEVERET_BIN:-}" ]; then
  cargo build --release --locked -p leveret
  LEVERET_BIN=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/leveret
fi
known=(durability small-box cluster-sizing rabbitmq-3.10 three-nodes sizing)
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=("${known[@]}")
for part in "${parts[@]}"; do
  case " ${known[*]} " in *" $part "*) ;; *) echo "unknown: $part; there are ${known[*]}" >&2; exit 2 ;; esac
done
mkdir -p "$out"
failed=0
until=0
[ -z "${LIMIT_MINUTES:-}" ] || until=$(($(date +%s) + LIMIT_MINUTES * 60))

two="Leveret"
if command -v rabbitmq-server >/dev/null || [ -x /usr/sbin/rabbitmq-server ]; then
  two="Leveret,RabbitMQ 3.10"
else
  echo "RabbitMQ 3.10.8 is not installed: its runs are left out" >&2
fi
all=$two
is_root=$([ "$(id -u)" -eq 0 ] && echo yes || true)
if [ -n "${RABBITMQ_4_ROOT:-}" ]; then
  if [ -z "$is_root" ]; then
    echo "RabbitMQ 4 is started in another root, which takes root: its runs are left out" >&2
  elif ! RABBITMQ_TEST_ROOT=$RABBITMQ_4_ROOT RABBITMQ_TEST_FOLDER=/tmp/none RABBITMQ_TEST_PORT=1 tests/rabbitmq.sh version >/dev/null; then
    echo "RABBITMQ_4_ROOT=$RABBITMQ_4_ROOT has no RabbitMQ: its runs are left out" >&2
  else
    all="$two,RabbitMQ 4"
  fi
fi

# COMMAND...: ends it as Ctrl-C does when the time for all is up; 130 then, and when it was not begun. It runs in a session of its
# own and is signalled alone, so that Ctrl-C comes to it once: a second one would end it without its page.
interrupted=
within() {
  local left=0 code=0
  if [ "$until" -gt 0 ]; then left=$((until - $(date +%s))) && [ "$left" -gt 0 ] || return 130; fi
  setsid timeout --foreground --preserve-status --signal=INT --kill-after=120 "$left" "$@" &
  local pid=$!
  trap 'interrupted=yes; kill -INT "$pid" 2>/dev/null' INT TERM
  while :; do
    code=0
    wait "$pid" || code=$?
    kill -0 "$pid" 2>/dev/null || break
  done
  trap - INT TERM
  return "$code"
}

# NAME LOG CODE: says how a part ended; fails where nothing is to be kept of it.
ended() {
  case $3 in
  # 1 and 4 say that a run was not made or did not hold its rate, and the page says which.
  0 | 1 | 4) tail -n 4 "$2" ;;
  130) echo "$1: ended before its end; the same command goes on"; failed=1 ;;
  *) echo "$1: ended with $3, see $2" >&2; tail -n 4 "$2" >&2; failed=1; return 1 ;;
  esac
}

# NAME BROKERS: a campaign; its page goes to docs/examples.
campaign() {
  local words=("crates/bench/campaigns/$1.toml" --out "$out/$1" --seconds "$seconds" --brokers "$2") code=0
  if [ -n "${DRY:-}" ]; then "$LEVERET_BIN" bench campaign "${words[@]}" --dry-run; return; fi
  rm -f "$out/$1/index.html"
  within "$LEVERET_BIN" bench campaign "${words[@]}" >"$out/$1.log" 2>&1 || code=$?
  ended "$1" "$out/$1.log" "$code" || return 0
  [ ! -f "$out/$1/index.html" ] || cp "$out/$1/index.html" "docs/examples/$1.html"
}

# The plan's own steps are as long as they are written there.
sizing() {
  local plan=docs/examples/sizing/plan-three-nodes.toml results=$out/three-nodes.jsonl code=0 words
  words=("$plan" --results "$results")
  # Without RabbitMQ its nodes cannot be started, and the run would never be complete.
  [ "$two" != Leveret ] || { echo "sizing: the plan has RabbitMQ in it, which is not installed" >&2; failed=1; return; }
  if [ -n "${DRY:-}" ]; then "$LEVERET_BIN" sizing run "${words[@]}" --dry-run; return; fi
  # Or it would stay in the first node's process group.
  ERL_EPMD_PORT=4399 epmd -daemon
  within "$LEVERET_BIN" sizing run "${words[@]}" >"$out/sizing.log" 2>&1 || code=$?
  ERL_EPMD_PORT=4399 epmd -kill >"$out/epmd.log" 2>&1 || true
  ended sizing "$out/sizing.log" "$code" || return 0
  [ -s "$results" ] || return 0
  cp "$results" docs/examples/sizing/
  "$LEVERET_BIN" sizing report docs/examples/sizing/three-nodes.jsonl --prices docs/examples/sizing/prices-local.toml \
    --html docs/examples/sizing/three-nodes.html >>"$out/sizing.log" 2>&1 || { echo "sizing: no report, see $out/sizing.log" >&2; failed=1; }
}

for part in "${parts[@]}"; do
  [ -z "$interrupted" ] || exit 130
  echo "== $part, $(date +%H:%M:%S)"
  case $part in
  small-box)
    if [ -z "$is_root" ] && [ -z "${DRY:-}" ]; then echo "small-box: brokers run in control groups, which takes root: left out" >&2; continue; fi
    campaign "$part" Leveret
    ;;
  three-nodes) campaign "$part" "$two" ;;
  sizing) sizing ;;
  *) campaign "$part" "$all" ;;
  esac
done
echo "== done, $(date +%H:%M:%S)"
[ -z "$interrupted" ] || exit 130
exit $failed
