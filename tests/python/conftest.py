"""A broker for the Python clients: the binary that LEVERET_BIN names, on a free port and a fresh folder, or AMQP_URI's.

With LEVERET_NODES=3 it is three nodes of one cluster, and each connection comes to another of them; what a test does to its broker
is done to all. With LEVERET_KILLS=yes too, all connections come to the first, and the other two are killed in turn meanwhile (kills.py).

Invariant: the broker started here ends with the tests, however they end."""

import os
import itertools
import socket
import subprocess
import threading
import time
import uuid

import pika
import pytest

START_PATIENCE_S = 30


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def pass_on(source, target):
    """Gives one side's bytes to the other, and its end."""
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for side in (source, target):
            side.close()


def in_turn(port, ports):
    """Listens on a port, and gives each connection to the next of others that listens."""
    listener = socket.create_server(("127.0.0.1", port))
    turns = itertools.count()

    def accept():
        while True:
            client, _ = listener.accept()
            first = next(turns)
            for step in range(len(ports)):
                try:
                    node = socket.create_connection(("127.0.0.1", ports[(first + step) % len(ports)]))
                    break
                except OSError:
                    pass
            else:
                client.close()
                continue
            try:
                for side in (client, node):
                    side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                # It hung up, or its node was killed; the next one is served all the same.
                for side in (client, node):
                    side.close()
                continue
            threading.Thread(target=pass_on, args=(client, node), daemon=True).start()
            threading.Thread(target=pass_on, args=(node, client), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def is_killing():
    """Whether nodes are killed meanwhile: `yes` spares the first, which all connections come to, `all` spares none."""
    return os.environ.get("LEVERET_KILLS") in ("yes", "all")


class Server:
    """A broker of our own; `arguments` are those behind the folder and the address."""

    def __init__(self, folder, *arguments):
        binary = os.environ.get("LEVERET_BIN") or pytest.exit("name a binary in LEVERET_BIN, or a running broker in AMQP_URI", returncode=1)
        self.folder, self.port, self.starts = folder, free_port(), 0
        self.uri = f"amqp://guest:guest@127.0.0.1:{self.port}/%2f"
        # Brokers of other tests run at the same time, and the default is one port.
        arguments = [*([] if "--management" in arguments else ["--management", "none"]), *arguments]
        nodes = int(os.environ.get("LEVERET_NODES", "1"))
        ports = [self.port] if nodes == 1 else self.many(self.port, nodes)
        self.commands = [
            [binary, "server", "--data-dir", folder / f"data{number or ''}", "--amqp", f"127.0.0.1:{port}", *arguments]
            for number, port in enumerate(ports)
        ]
        if nodes > 1:
            self.cluster(nodes)
        self.start()

    @staticmethod
    def many(port, nodes):
        """Ports of the nodes behind one of the broker's."""
        ports = [free_port() for _ in range(nodes)]
        in_turn(port, ports[:1] if os.environ.get("LEVERET_KILLS") == "yes" else ports)
        return ports

    def cluster(self, nodes):
        """Makes the commands those of nodes that find each other."""
        (self.folder / "secret").write_text("a secret of the nodes of a test\n")
        peers = [f"127.0.0.1:{free_port()}" for _ in range(nodes)]
        self.management = [free_port() for _ in range(nodes)]
        for number, (command, peer) in enumerate(zip(self.commands, peers)):
            for at, word in enumerate(command):
                if word == "--management" and is_killing():
                    command[at + 1] = f"127.0.0.1:{self.management[number]}"
                elif word == "--management" and number > 0:
                    command[at + 1] = "none"
            command += ["--cluster-peers", ",".join(peers), "--cluster-address", peer, "--cluster-secret-file", self.folder / "secret"]
            command += ["--node-name", f"leveret@node{number + 1}"]
        behind = {}
        # Behind the first of each command, which has its own.
        for at, word in list(enumerate(self.commands[0]))[6:]:
            if word in ("--amqp", "--amqps", "--proxy-protocol"):
                address = str(self.commands[0][at + 1])
                if address not in behind:
                    behind[address] = self.many(int(address.rsplit(":", 1)[1]), nodes)
                for command, port in zip(self.commands, behind[address]):
                    command[at + 1] = f"127.0.0.1:{port}"

    def launch(self, command):
        # The tests' own variable would be an unknown setting to the broker.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LEVERET_")}
        with open(self.folder / "log", "ab") as log:
            self.starts += 1
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def start(self):
        """Starts it on its folder as it is, and waits until it is ready."""
        self.processes = [self.launch(command) for command in self.commands]
        self.until_ready()

    def kill_one(self, number):
        """`kill -9` of one of the nodes."""
        assert self.processes[number].poll() is None, f"node {number + 1} ended by itself:\n{self.log()}"
        self.processes[number].kill()
        self.processes[number].wait()

    def start_one(self, number):
        self.processes[number] = self.launch(self.commands[number])
        self.until_ready()

    def until_ready(self):
        due = time.monotonic() + START_PATIENCE_S
        while self.log().count("ready: AMQP 0-9-1") < self.starts:
            if not self.runs() or time.monotonic() > due:
                pytest.exit(f"the broker does not start:\n{self.log()}", returncode=1)
            time.sleep(0.02)

    def runs(self):
        return all(process.poll() is None for process in self.processes)

    def kill(self):
        """`kill -9`."""
        assert self.runs(), f"the broker ended by itself:\n{self.log()}"
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()

    def send_signal(self, number):
        for process in self.processes:
            process.send_signal(number)

    def log(self):
        return (self.folder / "log").read_text()

    def wait_for(self, text, times=1):
        """Waits until its log says `text` so many times."""
        due = time.monotonic() + START_PATIENCE_S
        while self.log().count(text) < times:
            assert time.monotonic() < due, f"the log does not say {text!r}:\n{self.log()}"
            time.sleep(0.02)

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            assert process.wait(30) == 0, "the broker ends in good order on SIGTERM"


@pytest.fixture(scope="session")
def uri(tmp_path_factory):
    if "AMQP_URI" in os.environ:
        yield os.environ["AMQP_URI"]
        return
    server = Server(tmp_path_factory.mktemp("leveret"))
    yield server.uri
    server.stop()


@pytest.fixture
def start(tmp_path):
    """Starts brokers with arguments of a test's own; they end with it."""
    if "AMQP_URI" in os.environ:
        pytest.skip("this test starts its broker, and AMQP_URI names one that runs")
    servers = []

    def start(*arguments):
        folder = tmp_path / f"server{len(servers)}"
        folder.mkdir()
        servers.append(Server(folder, *arguments))
        return servers[-1]

    yield start
    for server in servers:
        for process in server.processes:
            process.kill()
            process.wait()


@pytest.fixture
def connection(uri):
    connection = pika.BlockingConnection(pika.URLParameters(uri))
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def name():
    return f"python-{uuid.uuid4().hex[:12]}"
