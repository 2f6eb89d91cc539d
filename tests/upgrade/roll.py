"""Three nodes of an earlier build go over to this one in turn, under load: `roll.py FOLDER`. Environment: LEVERET_OLD and LEVERET_BIN.

Each node is drained, ended, and started with the other binary once it has ended in good order; the first one also goes back to the
earlier build and over again, as long as the other two are of that. Publishers and consumers are connected to all nodes meanwhile.

Invariant: it fails if a message that was confirmed is read by nobody, if what lay there before is not all there afterwards, if a node
does not end or start in good order, or if a quorum queue takes no publish for longer than PAUSE_S_MAX."""

import json
import os
import pathlib
import subprocess
import sys
import threading
import time

os.environ |= {"LEVERET_NODES": "3", "LEVERET_KILLS": "all"}
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))

import pika  # noqa: E402
from conftest import Server  # noqa: E402
from kills import until_dispensable  # noqa: E402

OLD, NEW = os.environ["LEVERET_OLD"], os.environ["LEVERET_BIN"]
#: The queues under load, and their arguments. The classic one may stand still while its node is away.
LOADED = {"upgrade.quorum": {"x-queue-type": "quorum"}, "upgrade.classic": {"x-queue-type": "classic"}}
#: Messages that nobody reads until the end.
STANDING_QUEUE, STANDING = "upgrade.standing", 20_000
#: How long the load goes on in each state.
STEP_S = float(os.environ.get("STEP_S", "3"))
PATIENCE_S = 60
PAUSE_S_MAX = 5
GONE = (pika.exceptions.AMQPError, OSError)


class Load:
    """A publisher and a consumer of one queue, each with a connection of its own that is made again when it breaks."""

    def __init__(self, server, queue):
        self.server, self.queue = server, queue
        self.confirmed, self.read, self.pause_s = set(), set(), 0.0
        self.over, self.published = threading.Event(), threading.Event()
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.publish, self.consume)]
        for thread in self.threads:
            thread.start()

    def publish(self):
        number, last = 0, time.monotonic()
        while not self.over.is_set():
            try:
                with pika.BlockingConnection(pika.URLParameters(self.server.uri)) as connection:
                    channel = connection.channel()
                    channel.confirm_delivery()
                    while not self.over.is_set():
                        # It returns once it is confirmed; what is not is sent again under its number.
                        properties = pika.BasicProperties(delivery_mode=2)
                        channel.basic_publish("", self.queue, str(number).encode(), properties, mandatory=True)
                        self.pause_s, last = max(self.pause_s, time.monotonic() - last), time.monotonic()
                        self.confirmed.add(number)
                        number += 1
            except GONE:
                time.sleep(0.05)
        self.published.set()

    def consume(self):
        while not (self.published.is_set() and self.confirmed <= self.read):
            try:
                with pika.BlockingConnection(pika.URLParameters(self.server.uri)) as connection:
                    channel = connection.channel()
                    channel.basic_qos(prefetch_count=100)
                    for method, _, body in channel.consume(self.queue, inactivity_timeout=0.5):
                        if method is not None:
                            self.read.add(int(body))
                            channel.basic_ack(method.delivery_tag)
                        elif self.published.is_set() and self.confirmed <= self.read:
                            break
            except GONE:
                time.sleep(0.05)

    def end(self):
        """Stops publishing, and waits until all that was confirmed is read."""
        self.over.set()
        for thread in self.threads:
            thread.join(PATIENCE_S)
        missing = sorted(self.confirmed - self.read)
        assert not missing, f"{self.queue}: {len(missing)} of {len(self.confirmed)} confirmed are read by nobody: {missing[:10]}"


def leveret(server, number, *words):
    """What the command line of the node's own build says of it."""
    command = [server.commands[number][0], *words, "--data-dir", server.folder / f"data{number or ''}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEVERET_")}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=PATIENCE_S).stdout


def change(server, number, binary):
    """Ends a node as its operator would, and starts it again with a binary."""
    until_dispensable(server, number)
    leveret(server, number, "ctl", "drain")
    server.processes[number].terminate()
    status = server.processes[number].wait(PATIENCE_S)
    assert status == 0, f"node {number + 1} ended with {status}:\n{server.log()[-4000:]}"
    server.commands[number][0] = binary
    server.start_one(number)
    until_dispensable(server, number)


def serves(server, step):
    """Each node knows what lies in the queue that nobody reads, and takes declarations and their ends."""
    with_all = [pika.BlockingConnection(pika.URLParameters(server.uri)) for _ in server.processes]
    for connection in with_all:
        channel = connection.channel()
        there = channel.queue_declare(STANDING_QUEUE, passive=True).method.message_count
        assert there == STANDING, f"{step}: {there} of {STANDING} are there"
        channel.queue_declare("upgrade.passing", durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind("upgrade.passing", "amq.topic", "passing.#")
    with_all[0].channel().queue_delete("upgrade.passing")
    for connection in with_all:
        connection.close()


def roll(folder):
    folder.mkdir()
    os.environ["LEVERET_BIN"] = OLD
    server = Server(folder)
    loads, started = [], time.monotonic()
    try:
        until_dispensable(server, 0)
        with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for queue, arguments in [*LOADED.items(), (STANDING_QUEUE, {"x-queue-type": "quorum"})]:
                channel.queue_declare(queue, durable=True, arguments=arguments)
        fill(server)
        loads = [Load(server, queue) for queue in LOADED]
        states = [(0, NEW), (0, OLD), (0, NEW), (1, NEW), (2, NEW)]
        for number, binary in states:
            time.sleep(STEP_S)
            step = f"node {number + 1} to the {'new' if binary == NEW else 'earlier'} build"
            print(f"{time.monotonic() - started:6.1f} s  {step}", flush=True)
            change(server, number, binary)
            serves(server, step)
        time.sleep(STEP_S)
        for load in loads:
            load.end()
        print(f"{time.monotonic() - started:6.1f} s  all are of the new build", flush=True)
        version = json.loads(leveret(server, 0, "cluster", "status", "--json"))["machine_version"]
        print(f"machine version {version['current']}", flush=True)
        assert version["current"] == version["newest"] and not version["behind"], version
        read_out(server)
        for load in loads:
            print(f"{load.queue}: {len(load.confirmed)} confirmed, all read, longest pause {load.pause_s:.2f} s", flush=True)
        quorum = next(load for load in loads if load.queue == "upgrade.quorum")
        assert quorum.pause_s <= PAUSE_S_MAX, "a quorum queue stood still for too long"
        server.stop()
    finally:
        for process in server.processes:
            process.kill()


def fill(server):
    """Messages that lie there while all nodes change."""
    with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
        channel = connection.channel()
        channel.tx_select()
        for number in range(STANDING):
            channel.basic_publish("", STANDING_QUEUE, str(number).encode() * 20, pika.BasicProperties(delivery_mode=2))
            if number % 1000 == 999:
                channel.tx_commit()


def read_out(server):
    """What lay there is all there, in its order."""
    with pika.BlockingConnection(pika.URLParameters(server.uri)) as connection:
        channel = connection.channel()
        for number in range(STANDING):
            method, _, body = channel.basic_get(STANDING_QUEUE, auto_ack=number % 2 == 0)
            assert body == str(number).encode() * 20, f"{number} of {STANDING} is another: {body}"
            if number % 2 == 1:
                channel.basic_ack(method.delivery_tag)


if __name__ == "__main__":
    roll(pathlib.Path(sys.argv[1]))
