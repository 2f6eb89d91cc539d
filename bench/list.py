#!/usr/bin/env python3
"""How long a list of all queues with their rates takes: list.py BINARY [BINARY...] starts each in turn, as often as ROUNDS says, declares
QUEUES of them (half classic, half quorum), puts a message through each, and asks for the list.

Invariant: builds that are compared run one after the other on the same machine, and each is asked by the same program, curl."""

import base64
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

QUEUES = int(os.environ.get("QUEUES", "10000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
ASKED = int(os.environ.get("ASKED", "15"))
HEADERS = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode(), "content-type": "application/json"}


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Api:
    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method, path, body=None):
        self.connection.request(method, f"/api/{path}", None if body is None else json.dumps(body), HEADERS)
        answer = self.connection.getresponse()
        text = answer.read()
        assert answer.status < 300, f"{method} {path}: {answer.status} {text[:200]}"
        return json.loads(text) if text else None


def processor_s(pid):
    stat = open(f"/proc/{pid}/stat").read().rsplit(") ", 1)[1].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def measure(binary, folder):
    amqp, management = free_port(), free_port()
    command = [binary, "server", "--data-dir", folder, "--amqp", f"127.0.0.1:{amqp}", "--management", f"127.0.0.1:{management}"]
    broker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                api = Api(management)
                api.ask("GET", "overview")
                break
            except OSError:
                assert broker.poll() is None, "the broker ended"
                time.sleep(0.1)
        kinds = ["classic", "quorum"]
        names = [f"orders.{number:05}" for number in range(QUEUES)]
        queues = [{"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-queue-type": kinds[at % 2]}} for at, name in enumerate(names)]
        api.ask("POST", "definitions", {"queues": queues})
        message = {"properties": {}, "payload": "m", "payload_encoding": "string"}
        for name in names:
            assert api.ask("POST", "exchanges/%2f/amq.default/publish", {**message, "routing_key": name})["routed"]
        time.sleep(6)
        url = f"http://127.0.0.1:{management}/api/queues"
        took, before = [], processor_s(broker.pid)
        for _ in range(ASKED):
            told = subprocess.run(
                ["curl", "-sf", "-u", "guest:guest", "-o", f"{folder}/answer", "-w", "%{time_total} %{size_download}", url],
                capture_output=True, text=True, check=True).stdout.split()
            took.append(float(told[0]) * 1000)
        processor_ms = (processor_s(broker.pid) - before) * 1000 / ASKED
        with open(f"{folder}/answer") as answer:
            listed = json.load(answer)
        assert len(listed) == QUEUES and all("message_stats" in queue for queue in listed)
        memory = re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{broker.pid}/status").read())[1]
        print(f"{binary}: {statistics.median(took):.0f} ms ({min(took):.0f} to {max(took):.0f}), {processor_ms:.0f} ms of processor time, "
              f"{int(told[1]) / 1e6:.1f} MB, peak RSS {int(memory) / 1024:.0f} MB", flush=True)
    finally:
        broker.terminate()
        broker.wait(60)


for _ in range(ROUNDS):
    for binary in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            measure(binary, folder)
