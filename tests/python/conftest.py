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


@pytest.fixture(scope="session")
def uri(tmp_path_factory):
    if "AMQP_URI" in os.environ:
        yield os.environ["AMQP_URI"]
        return
    binary = os.environ.get("LEVERET_BIN") or pytest.exit("name a binary in LEVERET_BIN, or a running broker in AMQP_URI", returncode=1)
    folder, port = tmp_path_factory.mktemp("leveret"), free_port()
    command = [binary, "server", "--data-dir", folder / "data", "--amqp", f"127.0.0.1:{port}"]
    # The tests' own variable would be an unknown setting to the broker.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEVERET_")}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    uri = f"amqp://guest:guest@127.0.0.1:{port}/%2f"
    due = time.monotonic() + START_PATIENCE_S
    while True:
        try:
            pika.BlockingConnection(pika.URLParameters(uri)).close()
            break
        except Exception:
            if process.poll() is not None or time.monotonic() > due:
                pytest.exit(f"the broker does not answer:\n{(folder / 'log').read_text()}", returncode=1)
            time.sleep(0.02)
    yield uri
    process.terminate()
    assert process.wait(30) == 0, "the broker ends in good order on SIGTERM"


@pytest.fixture
def connection(uri):
    connection = pika.BlockingConnection(pika.URLParameters(uri))
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def name():
    return f"python-{uuid.uuid4().hex[:12]}"
