#!/usr/bin/env bash
# Makes a container image of a static binary: build.sh BINARY TAG. BUILDER names the tool, docker unless said.
# With `-` as TAG the folder is laid out, in KEEP if that is said, and its size told, and nothing is built.
set -euo pipefail
[ $# = 2 ] || { echo "build.sh BINARY TAG" >&2; exit 2; }
binary=$1 tag=$2 here=$(cd "$(dirname "$0")" && pwd)
if ldd "$binary" 2> /dev/null | grep -q '=>'; then echo "$binary is not static: packaging/static.sh makes one" >&2; exit 1; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
install -D -m 0755 "$binary" "$work/root/leveret"
# Under these names it takes RabbitMQ's arguments.
for name in rabbitmqctl rabbitmq-diagnostics rabbitmq-queues rabbitmq-upgrade rabbitmq-plugins rabbitmqadmin; do
  ln -s leveret "$work/root/$name"
done
# A volume takes owner and mode from here. 1777 would be open; the group may write, whatever user a platform chooses. It lies apart, as
# everything else is to be root's.
install -d -m 0755 "$work/root/var/lib"
install -d -m 0770 "$work/state/leveret"
install -d -m 1777 "$work/root/tmp"
install -d -m 0755 "$work/root/etc/ssl/certs"
# Whom the world believes, for tokens of an identity provider over HTTPS.
if [ -f /etc/ssl/certs/ca-certificates.crt ]; then
  install -m 0644 /etc/ssl/certs/ca-certificates.crt "$work/root/etc/ssl/certs/ca-certificates.crt"
fi
cp "$here/Dockerfile" "$work/Dockerfile"
bytes=$(du -sb "$work/root" | cut -f1)
echo "contents of the image: $bytes bytes"
[ "$bytes" -le $((40 << 20)) ] || { echo "an image has at most 40 MB" >&2; exit 1; }
if [ "$tag" = - ]; then
  [ -z "${KEEP:-}" ] || cp -a "$work/." "$KEEP"
  exit 0
fi
"${BUILDER:-docker}" build --network none -t "$tag" "$work"
