#!/usr/bin/env python3
"""seeds.py FOLDER: well-formed inputs to start from, so that the fuzzer spends its time behind the first length check.

Invariant: seeds are made, not stored: a change of a format can't leave stale ones behind."""

import os
import struct
import sys


def short(text):
    return bytes([len(text)]) + text


def long(data):
    return struct.pack(">I", len(data)) + data


VALUES = [
    b"t\x01", b"b\xff", b"B\xff", b"s\x80\x00", b"u\xff\xff", b"I\x80\x00\x00\x00", b"i\xff\xff\xff\xff", b"l" + b"\x80" + 7 * b"\0", b"f" + struct.pack(">f", 1.5),
    b"d" + struct.pack(">d", -0.1), b"D\x02" + struct.pack(">I", 314), b"S" + long(b"text"), b"x" + long(b"\0\xce"), b"T" + struct.pack(">Q", 1_700_000_000), b"V",
]  # fmt: skip
FLAT = b"".join(short(b"k%d" % n) + value for n, value in enumerate(VALUES))
NESTED = FLAT + short(b"f") + b"F" + long(FLAT) + short(b"a") + b"A" + long(b"".join(VALUES) + b"A" + long(b"t\x00"))
ARGUMENTS = long(short(b"x-queue-type") + b"S" + long(b"quorum"))


def frame(kind, channel, payload):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(class_id, method_id, arguments, channel=1):
    return frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


def content(body, flags=1 << 12, properties=b"\x02"):
    return frame(2, 1, struct.pack(">HHQH", 60, 0, len(body), flags) + properties) + (frame(3, 1, body) if body else b"")


PUBLISH = method(60, 40, b"\0\0" + short(b"") + short(b"q") + b"\x01")
METHODS = {
    "declare": method(50, 10, b"\0\0" + short(b"q") + b"\x02" + ARGUMENTS),
    "exchange": method(40, 10, b"\0\0" + short(b"x") + short(b"topic") + b"\x02" + long(NESTED)),
    "bind": method(50, 20, b"\0\0" + short(b"q") + short(b"x") + short(b"a.#") + b"\0" + long(b"")),
    "consume": method(60, 20, b"\0\0" + short(b"q") + short(b"c") + b"\0" + long(b"")),
    "get": method(60, 70, b"\0\0" + short(b"q") + b"\0"),
    "qos": method(60, 10, struct.pack(">IHB", 0, 10, 0)),
    "confirm": method(85, 10, b"\0"),
    "ack": method(60, 80, struct.pack(">QB", 1, 1)),
    "nack": method(60, 120, struct.pack(">QB", 1, 3)),
    "reject": method(60, 90, struct.pack(">QB", 1, 1)),
    "recover": method(60, 110, b"\x01"),
    "cancel": method(60, 30, short(b"c") + b"\0"),
    "purge": method(50, 30, b"\0\0" + short(b"q") + b"\0"),
    "delete": method(50, 40, b"\0\0" + short(b"q") + b"\x03"),
    "channel": method(20, 10, b"\0", 2),
    "close": method(20, 40, struct.pack(">H", 200) + short(b"bye") + b"\0\0\0\0"),
    "end": method(10, 50, struct.pack(">H", 200) + short(b"bye") + b"\0\0\0\0", 0),
}
PUBLISHES = PUBLISH + content(b"body") + PUBLISH + content(b"") + PUBLISH + content(b"x", 1 << 13, long(NESTED))
START_OK = method(10, 11, long(FLAT) + short(b"PLAIN") + long(b"\0guest\0guest") + short(b"en_US"), 0)
HANDSHAKE = b"AMQP\0\0\x09\x01" + START_OK + method(10, 31, struct.pack(">HIH", 2047, 131072, 60), 0) + method(10, 40, short(b"/") + b"\0\0", 0)

SEEDS = {
    "frames": METHODS,
    "tables": {"flat": long(FLAT), "nested": long(NESTED), "empty": long(b"")},
    "properties": {
        "none": b"\0\0",
        "headers": struct.pack(">H", 1 << 13) + long(NESTED),
        "most": struct.pack(">H", 0xFFFC) + short(b"t") + short(b"e") + long(FLAT) + b"\x02\x09" + 4 * short(b"s") + 8 * b"\1" + 4 * short(b"z"),
    },
    "connection": {
        **{name: b"\xff" + bytes_ for name, bytes_ in METHODS.items()},
        "publishes": b"\x40" + PUBLISHES,
        "a day": b"\xff" + b"".join(METHODS[m] for m in ("declare", "confirm")) + PUBLISHES + b"".join(METHODS[m] for m in ("consume", "get", "ack", "close")),
    },
    "handshake": {"whole": HANDSHAKE + METHODS["channel"], "start": HANDSHAKE[:60]},
}

for target, seeds in SEEDS.items():
    folder = os.path.join(sys.argv[1], target)
    os.makedirs(folder, exist_ok=True)
    for name, data in seeds.items():
        with open(os.path.join(folder, "seed-" + name.replace(" ", "-")), "wb") as out:
            out.write(data)
