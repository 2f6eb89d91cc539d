#!/usr/bin/env bash
# Makes a Debian package of a binary: build.sh BINARY FOLDER. Needs dpkg-deb, and gzip for the pages.
set -euo pipefail
[ $# = 2 ] || { echo "build.sh BINARY FOLDER" >&2; exit 2; }
binary=$1 out=$2 here=$(cd "$(dirname "$0")" && pwd)
version=$("$binary" --version | awk '{print $2}' | tr -c 'A-Za-z0-9.+~\n' '.')
architecture=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 0755 "$root"

install -D -m 0755 "$binary" "$root/usr/bin/leveret"
install -D -m 0644 "$here/../systemd/leveret.service" "$root/usr/lib/systemd/system/leveret.service"
install -D -m 0640 "$here/leveret.toml" "$root/etc/leveret/leveret.toml"
install -D -m 0644 "$here/default" "$root/etc/default/leveret"
install -D -m 0644 "$here/copyright" "$root/usr/share/doc/leveret/copyright"
# Under these names it takes RabbitMQ's arguments. They are beside the path, so that RabbitMQ's own may be on it.
mkdir -p "$root/usr/lib/leveret/bin" "$root/usr/share/man/man1"
for name in rabbitmqctl rabbitmq-diagnostics rabbitmq-queues rabbitmq-upgrade rabbitmq-plugins rabbitmqadmin; do
  ln -s ../../../bin/leveret "$root/usr/lib/leveret/bin/$name"
done
"$binary" manual "$root/usr/share/man/man1" > /dev/null
find "$root/usr/share/man/man1" -name '*.1' -exec gzip -9 -n {} +
install -d "$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/vendor-completions" \
  "$root/usr/share/fish/vendor_completions.d"
"$binary" completions bash > "$root/usr/share/bash-completion/completions/leveret"
"$binary" completions zsh > "$root/usr/share/zsh/vendor-completions/_leveret"
"$binary" completions fish > "$root/usr/share/fish/vendor_completions.d/leveret.fish"

# What it is linked with, by the library's own word; nothing for a static one.
depends=
if ldd "$binary" 2> /dev/null | grep -q '=>'; then
  libc=$(dpkg-query -W -f '${Version}' libc6 2> /dev/null | sed 's/-.*//')
  depends="Depends: libc6 (>= ${libc:-2.31}), libgcc-s1, adduser"
else
  depends="Depends: adduser"
fi
mkdir "$root/DEBIAN"
cat > "$root/DEBIAN/control" << CONTROL
Package: leveret
Version: $version
Architecture: $architecture
Maintainer: The Leveret authors <leveret@localhost>
Section: net
Priority: optional
$depends
Installed-Size: $(du -sk "$root" | cut -f1)
Description: message broker that speaks RabbitMQ's protocol
 Leveret is a broker for AMQP 0-9-1, durable and replicated, with RabbitMQ's
 management API and commands.
CONTROL
printf '/etc/leveret/leveret.toml\n/etc/default/leveret\n' > "$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do install -m 0755 "$here/$script" "$root/DEBIAN/$script"; done
mkdir -p "$out"
dpkg-deb --root-owner-group --build "$root" "$out/leveret_${version}_${architecture}.deb"
