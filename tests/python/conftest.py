"""A broker for the Python clients: the binary that LEVERET_BIN names, on a free port and a fresh folder, or AMQP_URI's.

Invariant: the broker started here ends with the tests, however they end."""

import os
import socket
import subprocess
import time
import uuid

import pika
import pytest

START_PATIENCE_S = 30


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Server:
    """A broker of our own; `arguments` are those behind the folder and the address."""

    def __init__(self, folder, *arguments):
        binary = os.environ.get("LEVERET_BIN") or pytest.exit("name a binary in LEVERET_BIN, or a running broker in AMQP_URI", returncode=1)
        self.folder, self.port, self.starts = folder, free_port(), 0
        self.uri = f"amqp://guest:guest@127.0.0.1:{self.port}/%2f"
        self.command = [binary, "server", "--data-dir", folder / "data", "--amqp", f"127.0.0.1:{self.port}"]
        # Brokers of other tests run at the same time, and the default is one port.
        self.command += [*([] if "--management" in arguments else ["--management", "none"]), *arguments]
        self.start()

    def start(self):
        """Starts it on its folder as it is, and waits until it is ready."""
        # The tests' own variable would be an unknown setting to the broker.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LEVERET_")}
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=environment)
        self.starts += 1
        due = time.monotonic() + START_PATIENCE_S
        while self.log().count("ready: AMQP 0-9-1") < self.starts:
            if self.process.poll() is not None or time.monotonic() > due:
                pytest.exit(f"the broker does not start:\n{self.log()}", returncode=1)
            time.sleep(0.02)

    def kill(self):
        """`kill -9`."""
        assert self.process.poll() is None, f"the broker ended by itself:\n{self.log()}"
        self.process.kill()
        self.process.wait()

    def log(self):
        return (self.folder / "log").read_text()

    def wait_for(self, text, times=1):
        """Waits until its log says `text` so many times."""
        due = time.monotonic() + START_PATIENCE_S
        while self.log().count(text) < times:
            assert time.monotonic() < due, f"the log does not say {text!r}:\n{self.log()}"
            time.sleep(0.02)

    def stop(self):
        self.process.terminate()
        assert self.process.wait(30) == 0, "the broker ends in good order on SIGTERM"


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
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.fixture
def connection(uri):
    connection = pika.BlockingConnection(pika.URLParameters(uri))
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def name():
    return f"python-{uuid.uuid4().hex[:12]}"
