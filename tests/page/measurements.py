#!/usr/bin/env python3
"""measurements.py FOLDER: made-up measurements from which every kind of page of the laboratory is made, the same in every run.

They hold what pages have to cope with: steps of size, a backlog, a broker that holds publishers back, losses, names that are long,
figures that were not measured. Invariant: nothing here is random and nothing is of this machine, so that pages have goldens."""

import json
import math
import os
import sys

MACHINE = dict(cpu="AMD EPYC", cores=2, memory_bytes=25_300_000_000, kernel="6.18.44", load_before=0.04)
TOLD = [("p50_ms", 50), ("p75_ms", 75), ("p90_ms", 90), ("p95_ms", 95), ("p99_ms", 99), ("p999_ms", 99.9), ("p9999_ms", 99.99)]


def at(p50, tail, percentile):
    """A latency whose tail is `tail` times as long for each further nine."""
    nines = -math.log10(1 - percentile / 100) if percentile < 100 else 6
    return round(p50 * tail ** max(0, nines - 0.301), 4)


def figures(count, p50, tail):
    return dict(count=count, min_ms=round(p50 / 3, 4), mean_ms=round(p50 * 1.2, 4), max_ms=at(p50, tail, 100), **{k: at(p50, tail, p) for k, p in TOLD})


def latency(count, p50, tail):
    curve = [(round(100 * (1 - 10 ** (-step / 10)), 6), at(p50, tail, 100 * (1 - 10 ** (-step / 10)))) for step in range(min(51, int(10 * math.log10(count)) + 1))]
    return dict(figures=figures(count, p50, tail), curve=curve)


