#!/usr/bin/env python3
"""ctl.py COMMAND ARGS: what client suites ask of rabbitmqctl, done over the management API of the broker on this machine.

Invariant: a command that is not known here fails; none is passed over. `set_vm_memory_high_watermark` stands for what it is used for,
to block publishers at once: below a hundredth they are held, as by any alarm, and above they go on."""

import base64
import json
import os
import sys
import urllib.request

API = os.environ.get("MGMT_URL", "http://127.0.0.1:15672") + "/api/"
HELD_BELOW = 0.01


def call(method, path):
    request = urllib.request.Request(API + path, method=method)
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=20) as reply:
        text = reply.read()
    return json.loads(text) if text else None


def main():
    command, arguments = sys.argv[1], sys.argv[2:]
    if command != "set_vm_memory_high_watermark":
        sys.exit(f"{command}: not known to this stand-in for rabbitmqctl")
    node = call("GET", "overview")["node"]
    call("PUT" if float(arguments[0]) < HELD_BELOW else "DELETE", f"nodes/{node}/publishers/hold")


main()
