"""Runs RabbitMQ's PerfTest, unmodified, and the latency recorder beside it, while the broker's processes are measured.

Rates are medians of PerfTest's one-second lines after the warm-up; latencies are medians over the same seconds of each second's
percentile. CPU and bytes per message come from /proc over the same seconds. `other_cores` is CPU that neither broker nor load tool
used: noise from the machine; compare rates and latencies only between runs where it is alike.

Invariant: a figure that was not measured is absent, never zero."""

import json
import os
import re
import statistics
import subprocess
import threading
import time

import proc

HERE = os.path.dirname(os.path.abspath(__file__))
LINE = re.compile(r"time ([\d.]+) s")
PERCENTILES = ("min", "p50", "p75", "p95", "p99")


def java(out, heap, *arguments):
    return [os.environ.get("JAVA", "java"), f"-Xmx{heap}", "-cp", os.path.join(out, "jars/*"), *arguments]


def rate(line, what):
    found = re.search(what + r": ([\d.]+) msg/s", line)
    return float(found.group(1)) if found else None


def latency_us(line, what):
    found = re.search(what + r" latency:? ([\d/]+) (µs|us|ms)", line)
    if not found:
        return None
    values = [float(x) * (1000 if found.group(2) == "ms" else 1) for x in found.group(1).split("/")]
    return values if any(values) else None


def median(values):
    values = [x for x in values if x is not None]
    return statistics.median(values) if values else None


class Window:
    """One of PerfTest's seconds."""

    def __init__(self, line, seconds, before, after):
        self.seconds, self.before, self.after = seconds, before, after
        self.sent, self.received = rate(line, "sent"), rate(line, "received")
        self.nacked = rate(line, "nacked") or 0
        self.e2e, self.confirm = latency_us(line, "consumer"), latency_us(line, "confirm")


def run(out, broker, arguments, warmup_s=5, limit_s=300, heap="1g", log_name="perftest.log"):
    """One run: a dictionary of what came out."""
    pids = broker.pids()
    command = java(out, heap, "com.rabbitmq.perf.PerfTest", "--uri", broker.uri, *[str(a) for a in arguments])
    rss_before, peak = proc.rss_bytes(pids), proc.PeakRss(pids)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace")
    killer = threading.Timer(limit_s, process.kill)
    killer.start()
    started = proc.Reading(pids, [process.pid])
    windows, lines, final = [], [], {}
    last_t, last = 0.0, None
    for line in process.stdout:
        lines.append(line.rstrip())
        found = LINE.search(line)
        if found:
            now, t = proc.Reading(pids, [process.pid]), float(found.group(1))
            if last is not None and t > warmup_s and 0.5 < t - last_t < 3:
                windows.append(Window(line, t - last_t, last, now))
            last_t, last = t, now
        for what, key in (("sending", "sent_avg"), ("receiving", "received_avg")):
            average = re.search(what + r" rate avg: ([\d.]+) msg/s", line)
            if average:
                final[key] = float(average.group(1))
    code = process.wait()
    killer.cancel()
    ended = proc.Reading(pids, [])
    with open(os.path.join(out, log_name), "a") as log:
        log.write("\n".join([" ".join(command), *lines, ""]) + "\n")
    result = dict(
        arguments=" ".join(str(a) for a in arguments), exit_code=code, rss_before_mb=rss_before / 1e6, rss_peak_mb=peak.stop() / 1e6,
        run_s=ended.at - started.at, run_cpu_s=ended.cpu - started.cpu, run_written_mb=(ended.written - started.written) / 1e6, **final,
    )  # fmt: skip
    # The last second is cut short by the end of the run.
    windows = windows[:-1] if len(windows) > 3 else windows
    if not windows:
        return {**result, "tail": lines[-8:]}
    first, final_reading = windows[0].before, windows[-1].after
    sent = sum((w.sent or 0) * w.seconds for w in windows)
    received = sum((w.received or 0) * w.seconds for w in windows)
    seconds, messages = final_reading.at - first.at, max(sent, received)
    cpu, generator = final_reading.cpu - first.cpu, final_reading.generator - first.generator
    result.update(
        windows=len(windows), sent_s=median([w.sent for w in windows]), received_s=median([w.received for w in windows]),
        sent_min_s=min((w.sent or 0) for w in windows), received_min_s=min((w.received or 0) for w in windows),
        nacked=sum(w.nacked * w.seconds for w in windows), broker_cores=cpu / seconds, generator_cores=generator / seconds,
        other_cores=(final_reading.busy - first.busy - cpu - generator) / seconds,
    )  # fmt: skip
    if messages > 0:
        result.update(cpu_us_per_message=cpu * 1e6 / messages, written_per_message=(final_reading.written - first.written) / messages)
        if None not in (first.between, final_reading.between):
            # What is replicated is each message once for each of the other nodes.
            result["between_per_replica"] = (final_reading.between - first.between) / messages / (len(pids) - 1)
    for name in ("e2e", "confirm"):
        for at, percentile in enumerate(PERCENTILES):
            value = median([getattr(w, name)[at] for w in windows if getattr(w, name)])
            if value is not None:
                result[f"{name}_{percentile}_us"] = value
    return result


def tail(out, broker, seconds, warmup_s=5, heap="1g", **settings):
    """The open-loop recorder: whole-run percentiles to p99.99, latency counted from the intended send time."""
    pids = broker.pids()
    arguments = [f"{key}={value}" for key, value in {"uri": broker.uri, "seconds": seconds, "warmup": warmup_s, **settings}.items()]
    command = java(out, heap, os.path.join(HERE, "Tail.java"), *arguments)
    peak = proc.PeakRss(pids)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    killer = threading.Timer(seconds + warmup_s + 240, process.kill)
    killer.start()
    before = None
    for line in process.stdout:
        if line.startswith("measuring"):
            before = proc.Reading(pids, [process.pid])
        elif line.startswith("measured"):
            after = proc.Reading(pids, [process.pid])
        elif line.startswith("{") and before is not None:
            result = json.loads(line)
            messages, elapsed = max(result["sent"], result["received"]), after.at - before.at
            cpu = after.cpu - before.cpu
            result.update(
                arguments=" ".join(arguments), exit_code=0, cpu_us_per_message=cpu * 1e6 / messages, broker_cores=cpu / elapsed,
                written_per_message=(after.written - before.written) / messages, received_s=result["received"] / elapsed,
                other_cores=(after.busy - before.busy - cpu - (after.generator - before.generator)) / elapsed,
            )  # fmt: skip
            result["rss_peak_mb"] = peak.stop() / 1e6
            process.wait()
            killer.cancel()
            return result
    peak.stop()
    killer.cancel()
    return dict(arguments=" ".join(arguments), exit_code=process.wait(), tail=process.stderr.read().splitlines()[-8:])


def idle(broker, seconds):
    """What a broker costs that nobody uses."""
    pids = broker.pids()
    before = proc.Reading(pids)
    time.sleep(seconds)
    after = proc.Reading(pids)
    return dict(
        rss_mb=proc.rss_bytes(pids) / 1e6, idle_cores=(after.cpu - before.cpu) / (after.at - before.at), written_bytes=after.written - before.written
    )
