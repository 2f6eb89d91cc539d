"""Who may do what, by a definitions file, as pika sees it."""

import base64
import hashlib
import json
import signal
import socket
import struct
import time

import pika
import pytest
from conftest import free_port
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, ConnectionClosedByBroker

SALT = b"\x01\x02\x03\x04"


def hashed(password, algorithm):
    return base64.b64encode(SALT + hashlib.new(algorithm, SALT + password.encode()).digest()).decode()


def user(name, algorithm="sha256", **more):
    module = f"rabbit_password_hashing_{algorithm}"
    return {"name": name, "password_hash": hashed(f"{name}-pw", algorithm), "hashing_algorithm": module, "tags": [], **more}


def definitions(configure="^ann-", write="^(ann-|amq\\.default)", **more):
    return {
        "users": [user("ann"), user("sue", "sha512"), user("mel", "md5", limits={"max-connections": 1, "max-channels": 2})],
        "vhosts": [{"name": "/"}, {"name": "prod"}],
        "permissions": [
            {"user": "ann", "vhost": "prod", "configure": configure, "write": write, "read": "^ann-"},
            {"user": "sue", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
            {"user": "mel", "vhost": "/", "configure": "", "write": "", "read": ""},
        ],
        "queues": [{"name": "ann-given", "vhost": "prod", "durable": True, "auto_delete": False, "arguments": {"x-queue-type": "quorum"}}],
        "exchanges": [{"name": "orders", "vhost": "prod", "type": "topic", "durable": True, "auto_delete": False, "internal": False, "arguments": {}}],
        "bindings": [{"source": "orders", "vhost": "prod", "destination": "ann-given", "destination_type": "queue", "routing_key": "#", "arguments": {}}],
        **more,
    }


def connect(server, name, vhost="/", password=None):
    credentials = pika.PlainCredentials(name, password or f"{name}-pw")
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port, vhost, credentials))


@pytest.fixture
def governed(start, tmp_path):
    """A broker with a definitions file that `write` replaces and has read again."""
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(definitions(), indent=1))
    server = start("--definitions", path)
    nodes = len(server.processes)
    server.taken = nodes

    def write(text, expected="definitions taken in"):
        path.write_text(text)
        server.send_signal(signal.SIGHUP)
        if expected == "definitions taken in":
            server.taken += nodes
            server.wait_for(expected, server.taken)
        else:
            server.wait_for(expected, nodes)

    server.write = write
    return server


def refused(code, text, action):
    with pytest.raises((ChannelClosedByBroker, ConnectionClosedByBroker)) as caught:
        action()
    assert (caught.value.reply_code, caught.value.reply_text) == (code, text)


def test_users_of_every_hash_log_in_and_guest_is_gone(governed):
    connect(governed, "ann", "prod").close()
    connect(governed, "sue").close()
    connect(governed, "mel").close()
    for name, password in [("guest", "guest"), ("ann", "wrong"), ("ann", "ann-pw ")]:
        with pytest.raises(AMQPConnectionError):
            connect(governed, name, password=password)
    with pytest.raises(AMQPConnectionError) as caught:
        connect(governed, "sue", "prod")
    assert "access to vhost 'prod' refused for user 'sue'" in str(caught.value)
    assert "ann-pw" not in governed.log() and "wrong" not in governed.log().replace("wrong user or password", "")


def test_rights_are_patterns_and_a_change_reaches_a_live_channel(governed):
    connection = connect(governed, "ann", "prod")
    channel = connection.channel()
    assert channel.queue_declare("ann-own", durable=True).method.message_count == 0
    text = "ACCESS_REFUSED - configure access to queue 'other' in vhost 'prod' refused for user 'ann'"
    refused(403, text, lambda: connection.channel().queue_declare("other"))
    text = "ACCESS_REFUSED - write access to exchange 'orders' in vhost 'prod' refused for user 'ann'"

    def publish(channel, exchange):
        channel.confirm_delivery()
        channel.basic_publish(exchange, "ann-given", b"x")

    refused(403, text, lambda: publish(connection.channel(), "orders"))
    channel.confirm_delivery()
    channel.basic_publish("", "ann-own", b"x")
    governed.write(json.dumps(definitions(write="^ann-")))
    text = "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost 'prod' refused for user 'ann'"
    refused(403, text, lambda: channel.basic_publish("", "ann-own", b"x"))
    assert connection.channel().basic_get("ann-own")[2] == b"x", "what is still allowed goes on"


def test_what_the_file_has_is_there_and_a_second_reading_changes_nothing(governed):
    governed.write(json.dumps(definitions()))
    # Each node reads the file at its start and again; at the start one of them has something to change at least.
    nodes = len(governed.processes)
    assert nodes <= governed.log().count("changes=0") < 2 * nodes, governed.log()
    governed.write(json.dumps(definitions(write=".*")))
    channel = connect(governed, "ann", "prod").channel()
    channel.confirm_delivery()
    channel.basic_publish("orders", "any.key", b"routed", mandatory=True)
    assert channel.basic_get("ann-given")[2] == b"routed"


