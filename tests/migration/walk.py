"""The walk of docs/migrating-from-rabbitmq.md under load: publishers and consumers go over from RabbitMQ to Leveret one after the other,
and what nobody reads is carried over by a shovel.

Invariant: it fails if a message that either broker confirmed is read by nobody, or if one that the shovel carried is another than it was
or in another place. run.sh starts it, with a RabbitMQ that is up."""

import base64
import collections
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pika

FOLDER = os.environ["WALK_FOLDER"]
RABBITMQ_FOLDER = os.environ["RABBITMQ_TEST_FOLDER"]
OLD_PORT = int(os.environ["RABBITMQ_TEST_PORT"])
PATIENCE_S = 90
#: How old RabbitMQ's counts of messages may be.
COUNTED_S = 6
#: Messages that wait in a queue that nobody reads.
STANDING = int(os.environ.get("STANDING", "20000"))
#: How long each state of the walk lasts under load.
STEP_S = float(os.environ.get("STEP_S", "4"))
VHOST, USER, PASSWORD = "orders", "app", "walk over"
READ = ["orders.new", "orders.mail"]


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Broker:
    def __init__(self, name, amqp, http):
        self.name, self.amqp, self.http = name, amqp, http

    def connect(self):
        login = pika.PlainCredentials(USER, PASSWORD)
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.amqp, VHOST, login, heartbeat=30))

    def ask(self, method, path, body=None, user="guest", password="guest"):
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"authorization": f"Basic {token}", "content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}/api/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def messages(self, queue):
        if self.name == "rabbitmq":
            rows = json.loads(rabbitmqctl("list_queues", "-p", VHOST, "name", "messages", "--formatter", "json"))
            return {row["name"]: row["messages"] for row in rows}[queue]
        return self.ask("GET", f"queues/{VHOST}/{queue}")["messages"]

    def is_empty(self, queues=READ):
        return all(self.messages(queue) == 0 for queue in queues)


