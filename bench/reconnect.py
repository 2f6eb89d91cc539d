#!/usr/bin/env python3
"""PerfTest, with its reconnection on, while the three nodes that it is connected to are killed (kill -9) and started again in turn.

    LEVERET_BIN=target/release/leveret bench/reconnect.py [KILLS] [MESSAGES A SECOND]

A fanout exchange copies every message into two quorum queues: PerfTest consumes one and nobody the other, which is read afterwards by a
client that is not PerfTest, message by message. PerfTest does not publish again what was not confirmed when its connection went, so a
message may be missing only if it was never confirmed: at most as many as were published and PerfTest did not see confirmed.

Needs what bench/run.sh needs (BENCH_OUT holds PerfTest's jars after it ran once) and a python3 with pika. Ends with 1 if more is missing,
or if a message comes twice to somebody who never left."""

import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))

import brokers
import perftest
import pika

SECONDS_BETWEEN_KILLS = 6
SECONDS_DOWN = 2
METRICS_PORT = 18997


def counts():
    """How many messages PerfTest saw confirmed, and how many its consumers received."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=5).read().decode()
    found = dict(re.findall(r"^perftest_(confirm_size_sum|latency_seconds_count) ([\d.E+]+)$", text, re.M))
    return int(float(found["confirm_size_sum"])), int(float(found["latency_seconds_count"]))


def main():
    kills, rate = (int(word) for word in (sys.argv[1:] + ["20", "10000"][len(sys.argv) - 1 :]))
    out = os.environ.get("BENCH_OUT", "target/bench")
    cluster = brokers.LeveretCluster(tempfile.mkdtemp(prefix="reconnect-"), 7720)
    cluster.start()
    declared = pika.BlockingConnection(pika.URLParameters(cluster.uri)).channel()
    declared.exchange_declare("reconnect", "fanout", durable=True)
    for queue in ("consumed", "kept"):
        declared.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        declared.queue_bind(queue, "reconnect", "key")
    declared.connection.close()

    uris = ",".join(f"amqp://guest:guest@127.0.0.1:{node.port}/%2f" for node in cluster.nodes)
    seconds = 5 + kills * SECONDS_BETWEEN_KILLS
    options = ["--uris", uris, "-x", 1, "-y", 2, "-e", "reconnect", "-t", "fanout", "-u", "consumed", "-k", "key", "-f", "persistent"]
    options += ["-c", 1000, "-q", 200, "-s", 100, "-r", rate, "-C", 10**9, "-cri", 1, "-p"]
    options += ["--metrics-prometheus", "--metrics-prometheus-port", METRICS_PORT, "-z", seconds + 600]
    log_path = os.path.join(out, "reconnect.log")
    with open(log_path, "w") as log:
        tool = subprocess.Popen(perftest.java(out, "1g", "com.rabbitmq.perf.PerfTest", *map(str, options)), stdout=log, stderr=log)
    time.sleep(5)
    if tool.poll() is not None:
        cluster.kill()
        sys.exit(f"PerfTest ended at its start: see {log_path}")
    for at in range(kills):
        node = cluster.nodes[at % 3]
        node.kill()
        time.sleep(SECONDS_DOWN)
        node.launch(keep=True)
        time.sleep(SECONDS_BETWEEN_KILLS - SECONDS_DOWN)

    time.sleep(10)
    # What is published and confirmed between these two lines counts as unconfirmed: some milliseconds' worth.
    confirmed, consumed = counts()
    tool.terminate()
    tool.wait()

    numbers, twice = read_all(cluster.uri)
    left = pika.BlockingConnection(pika.URLParameters(cluster.uri)).channel().queue_declare("consumed", passive=True).method.message_count
    cluster.stop()
    published = max(numbers) + 1
    missing, unconfirmed = published - len(numbers), published - confirmed
    print(f"{kills} kills, {rate} msg/s asked: {published} published, {confirmed} confirmed; PerfTest consumed {consumed} up to then, and left {left}")
    print(f"kept {len(numbers)}, missing {missing} of {unconfirmed} that were not confirmed; twice {twice}")
    print(f"lost {max(missing - unconfirmed, 0)}")
    sys.exit(1 if missing > unconfirmed or twice else 0)


def read_all(uri):
    """The numbers of the messages in the queue that nobody consumed, and how many of those came once more."""
    channel = pika.BlockingConnection(pika.URLParameters(uri)).channel()
    channel.basic_qos(prefetch_count=5000)
    numbers, read = set(), 0
    for method, _, body in channel.consume("kept", inactivity_timeout=5):
        if method is None:
            break
        # PerfTest counts what it publishes, where it has a limit, and begins each body with that number.
        numbers.add(struct.unpack(">i", body[:4])[0])
        read += 1
        if read % 2000 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
    channel.connection.close()
    return numbers, read - len(numbers)


if __name__ == "__main__":
    main()
