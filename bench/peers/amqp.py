"""Just enough AMQP 0-9-1 to see that a broker serves: connect, declare, count.

Invariant: every wait has a limit, and no client library is between the measurement and the socket."""

import socket
import struct
import time


def short(text):
    data = text.encode()
    return bytes([len(data)]) + data


def table(fields):
    body = b"".join(short(k) + b"S" + struct.pack(">I", len(v.encode())) + v.encode() for k, v in fields.items())
    return struct.pack(">I", len(body)) + body


def frame(channel, class_id, method_id, args=b""):
    payload = struct.pack(">HH", class_id, method_id) + args
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"


class Refused(Exception):
    """The broker closed the channel or connection."""


class Connection:
    """A connection with channel 1 open."""

    def __init__(self, port, patience_s=10):
        self.socket = socket.create_connection(("127.0.0.1", port), patience_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb")
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self.wait(10, 10)
        login = b"\0guest\0guest"
        self.socket.sendall(frame(0, 10, 11, table({}) + short("PLAIN") + struct.pack(">I", len(login)) + login + short("en_US")))
        tune = self.wait(10, 30)
        self.socket.sendall(frame(0, 10, 31, tune[:6] + b"\0\0") + frame(0, 10, 40, short("/") + b"\0\0"))
        self.wait(10, 41)
        self.socket.sendall(frame(1, 20, 10, b"\0"))
        self.wait(20, 11)

    def wait(self, class_id, method_id):
        while True:
            head = self.stream.read(7)
            if len(head) < 7:
                raise OSError("the broker closed the socket")
            kind, _, length = struct.unpack(">BHI", head)
            payload = self.stream.read(length + 1)[:-1]
            if kind != 1:
                continue
            got = struct.unpack(">HH", payload[:4])
            if got == (class_id, method_id):
                return payload[4:]
            if got in ((10, 50), (20, 40)):
                raise Refused(payload[4:].decode("utf-8", "replace"))

    def count(self, queue):
        """Ready messages of a queue."""
        self.socket.sendall(frame(1, 50, 10, b"\0\0" + short(queue) + b"\x01" + table({})))
        reply = self.wait(50, 11)
        return struct.unpack(">I", reply[1 + reply[0] : 5 + reply[0]])[0]

    def declare_many(self, names, arguments, window=200):
        """Declares durable queues, at most `window` unanswered."""
        names = list(names)
        for at in range(0, len(names), window):
            some = names[at : at + window]
            self.socket.sendall(b"".join(frame(1, 50, 10, b"\0\0" + short(name) + b"\x02" + table(arguments)) for name in some))
            for _ in some:
                self.wait(50, 11)

    def close(self):
        self.socket.close()


def wait_until(check, patience_s, since):
    """Calls `check` until it returns something true; seconds since `since`. Errors of a broker that is not up yet are expected."""
    last = None
    while time.monotonic() - since < patience_s:
        try:
            if check():
                return time.monotonic() - since
        except (OSError, Refused) as error:
            last = error
        time.sleep(0.005)
    raise TimeoutError(f"not within {patience_s} s; last: {last}")


def serves(port):
    """True when the broker completes a handshake up to an open channel."""
    connection = Connection(port, 2)
    connection.close()
    return True


def has(port, queue, messages):
    """True when the queue is served and has that many ready messages."""
    connection = Connection(port, 2)
    try:
        return connection.count(queue) >= messages
    finally:
        connection.close()
