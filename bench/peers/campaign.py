#!/usr/bin/env python3
"""The benchmark's campaign: for each broker in turn, each part on fresh data, one JSON line a measurement, then the table.

Invariant: both brokers get the same commands for the same time; a part that fails is recorded as failed, and the rest still runs."""

import datetime
import json
import os
import platform
import subprocess
import sys
import time

import amqp
import perftest
import proc
import report
from brokers import BROKERS

# Seconds of measurement and of warm-up, messages in the backlog, by length of the campaign. PerfTest needs seconds to compile its own
# code, in which it publishes less: that is no pause of the broker's.
LENGTHS = {
    "smoke": dict(seconds=6, warmup=3, s3=12, s3_warmup=6, s4_warmup=2, backlog=50_000, idle=3, queues=500, curve=5),
    "short": dict(seconds=20, warmup=6, s3=30, s3_warmup=15, s4_warmup=2, backlog=1_000_000, idle=10, queues=10_000, curve=12),
    "full": dict(seconds=120, warmup=10, s3=120, s3_warmup=20, s4_warmup=6, backlog=10_000_000, idle=30, queues=10_000, curve=30),
}
PARTS = ["idle", "s1", "s2", "tail", "s3", "s4", "queues", "curve"]
FLOW = ["--confirm", 3000, "--multi-ack-every", 3000, "--qos", 3000]
# Queues and connections of the cost curve.
CURVE_QUEUES, CURVE_CONNECTIONS = (1, 100, 10_000), (1, 2000)