def recorded(label, broker, rate, p50, tail=3.0, target=None, sizes=(1000,), seconds=12, cpu=0.9, rss=40e6, confirm=True, received=None, **more):
    """The lines of a run: intervals, and the whole."""
    received, lines, scenario = rate if received is None else received, [], more.pop("scenario", "")
    waiting, held_at = 0, more.pop("held_at", None)
    for second in range(1, seconds + 1):
        wave = 1 + 0.05 * math.sin(second)
        size, held = sizes[(second - 1) * len(sizes) // seconds], held_at == second
        sent, got = (0 if held else rate * wave), (0 if held else received * wave)
        waiting += sent - got
        one = dict(
            type="interval", at_s=float(second), phase="warm-up" if second <= 2 else "load", body_bytes=size, target_per_s=target,
            published_per_s=sent, confirmed_per_s=sent if confirm else 0.0, received_per_s=got, nacked=0, returned=0, connections_lost=0,
            blocked_s=0.0, held_back_s=1.0 if held else 0.0, held_back_why=["low on disk"] if held else [], backlog=int(max(waiting, rate * p50 / 1000)),
            confirm=figures(int(rate), p50 * 0.7 * wave, tail) if confirm else None, end_to_end=figures(int(rate), p50 * wave, tail),
            broker=dict(cpu_cores=cpu * wave, rss_bytes=int(rss * (1 + second / 50)), read_bytes_s=0.0, write_bytes_s=rate * size * 1.1),
            generator_cores=0.4, to_broker_bytes_s=sent * (size + 60), from_broker_bytes_s=got * (size + 60),
        )  # fmt: skip
        lines.append(one)
    count, got = int(rate * seconds), int(received * seconds)
    correctness = dict(
        published=count, confirmed=count if confirm else 0, nacked=0, returned=0, unanswered=0, received=got, left_in_queues=count - got,
        lost=0 if confirm else None, lost_examples=[], duplicated_flagged=0, duplicated_unflagged=0, reordered=0, corrupt=0, foreign=0,
    )  # fmt: skip
    correctness.update(more.pop("correctness", {}))
    run = dict(
        type="run", label=label, scenario=scenario, command=f"leveret bench --id '{label}' --rate {target or 0:.0f} --size {sizes[0]}",
        version="0.1.0 (abcdef0123)", started_s=1_795_283_940, broker=broker, machine=MACHINE, open_loop=target is not None, seconds=float(seconds - 2),
        target_per_s=target, published_per_s=rate, confirmed_per_s=rate if confirm else None, received_per_s=received,
        confirm=latency(count, p50 * 0.7, tail) if confirm else None, end_to_end=latency(count, p50, tail), handed=None,
        by_size=[(size, figures(count // len(sizes), p50 * (1 + size / 5000), tail)) for size in sizes], blocked_s=0.0, connections_lost=0,
        correctness=correctness, missed=[], not_asked=["p99.9 (--require-p999-ms)"], notes=[],
        cost=dict(publishing_us_per_message=0.41, consuming_us_per_message=0.36, broker_us_per_message=cpu * 1e6 / ((rate + received) / 2), broker_per="in and out",
                  broker_cores=cpu, broker_rss_bytes_max=int(rss * 1.24), broker_write_bytes_per_message=sizes[0] * 1.12, written_messages=float(count),
                  written=dict(bytes=int(count * sizes[0] * 1.12), counter="the process's counter", process_bytes=int(count * sizes[0] * 1.12),
                               device_bytes=int(count * sizes[0] * 1.3), own_bytes=int(count * sizes[0] * 1.08))),
    )  # fmt: skip
    run.update(more)
    return lines + [run]


def write(folder, name, lines):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)


CAMPAIGN = """title = "Two brokers, two ways"
about = "Made-up figures: what a campaign's page looks like."
seconds = 12

[[broker]]
name = "Leveret"

[[broker]]
name = "RabbitMQ 3.10"
command = "rabbit --port {port} --dir {dir}"
version = "echo 3.10.8"

[[part]]
name = "one quorum queue, fast"
about = "Two publishers and two consumers, as fast as it goes."
bench = "-x 2 -y 2 -c 3000 -q 3000 -A 3000 -qq -u qq --size {size} --time {seconds}"
with = { size = [10, 100, 1000, 5000] }

[[part]]
name = "one quorum queue at 10,000 msg/s"
about = "How low and how even latency is."
bench = "-r 10000 -c 3000 -q 3000 -A 3000 -qq -u qq --size 1000 --time {seconds}"

[[part]]
name = "a broker that does not start"
bench = "-z {seconds}"
brokers = ["RabbitMQ 3.10"]

[[part]]
name = "not measured yet"
bench = "--size 12 --time {seconds}"
brokers = ["Leveret"]
"""

PRICES = """currency = "$"
machine = [{ name = "small", vcpus = 1, month = 15 }, { name = "tiny", vcpus = 0.5, month = 8 }, { name = "large", vcpus = 8, month = 120 }]
volume = [{ name = "disk", month = 10, mib_s = 50, iops = 3000 }]
"""


def campaign(folder):
    open(os.path.join(folder, "campaign.toml"), "w").write(CAMPAIGN)

    def kept(part, size, broker, lines, bench, failed=None):
        command = "leveret server, of this build" if broker == "Leveret" else "rabbit --port {port} --dir {dir}"
        made = dict(type="made", bench=bench, broker=broker, command=command, broker_version="", tool="0.1.0 (abcdef0123)", failed=failed)
        name = "-".join(word for word in "".join(c.lower() if c.isalnum() or c == "." else "-" for c in f"{part}{size} {broker}").split("-") if word)
        write(folder, f"campaign/{name}.jsonl", [made] + lines)

    fast = "one quorum queue, fast"
    for size, ours, theirs in ((10, 1_780_000, 47_400), (100, 1_690_000, 53_200), (1000, 334_000, 33_200), (5000, 135_000, 22_500)):
        bench = f"-x 2 -y 2 -c 3000 -q 3000 -A 3000 -qq -u qq --size {size} --time 12"
        drowns = size == 5000
        more = dict(received=ours * 0.6, backlog_grew=True, missed=["81,000 of 135,000 messages a second that were sent were received, 212,950 waited at the end of the load"]) if drowns else {}
        kept(fast, f", size {size}", "Leveret", recorded("Leveret", "Leveret 0.1.0 (process leveret)", ours, 4.0, sizes=(size,), **more), bench)
        lossy = dict(correctness=dict(lost=5, lost_examples=["0:99", "0:199"]), missed=["5 lost"]) if size == 100 else {}
        kept(fast, f", size {size}", "RabbitMQ 3.10", recorded("RabbitMQ 3.10", "RabbitMQ 3.10.8 (process beam.smp)", theirs, 125.0, 1.4, sizes=(size,), cpu=1.6, rss=500e6, **lossy), bench)
    slow = "one quorum queue at 10,000 msg/s"
    bench = "-r 10000 -c 3000 -q 3000 -A 3000 -qq -u qq --size 1000 --time 12"
    kept(slow, "", "Leveret", recorded("Leveret", "Leveret 0.1.0 (process leveret)", 10_000.0, 0.28, target=10_000.0, cpu=0.57), bench)
    kept(slow, "", "RabbitMQ 3.10", recorded("RabbitMQ 3.10", "RabbitMQ 3.10.8 (process beam.smp)", 10_000.0, 1.58, 4.0, target=10_000.0, cpu=1.11, rss=377e6), bench)
    kept("a broker that does not start", "", "RabbitMQ 3.10", [], "-z 12", failed="starting rabbit: No such file or directory")


def durability(folder):
    lines = []
    for who, broker, rate, slow in (("Leveret", "Leveret 0.1.0 (process leveret)", 90_000.0, 1.0), ("RabbitMQ 3.10", "RabbitMQ 3.10.8 (process beam.smp)", 30_000.0, 14.0)):
        lines += recorded(f"{who} figure 2, synced, {rate:,.0f} msg/s", broker, rate, 1.1 * slow, target=rate, sizes=(256,), scenario="figure 2", cpu=0.9 if who == "Leveret" else 1.6)
        stages = (("synced", 1.1 * slow, 3.0), ("async (first node has it)", 0.21 * slow, 2.4)) + ((("selective (10 syncs a second by value)", 0.3, 2.2),) if who == "Leveret" else ())
        curves = [dict(name=name, held_per_s=rate, latency=latency(900_000, p50, tail)) for name, p50, tail in stages]
        notes = ["Replicated: there is one node, so nothing is replicated.", f"synced: measured at {rate:,.0f} msg/s, not 200,000: CPU was left; the disk and its syncs held it back."]
        lines.append(dict(type="figure", who=who, title="Figure 2: 1 KB, up to 200,000 msg/s: what each policy costs", curves=curves, notes=notes, shown=None))
    lines.append(dict(type="figure", who="Leveret", title="Value at risk under selective", curves=[], notes=["4,900 of 5,000 at most."], shown=["The most was 4,900", True]))
    write(folder, "durability.jsonl", lines)


def sizing(folder):
    open(os.path.join(folder, "prices.toml"), "w").write(PRICES)
    lines = [dict(kind="header", format="leveret-sizing/1", requirement=dict(rate=2000, p99_ms=1000, lose_node=False, backlog_rate=1000), note="measured by leveret 0.1.0 (abcdef0123) on a machine with 2 cores")]
    clusters = (("leveret-1x1", "small", 1.0, 16_000, 1.0), ("leveret-1x0.5", "tiny", 0.5, 8000, 1.2), ("rabbitmq-1x1", "small", 1.0, 4000, 3.0), ("rabbitmq-1x0.5", "tiny", 0.5, 2000, 9.0))
    for name, machine, vcpus, held, slow in clusters:
        lines.append(dict(kind="cluster", cluster=name, nodes=1, machine=machine, vcpus=vcpus, volume="disk", iops=3000, mib_s=50))
        for target in (2000, 4000, 8000, 16_000, 32_000):
            if target > 2 * held:
                continue
            through = min(target, held * 1.3)
            load = min(0.98, target / held / 1.3)
            p99 = 20 * slow / (1 - load)
            lines.append(dict(
                kind="step", cluster=name, volume="disk", test="rising", target=target, intended=target, seconds=6, consumers=20, published=through, consumed=through,
                p50_ms=round(p99 / 20, 3), p75_ms=round(p99 / 8, 3), p95_ms=round(p99 / 2, 3), p99_ms=round(p99, 3), p999_ms=round(p99 * 1.5, 3), confirm_p99_ms=round(p99 * 0.9, 3),
                backlog_end=0, backlog_max=int((target - through) * 6), lost=0, duplicated=0, cpu_percent=round(100 * vcpus * (0.2 + 0.6 * load), 1), memory_mib=30.0,
                disk_mib_s=round(through * 1.5 / 1000, 1), disk_iops=min(2990.0, through * 0.7), disk_busy_percent=round(30 + 60 * load, 1), throttled_percent=12.0 if vcpus < 1 else 0.0,
            ))  # fmt: skip
        for test in ("slow-consumers", "publisher-peak"):
            lines.append(dict(kind="step", cluster=name, volume="disk", test=test, target=1000, intended=1000 if test == "slow-consumers" else 1300, seconds=18, consumers=2,
                              published=1300, consumed=1300, p50_ms=2.0, p99_ms=round(8 * slow, 2), backlog_end=0, backlog_max=900, lost=0, duplicated=0, cpu_percent=30.0))  # fmt: skip
    lines.append(dict(kind="skipped", cluster="rabbitmq-1x0.5", volume="disk", test="rising", target=8000, why="it fell short of 2 targets in a row before"))
    write(folder, "sizing.jsonl", lines + [dict(kind="end")])


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    leveret = recorded("Leveret", "Leveret 0.1.0 (process leveret)", 10_000.0, 0.28, target=10_000.0, sizes=(10, 1000, 5000), held_at=9, cpu=0.57,
                       held_back=dict(seconds=1.0, times=1, reasons=["low on disk"]), required=[["9,990 messages a second, 10,000 are required", True]],
                       why_p99="1.78 ms at 28 % CPU: the disk's syncs (it had something to do 87 % of the time)")  # fmt: skip
    rabbit = recorded("RabbitMQ", "RabbitMQ 3.10.8 (process beam.smp)", 9_900.0, 12.0, 4.0, target=10_000.0, sizes=(10, 1000, 5000), cpu=1.3, rss=380e6, received=6000.0, backlog_grew=True, why_p99="159 ms at 65 % CPU: a backlog of 46,800, for the machine's cores (97 % in use, by the load and others too)",
                      missed=["6,000 of 9,900 messages a second that were sent were received, 46,800 waited at the end of the load"])  # fmt: skip
    write(folder, "leveret.jsonl", leveret)
    write(folder, "rabbitmq.jsonl", rabbit)
    silent = recorded("a publisher without confirms", "Leveret 0.1.0 (process leveret)", 5000.0, 0.2, confirm=False, correctness=dict(unpromised_missing=3, lost_examples=["0:7"]))
    write(folder, "unconfirmed.jsonl", silent)
    # Killed while it wrote the eighth interval.
    known = ("label", "scenario", "command", "version", "started_s", "broker", "machine", "open_loop")
    begun = dict({name: leveret[-1][name] for name in known}, type="begun", confirms=True, receives=True)
    write(folder, "cut.jsonl", [begun] + leveret[:7])
    with open(os.path.join(folder, "cut.jsonl"), "a") as out:
        out.write(json.dumps(leveret[7])[:200])
    campaign(folder)
    durability(folder)
    sizing(folder)


if __name__ == "__main__":
    main()
