"""The applications' broker as three nodes behind one port, each connection on another of them: `nodes.py FOLDER PORT`, until SIGTERM.

Once it serves there is FOLDER/ready. Whoever makes FOLDER/kill has all nodes killed with -9 in turn, each started again and needed by
nothing before the next one is killed; then the file is gone. What goes wrong is in FOLDER/nodes.log, and ends it.

Invariant: the nodes end with it. Environment: LEVERET_BIN."""

import os
import pathlib
import signal
import sys
import time

os.environ |= {"LEVERET_NODES": "3", "LEVERET_KILLS": "all"}
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))

import conftest  # noqa: E402
from kills import until_dispensable  # noqa: E402


def serve(folder, port):
    # The first port that the server asks for is the one that clients come to.
    free_port, ports = conftest.free_port, iter([port])
    conftest.free_port = lambda: next(ports, None) or free_port()
    server = conftest.Server(folder)
    kill = folder / "kill"
    try:
        until_dispensable(server, 0)
        (folder / "ready").touch()
        while True:
            time.sleep(0.05)
            if kill.exists():
                for number in range(len(server.processes)):
                    until_dispensable(server, number)
                    server.kill_one(number)
                    time.sleep(0.5)
                    server.start_one(number)
                kill.unlink()
    except SystemExit:
        server.stop()
    finally:
        for process in server.processes:
            process.kill()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    serve(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
