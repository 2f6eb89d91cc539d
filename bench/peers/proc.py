"""What a broker's processes cost: CPU, memory and disk, read from /proc.

Invariant: figures are differences between two readings of the same processes, so nothing from before a measurement is in it."""

import os
import threading
import time

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
RSS_INTERVAL_S = 0.1


def cpu_s(pids):
    """User and system seconds of the processes and of the children they waited for."""
    total = 0
    for pid in pids:
        try:
            fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
            total += sum(int(x) for x in fields[11:15])
        except OSError:
            pass
    return total / TICK


def rss_bytes(pids):
    """Resident memory now."""
    total = 0
    for pid in pids:
        try:
            total += int(open(f"/proc/{pid}/statm").read().split()[1]) * PAGE
        except OSError:
            pass
    return total


def written_bytes(pids):
    """Bytes the processes caused to be sent to the block layer so far (write_bytes of /proc/PID/io)."""
    total = 0
    for pid in pids:
        try:
            for line in open(f"/proc/{pid}/io"):
                if line.startswith("write_bytes:"):
                    total += int(line.split()[1])
        except OSError:
            pass
    return total


def busy_s():
    """Seconds all cores together were not idle, for telling how much somebody else used."""
    fields = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICK


class Reading:
    """One look at the processes and the machine."""

    def __init__(self, pids, generator_pids=()):
        self.at = time.monotonic()
        self.cpu = cpu_s(pids)
        self.generator = cpu_s(generator_pids)
        self.written = written_bytes(pids)
        self.busy = busy_s()


class PeakRss(threading.Thread):
    """Watches resident memory until `stop`, which returns the peak in bytes."""

    def __init__(self, pids):
        super().__init__(daemon=True)
        self.pids, self.peak, self.over = pids, 0, threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(RSS_INTERVAL_S):
            self.peak = max(self.peak, rss_bytes(self.pids))

    def stop(self):
        self.over.set()
        self.join()
        return max(self.peak, rss_bytes(self.pids))
