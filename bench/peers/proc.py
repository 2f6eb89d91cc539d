"""What a broker's processes cost: CPU, memory and disk, read from /proc.

Invariant: figures are differences between two readings of the same processes, so nothing from before a measurement is in it."""

import os
import re
import subprocess
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


def sockets(pids):
    """The inodes of the processes' sockets, each with its process."""
    found = {}
    for pid in pids:
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    found[target[8:-1]] = pid
        except OSError:
            pass
    return found


def between_bytes(pids):
    """Bytes that the processes have sent each other over TCP so far, what was sent again included; None where nobody tells."""
    own, ends, total = sockets(pids), {}, 0
    try:
        lines = subprocess.run(["ss", "-tinHeO"], capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return None
    for line in lines:
        inode, sent = re.search(r"\bino:(\d+)", line), re.search(r"\bbytes_sent:(\d+)", line)
        if inode and inode.group(1) in own:
            local, remote = (end.replace("[::ffff:", "").replace("]", "") for end in line.split()[3:5])
            ends[local, remote] = own[inode.group(1)], int(sent.group(1)) if sent else 0
    for (local, remote), (pid, sent) in ends.items():
        if ends.get((remote, local), (pid,))[0] != pid:
            total += sent
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
        self.between = between_bytes(pids) if len(pids) > 1 else None


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