class Campaign:
    """One run of the benchmark."""

    def __init__(self, out):
        self.out = out
        self.length = os.environ.get("BENCH", "short")
        self.at = LENGTHS[self.length]
        self.sizes = [int(x) for x in os.environ.get("SIZES", "10 1000").split()]
        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        self.results = os.path.join(out, f"results-{stamp}.jsonl")
        self.note("machine", machine="the benchmark", **about_the_machine(), length=self.length)

    def note(self, scenario, **fields):
        line = dict(scenario=scenario, date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"), **fields)
        with open(self.results, "a") as out:
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
        shown = {k: v for k, v in fields.items() if k in ("broker", "failed", "cpu_us_per_message", "received_s", "e2e_p99_us", "rss_peak_mb", "seconds", "messages")}
        print(f"{line['date'][11:19]} {scenario} " + " ".join(f"{k}={v:.1f}" if isinstance(v, float) else f"{k}={v}" for k, v in shown.items()), flush=True)

    def run(self, names, parts):
        for name in names:
            kind, port = BROKERS[name]
            broker = kind(self.out, port)
            self.note("version", broker=name, version=broker.version())
            for part in parts:
                try:
                    getattr(self, part)(broker)
                except Exception as error:  # A part that fails must not cost the hours of the others.
                    self.note(part, broker=name, failed=f"{type(error).__name__}: {error}")
                finally:
                    if broker.process is not None:
                        broker.kill()
                    broker.wipe()

    def idle(self, broker):
        """Start on fresh data, memory and writes of a broker nobody uses."""
        seconds = broker.start()
        time.sleep(3)
        self.note("idle", broker=broker.name, start_s=seconds, **perftest.idle(broker, self.at["idle"]))

    def s1(self, broker):
        """One queue, two publishers and two consumers at full speed."""
        broker.start()
        for size in self.sizes:
            load = ["--producers", 2, "--consumers", 2, *FLOW, "--size", size, "--quorum-queue", "--queue", f"s1-{size}", "-z", self.seconds()]
            self.note(f"s1-{size}", broker=broker.name, **self.perftest(broker, load))

    def s2(self, broker):
        """One queue at a fixed 10,000 messages a second."""
        broker.start()
        for size in self.sizes:
            load = ["--rate", 10_000, *FLOW, "--size", size, "--quorum-queue", "--queue", f"s2-{size}", "-z", self.seconds()]
            self.note(f"s2-{size}", broker=broker.name, **self.perftest(broker, load))

    def tail(self, broker):
        """Scenario 2 again, open loop, percentiles of the whole run."""
        broker.start()
        for size in self.sizes:
            run = perftest.tail(self.out, broker, self.at["seconds"], self.at["warmup"], rate=10_000, size=size, prefix=f"tail-{size}")
            self.note(f"tail-{size}", broker=broker.name, **run)

    def s3(self, broker):
        """500 queues, each with one publisher at 10 messages a second and one consumer."""
        broker.start()
        for size in self.sizes:
            load = ["--producers", 500, "--consumers", 500, "--publishing-interval", 0.1, "--confirm", 10, "--multi-ack-every", 100, "--qos", 100]
            load += ["--size", size, "--quorum-queue", "--queue-pattern", f"s3-{size}-%d", "--queue-pattern-from", 1, "--queue-pattern-to", 500]
            load += ["-z", self.at["s3"] + self.at["s3_warmup"]]
            self.note(f"s3-{size}", broker=broker.name, **self.perftest(broker, load, self.at["s3_warmup"], heap="2g"))

    def s4(self, broker):
        """A long queue: fill it, kill the broker with the backlog standing, serve again, drain it."""
        broker.start()
        time.sleep(3)
        idle_rss, count = proc.rss_bytes(broker.pids()), self.at["backlog"]
        load = ["--producers", 2, "--consumers", 0, "--confirm", 3000, "--pmessages", count // 2, "--quorum-queue", "--queue", "s4"]
        filled = self.perftest(broker, load, self.at["s4_warmup"], limit_s=3600)
        self.note("s4-fill", broker=broker.name, messages=count, rss_idle_mb=idle_rss / 1e6, **filled)
        time.sleep(5)
        self.note("s4-standing", broker=broker.name, messages=count, **perftest.idle(broker, self.at["idle"]))
        broker.kill()
        since = time.monotonic()
        broker.start(keep=True)
        seconds = amqp.wait_until(lambda: amqp.has(broker.port, "s4", count), 600, since)
        self.note("s4-restart", broker=broker.name, messages=count, seconds=seconds, rss_mb=proc.rss_bytes(broker.pids()) / 1e6)
        load = ["--producers", 0, "--consumers", 2, "--multi-ack-every", 3000, "--qos", 3000, "--exit-when", "empty", "--quorum-queue", "--queue", "s4"]
        self.note("s4-drain", broker=broker.name, messages=count, **self.perftest(broker, load, 2, limit_s=3600))

    def queues(self, broker):
        """Many durable queues: their memory, and a start with them there."""
        broker.start()
        time.sleep(3)
        pids, count = broker.pids(), self.at["queues"]
        before, since = proc.rss_bytes(pids), time.monotonic()
        connection = amqp.Connection(broker.port, 600)
        connection.declare_many((f"many-{n}" for n in range(count)), {"x-queue-type": "classic"})
        declared = time.monotonic() - since
        connection.close()
        time.sleep(3)
        more = proc.rss_bytes(pids) - before
        broker.stop()
        seconds = broker.start(keep=True)
        time.sleep(3)
        started = proc.rss_bytes(broker.pids())
        self.note("queues", broker=broker.name, messages=0, queues=count, declare_s=declared, more_mb=more / 1e6, seconds=seconds, rss_started_mb=started / 1e6)

    def curve(self, broker):
        """The cost of a message as queues, connections and backlog grow. RabbitMQ's is known to fall apart; only ours is asked by default."""
        if broker.name != "leveret" and "curve" not in os.environ.get("PARTS", ""):
            return
        seconds, size = self.at["curve"], 1000
        for count in CURVE_QUEUES:
            broker.start()
            run = perftest.tail(self.out, broker, seconds, 5, rate=10_000, size=size, queues=count, connections=2, qos=100, prefix="curve", heap="2g")
            self.note(f"curve-queues-{count}", broker=broker.name, **run)
            broker.kill()
        for count in CURVE_CONNECTIONS:
            broker.start()
            run = perftest.tail(self.out, broker, seconds, 5, rate=10_000, size=size, queues=100, connections=count, qos=100, prefix="curve", heap="4g")
            self.note(f"curve-connections-{count}", broker=broker.name, **run)
            broker.kill()
        broker.start()
        both = ["--rate", 10_000, "--consumer-rate", 10_000, "--confirm", 3000, "--multi-ack-every", 100, "--qos", 3000, "--size", size, "--quorum-queue"]
        self.note("curve-backlog-0", broker=broker.name, **self.perftest(broker, [*both, "--queue", "curve-empty", "-z", seconds + 5]))
        fill = ["--producers", 2, "--consumers", 0, "--confirm", 3000, "--pmessages", self.at["backlog"] // 2, "--size", size]
        self.perftest(broker, [*fill, "--quorum-queue", "--queue", "curve-full"], 2, limit_s=3600)
        run = self.perftest(broker, [*both, "--queue", "curve-full", "-z", seconds + 5])
        self.note(f"curve-backlog-{self.at['backlog']}", broker=broker.name, **run)

    def seconds(self):
        return self.at["seconds"] + self.at["warmup"]

    def perftest(self, broker, load, warmup_s=None, limit_s=900, heap="1g"):
        result = perftest.run(self.out, broker, load, self.at["warmup"] if warmup_s is None else warmup_s, limit_s, heap)
        if result["exit_code"] not in (0, None):
            result["failed"] = f"PerfTest exit code {result['exit_code']}"
        return result


def about_the_machine():
    """What the numbers were measured on, and at which commit."""

    def run(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return "unknown"

    model = next((l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
    memory = int(open("/proc/meminfo").readline().split()[1]) // 1024
    return dict(
        cpu=model, cores=os.cpu_count(), memory_mb=memory, kernel=platform.release(), commit=run("git", "describe", "--always", "--dirty"),
        nodes=int(os.environ.get("NODES", "1")), command=f"BENCH={os.environ.get('BENCH', 'short')} NODES={os.environ.get('NODES', '1')} bench/run.sh", load=os.getloadavg()[0],
    )  # fmt: skip


def main():
    out = os.environ["BENCH_OUT"]
    names = os.environ.get("BROKERS", "rabbitmq leveret").split()
    parts = os.environ.get("PARTS", " ".join(PARTS)).split()
    unknown = [n for n in names if n not in BROKERS] + [p for p in parts if p not in PARTS]
    if unknown or os.environ.get("BENCH", "short") not in LENGTHS:
        raise SystemExit(f"unknown: {unknown or os.environ['BENCH']}; BROKERS are {list(BROKERS)}, PARTS {PARTS}, BENCH {list(LENGTHS)}")
    campaign = Campaign(out)
    campaign.run(names, parts)
    table = report.table(campaign.results)
    path = campaign.results.replace(".jsonl", ".md")
    open(path, "w").write(table)
    print(table)
    print(f"lines: {campaign.results}\ntable: {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