def rabbitmqctl(*arguments):
    environment = {**os.environ, "HOME": f"{RABBITMQ_FOLDER}/home", "ERL_EPMD_PORT": str(OLD_PORT + 2), "LANG": "C.UTF-8"}
    environment |= {"RABBITMQ_CONF_ENV_FILE": f"{RABBITMQ_FOLDER}/none.conf"}
    # The wrapper would go over to another user; this is what it runs.
    command = ["/usr/lib/rabbitmq/bin/rabbitmqctl", "-q", "-n", f"test{OLD_PORT}@localhost", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/")
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def until(what, ask):
    due = time.monotonic() + PATIENCE_S
    while not (found := ask()):
        assert time.monotonic() < due, f"{what} did not come about"
        time.sleep(0.1)
    return found


class Ledger:
    """What was confirmed, and how often each message was read."""

    def __init__(self):
        self.lock = threading.Lock()
        self.confirmed = collections.Counter()
        self.read = collections.Counter()
        self.by = collections.Counter()
        self.failures = []


class Publisher(threading.Thread):
    """Publishes one message after the other, each to two queues, and goes over to another broker between two of them."""

    def __init__(self, number, broker, ledger):
        super().__init__(daemon=True)
        self.number, self.broker, self.ledger = number, broker, ledger
        self.next, self.ends, self.moved = None, threading.Event(), threading.Event()

    def go_over(self, broker):
        self.next = broker
        assert self.moved.wait(PATIENCE_S), "a publisher did not go over"

    def run(self):
        try:
            count = 0
            while not self.ends.is_set():
                connection = self.broker.connect()
                channel = connection.channel()
                channel.confirm_delivery()
                while not self.ends.is_set() and self.next is None:
                    name = f"{self.number}-{count}"
                    properties = pika.BasicProperties(delivery_mode=2, message_id=name)
                    # It returns once the message is confirmed, and raises if it went to no queue.
                    channel.basic_publish("orders", "order.placed", name.encode(), properties, mandatory=True)
                    with self.ledger.lock:
                        self.ledger.confirmed[name] += 1
                        self.ledger.by[self.broker.name] += 1
                    count += 1
                    time.sleep(0.002)
                connection.close()
                if self.next is not None:
                    self.broker, self.next = self.next, None
                    self.moved.set()
        except Exception as error:
            self.ledger.failures.append(f"publisher {self.number}: {error!r}")


class Consumer(threading.Thread):
    """Reads a queue of one broker, with acknowledgements, until it is told to end."""

    def __init__(self, queue, broker, ledger):
        super().__init__(daemon=True)
        self.queue, self.broker, self.ledger, self.ends = queue, broker, ledger, threading.Event()

    def run(self):
        try:
            connection = self.broker.connect()
            channel = connection.channel()
            channel.basic_qos(prefetch_count=50)
            for method, properties, _ in channel.consume(self.queue, inactivity_timeout=0.1):
                if method is not None:
                    with self.ledger.lock:
                        self.ledger.read[(self.queue, properties.message_id)] += 1
                    channel.basic_ack(method.delivery_tag)
                if self.ends.is_set():
                    break
            channel.cancel()
            connection.close()
        except Exception as error:
            self.ledger.failures.append(f"consumer of {self.queue} at {self.broker.name}: {error!r}")


def properties_of(number):
    # One priority for all: quorum queues of RabbitMQ 3 pass it over, and here the higher one goes first.
    headers = {"customer": f"c{number % 97}", "number": number, "nested": {"a": [1, "two", True]}}
    return pika.BasicProperties(
        delivery_mode=2, content_type="text/plain", content_encoding="utf-8", headers=headers, priority=7, message_id=f"s-{number}",
        correlation_id=str(number), reply_to="answers", timestamp=1_700_000_000 + number, type="order", app_id="walk", user_id=USER)


def told(properties):
    return {name: value for name, value in vars(properties).items() if value is not None}


def prepare(old):
    """What the old broker has: a topology of several types, and a user whose password is a hash."""
    old.ask("PUT", f"vhosts/{VHOST}")
    old.ask("PUT", f"users/{USER}", {"password": PASSWORD, "tags": ""})
    for user in (USER, "guest"):
        old.ask("PUT", f"permissions/{VHOST}/{user}", {"configure": ".*", "write": ".*", "read": ".*"})
    quorum, classic = {"x-queue-type": "quorum"}, {"x-queue-type": "classic"}
    old.ask("POST", f"definitions/{VHOST}", {
        "exchanges": [{"name": "orders", "type": "topic", "durable": True, "auto_delete": False, "internal": False, "arguments": {}}],
        "queues": [
            {"name": "orders.new", "durable": True, "auto_delete": False, "arguments": {**quorum, "x-delivery-limit": 10}},
            {"name": "orders.mail", "durable": True, "auto_delete": False, "arguments": classic},
            {"name": "orders.archive", "durable": True, "auto_delete": False, "arguments": quorum},
        ],
        "bindings": [{"source": "orders", "destination": queue, "destination_type": "queue", "routing_key": "order.#", "arguments": {}} for queue in READ],
        "policies": [{"name": "mirrors", "pattern": "^orders\\.mail$", "apply-to": "queues", "priority": 0, "definition": {"ha-mode": "all", "max-length": 1000000}}],
    })
    connection = old.connect()
    channel = connection.channel()
    for number in range(STANDING):
        channel.basic_publish("", "orders.archive", f"standing {number}".encode(), properties_of(number))
    channel.confirm_delivery()
    channel.basic_publish("", "orders.archive", b"last", properties_of(STANDING))
    connection.close()


def start_new(definitions):
    amqp, http = free_port(), free_port()
    log = open(f"{FOLDER}/leveret.log", "w")
    command = [os.environ["LEVERET_BIN"], "server", "--data-dir", f"{FOLDER}/data", "--amqp", f"127.0.0.1:{amqp}", "--management", f"127.0.0.1:{http}", "--definitions", definitions]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    new = Broker("leveret", amqp, http)

    def is_up():
        assert process.poll() is None, open(f"{FOLDER}/leveret.log").read()
        try:
            return new.ask("GET", "overview")
        except OSError:
            return None

    until("the new broker", is_up)
    return new, process


def carry(old, new):
    """A shovel of the old broker empties what nobody reads."""
    uri = f"amqp://{USER}:{PASSWORD.replace(' ', '%20')}@127.0.0.1"
    shovel = {
        "src-protocol": "amqp091", "src-uri": f"{uri}:{old.amqp}/{VHOST}", "src-queue": "orders.archive",
        "dest-protocol": "amqp091", "dest-uri": f"{uri}:{new.amqp}/{VHOST}", "dest-queue": "orders.archive",
        "ack-mode": "on-confirm",
    }
    rabbitmqctl("set_parameter", "-p", VHOST, "shovel", "carry-archive", json.dumps(shovel))
    since = time.monotonic()
    until("an empty archive", lambda: old.messages("orders.archive") == 0 and new.messages("orders.archive") == STANDING + 1)
    took = time.monotonic() - since
    rabbitmqctl("clear_parameter", "-p", VHOST, "shovel", "carry-archive")
    connection = new.connect()
    channel = connection.channel()
    for number in range(STANDING + 1):
        method, properties, body = channel.basic_get("orders.archive", auto_ack=True)
        assert method is not None, f"message {number} of the archive is missing"
        wanted = b"last" if number == STANDING else f"standing {number}".encode()
        assert body == wanted, f"{body} where {wanted} was"
        found, wanted = told(properties), told(properties_of(number))
        # A shovel of RabbitMQ adds nothing of its own unless it is told to.
        assert found == wanted, f"message {number}: {found} was {wanted}"
    connection.close()
    return took


def main():
    old = Broker("rabbitmq", OLD_PORT, OLD_PORT + 1)
    prepare(old)
    ledger = Ledger()
    publishers = [Publisher(number, old, ledger) for number in range(3)]
    old_consumers = [Consumer(queue, old, ledger) for queue in READ]
    for thread in publishers + old_consumers:
        thread.start()
    time.sleep(STEP_S)

    rabbitmqctl("export_definitions", f"{FOLDER}/definitions.json")
    new, process = start_new(f"{FOLDER}/definitions.json")
    try:
        log = open(f"{FOLDER}/leveret.log").read()
        assert "mirrored queues" in log, f"what was left out is not told:\n{log}"
        print("definitions are over; the log tells what was left out")

        new_consumers = [Consumer(queue, new, ledger) for queue in READ]
        for thread in new_consumers:
            thread.start()
        time.sleep(STEP_S)
        for publisher in publishers:
            publisher.go_over(new)
            time.sleep(STEP_S / 2)
        print("consumers read both, publishers are over")

        until("empty queues at the old broker", old.is_empty)
        # It counts its quorum queues every five seconds, so what it says may be of a moment before.
        time.sleep(COUNTED_S)
        until("empty queues at the old broker", old.is_empty)
        for thread in old_consumers:
            thread.ends.set()
            thread.join(PATIENCE_S)
        time.sleep(COUNTED_S)
        assert old.is_empty(), "something is left at the old broker"
        took = carry(old, new)
        print(f"a shovel carried {STANDING + 1} messages in {took:.1f} s, each as it was and in its place")

        for thread in publishers:
            thread.ends.set()
            thread.join(PATIENCE_S)
        until("empty queues at the new broker", new.is_empty)
        for thread in new_consumers:
            thread.ends.set()
            thread.join(PATIENCE_S)
        assert not ledger.failures, ledger.failures
        lost = [(queue, name) for name in ledger.confirmed for queue in READ if (queue, name) not in ledger.read]
        twice = sum(1 for count in ledger.read.values() if count > 1)
        assert not lost, f"{len(lost)} confirmed messages were read by nobody, as {lost[:5]}"
        assert all(ledger.by[broker.name] > 100 for broker in (old, new)), ledger.by
        print(f"{len(ledger.confirmed)} messages confirmed ({dict(ledger.by)}), each read from both queues, {twice} of them more than once, none lost")

        # The way back: what is declared here goes back to where it came from.
        old.ask("POST", "definitions", new.ask("GET", "definitions"))
        print("the old broker took the new one's definitions back")
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


if __name__ == "__main__":
    sys.exit(main())
