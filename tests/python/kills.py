"""Nodes of a cluster that are killed in turn while something else goes on: all but the first.

Invariant: no node is killed while it is needed for a majority of anything, as it says itself; so clients of the first, which is never
killed, need not notice."""

import base64
import itertools
import random
import threading
import time
import urllib.error
import urllib.request

WHOLE_PATIENCE_S = 60


def until_dispensable(server, number):
    """Waits until nothing needs a node for its majority."""
    due = time.monotonic() + WHOLE_PATIENCE_S
    while not is_dispensable(server, number):
        assert time.monotonic() < due, f"node {number + 1} is needed for ever:\n{server.log()[-4000:]}"
        time.sleep(0.05)


def is_dispensable(server, number):
    url = f"http://127.0.0.1:{server.management[number]}/api/health/checks/node-is-quorum-critical"
    word = base64.b64encode(b"guest:guest").decode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"authorization": f"Basic {word}"}), timeout=10) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


class Kills:
    """Kills nodes of a server, one after the other, from its start until `end`."""

    def __init__(self, server):
        self.server, self.count, self.failure = server, 0, None
        self.over = threading.Event()
        self.seed = random.randrange(1 << 32)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        chance = random.Random(self.seed)
        try:
            for number in itertools.cycle(range(1, len(self.server.processes))):
                until_dispensable(self.server, number)
                if self.over.wait(chance.uniform(0.1, 1)):
                    return
                self.server.kill_one(number)
                self.count += 1
                time.sleep(chance.uniform(0, 1.5))
                self.server.start_one(number)
        except BaseException as failure:
            self.failure = failure

    def end(self):
        """Ends it, with all nodes up again. Fails if a node did not come back, or nobody was killed."""
        self.over.set()
        self.thread.join(WHOLE_PATIENCE_S * 2)
        if self.failure is not None:
            raise self.failure
        assert not self.thread.is_alive(), "a node does not come back"
        assert self.count > 0, "it was over before the first kill"
