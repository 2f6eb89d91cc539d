#!/usr/bin/env python3
"""rabbitmq-nodes.py start|stop FOLDER PORT: three nodes of Debian's RabbitMQ on this machine as one cluster, for a campaign.

They listen on PORT and the two behind it. Invariant: `start` returns when all three are one cluster on fresh folders, `stop` when none
of them is left, and says nothing against it when none was there."""

import os
import signal
import sys
import time

from brokers import RabbitMqCluster

STOP_PATIENCE_S = 60


def stop(cluster):
    pids = [pid for node in cluster.nodes for pid in node.pids()]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    since = time.monotonic()
    while any(node.pids() for node in cluster.nodes):
        if time.monotonic() - since > STOP_PATIENCE_S:
            for pid in [pid for node in cluster.nodes for pid in node.pids()]:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    cluster.wipe()


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("start", "stop"):
        raise SystemExit("usage: rabbitmq-nodes.py start|stop FOLDER PORT")
    cluster = RabbitMqCluster(os.path.abspath(sys.argv[2]), int(sys.argv[3]))
    stop(cluster)
    if sys.argv[1] == "start":
        cluster.start()


if __name__ == "__main__":
    main()