def test_a_broken_file_changes_nothing_and_is_named_by_line_and_field(governed):
    broken = json.dumps(definitions(configure=".*", write="("), indent=1)
    line = 1 + broken[: broken.index('"("')].count("\n")
    governed.write(broken, f"line {line}: permissions[0].write: ")
    connection = connect(governed, "ann", "prod")
    text = "ACCESS_REFUSED - configure access to queue 'other' in vhost 'prod' refused for user 'ann'"
    refused(403, text, lambda: connection.channel().queue_declare("other"))


def test_limits_are_kept(governed):
    connection = connect(governed, "mel")
    with pytest.raises(AMQPConnectionError) as caught:
        connect(governed, "mel")
    assert "connection refused for user 'mel': user connection limit (1) is reached" in str(caught.value)
    connection.channel()
    second = connection.channel()
    second.close()
    connection.channel()
    text = "NOT_ALLOWED - number of channels opened for user 'mel' has reached the maximum allowed user limit of (2)"
    refused(530, text, connection.channel)
    limit = {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 1, "max-connections": 1}}
    governed.write(json.dumps(definitions(parameters=[limit])))
    channel = connect(governed, "sue").channel()
    channel.queue_declare("one", durable=True)
    channel.queue_declare("one", durable=True)
    text = "PRECONDITION_FAILED - cannot declare queue 'two': queue limit in vhost '/' (1) is reached"
    refused(406, text, lambda: channel.queue_declare("two", exclusive=True))
    with pytest.raises(AMQPConnectionError) as caught:
        connect(governed, "sue")
    assert "access to vhost '/' refused for user 'sue': connection limit (1) is reached" in str(caught.value)


def test_a_policy_reaches_what_is_there_and_what_comes_and_changes_live(governed):
    def policy(exchange):
        definition = {"alternate-exchange": exchange}
        return [{"vhost": "/", "name": "catch", "pattern": "^caught", "apply-to": "exchanges", "priority": 0, "definition": definition}]

    channel = connect(governed, "sue").channel()
    channel.confirm_delivery()
    for exchange in ["first", "second"]:
        channel.exchange_declare(exchange, "fanout", durable=True)
        channel.queue_declare(exchange, durable=True)
        channel.queue_bind(exchange, exchange)
    channel.exchange_declare("caught-before", "direct", durable=True)
    governed.write(json.dumps(definitions(policies=policy("first"))))
    channel.exchange_declare("caught-after", "direct", durable=True)
    for exchange in ["caught-before", "caught-after"]:
        channel.basic_publish(exchange, "nowhere", b"x", mandatory=True)
    governed.write(json.dumps(definitions(policies=policy("second"))))
    channel.basic_publish("caught-before", "nowhere", b"x", mandatory=True)
    counts = [channel.queue_declare(queue, passive=True).method.message_count for queue in ["first", "second"]]
    assert counts == [2, 1]


def answer(port, *parts):
    """What a server says first to a client that sends these bytes; empty if it hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
        for part in parts:
            raw.sendall(part)
            time.sleep(0.02)
        try:
            return raw.recv(7)
        except ConnectionResetError:
            return b""


def test_a_proxy_names_the_client(start):
    port = free_port()
    server = start("--amqp", f"127.0.0.1:{port}", "--proxy-protocol", f"127.0.0.1:{port}", "--handshake-timeout-ms", "1500")
    amqp = b"AMQP\x00\x00\x09\x01"
    far = b"PROXY TCP4 192.0.2.7 198.51.100.1 1234 5672\r\n"
    signature = b"\r\n\r\n\x00\r\nQUIT\n"
    binary = signature + b"\x21\x11" + struct.pack(">H", 12) + socket.inet_aton("192.0.2.8") + socket.inet_aton("10.0.0.1") + struct.pack(">HH", 4321, 5672)
    start_frame = b"\x01\x00\x00"
    assert answer(port, far[:9], far[9:] + amqp)[:3] == start_frame
    assert answer(port, binary + amqp)[:3] == start_frame
    assert answer(port, signature + b"\x20\x00\x00\x00" + amqp)[:3] == start_frame
    assert answer(port, amqp + amqp) == b"", "without a header nobody is let in"
    assert answer(port, b"PROX") == b"", "nor without the rest of one"
    # guest may log in from this machine only, and a proxied client is elsewhere.
    plain = b"\x00guest\x00guest"
    start_ok = b"\x00\x0a\x00\x0b" + struct.pack(">I", 0) + b"\x05PLAIN" + struct.pack(">I", len(plain)) + plain + b"\x05en_US"
    frame = b"\x01\x00\x00" + struct.pack(">I", len(start_ok)) + start_ok + b"\xce"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
        raw.sendall(far + amqp + frame)
        while raw.recv(4096):
            pass
    server.wait_for("peer=192.0.2.7:1234 user=guest reason=\"this user may only connect via loopback\"")
    server.stop()
