#!/usr/bin/env python3
"""report.py RESULTS.jsonl...: the table of ratios from the campaign's lines, each against its target, met or missed.

Invariant: a target is met only by a number that was measured; without one it says "not measured"."""

import json
import sys

# Microseconds in a millisecond.
MS = 1000


class Lines:
    """The last good measurement of each scenario and broker."""

    def __init__(self, paths):
        self.by = {}
        for path in paths:
            for text in open(path):
                line = json.loads(text)
                self.by[line["scenario"], line.get("broker")] = line

    def get(self, broker, scenario, field):
        line = self.by.get((scenario, broker), {})
        return None if line.get("failed") else line.get(field)


def number(value, digits=1):
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.{digits}f}"


class Row:
    """A line of the table: a measure, both brokers' numbers, the target."""

    def __init__(self, title, rabbit, ours, target, met, digits=1):
        self.title, self.rabbit, self.ours, self.target, self.met, self.digits = title, rabbit, ours, target, met, digits

    def text(self):
        ratio = f"1/{self.rabbit / self.ours:.1f}" if self.rabbit and self.ours and self.ours <= self.rabbit else None
        if ratio is None and self.rabbit and self.ours:
            ratio = f"{self.ours / self.rabbit:.2f}"
        verdict = "not measured" if self.met is None else "**met**" if self.met else "**missed**"
        verdict = "" if not self.target else verdict
        return f"| {self.title} | {number(self.rabbit, self.digits)} | {number(self.ours, self.digits)} | {ratio or '–'} | {self.target} | {verdict} |"


def fraction(lines, title, scenario, field, part, scale=1, digits=1):
    """Ours may be at most 1/part of RabbitMQ's."""
    rabbit, ours = (lines.get(broker, scenario, field) for broker in ("rabbitmq", "leveret"))
    met = None if rabbit is None or ours is None or part is None else ours * part <= rabbit
    rabbit, ours = (None if x is None else x / scale for x in (rabbit, ours))
    return Row(title, rabbit, ours, f"≤ 1/{part}" if part else "", met if part else None, digits)


def at_most(lines, title, scenario, field, limit, unit, scale=1, digits=1):
    """Ours may be at most a number."""
    rabbit, ours = (lines.get(broker, scenario, field) for broker in ("rabbitmq", "leveret"))
    rabbit, ours = (None if x is None else x / scale for x in (rabbit, ours))
    return Row(title, rabbit, ours, f"≤ {limit:g} {unit}", None if ours is None else ours <= limit, digits)


def shown(lines, title, scenario, field, scale=1, digits=1):
    return fraction(lines, title, scenario, field, None, scale, digits)


def sections(lines):
    yield "Scenario 1: one queue, 2 publishers, 2 consumers, full speed", [
        *[fraction(lines, f"{z} B: CPU µs/message", f"s1-{z}", "cpu_us_per_message", 12) for z in (10, 1000)],
        *[shown(lines, f"{z} B: messages/s", f"s1-{z}", "received_s") for z in (10, 1000)],
        *[shown(lines, f"{z} B: load tool's cores", f"s1-{z}", "generator_cores", digits=2) for z in (10, 1000)],
        *[shown(lines, f"{z} B: confirm p99 ms", f"s1-{z}", "confirm_p99_us", MS) for z in (10, 1000)],
        *[shown(lines, f"{z} B: end to end p99 ms", f"s1-{z}", "e2e_p99_us", MS) for z in (10, 1000)],
        *[shown(lines, f"{z} B: peak RSS MB", f"s1-{z}", "rss_peak_mb") for z in (10, 1000)],
        *[shown(lines, f"{z} B: bytes written/message", f"s1-{z}", "written_per_message") for z in (10, 1000)],
        *[shown(lines, f"{z} B: bytes between nodes, a message and replica", f"s1-{z}", "between_per_replica") for z in (10, 1000)],
    ]
    yield "Scenario 2: one queue at 10,000 messages/s", [
        fraction(lines, "1000 B: CPU µs/message", "s2-1000", "cpu_us_per_message", 7),
        shown(lines, "10 B: CPU µs/message", "s2-10", "cpu_us_per_message"),
        fraction(lines, "1000 B: end to end p99 ms (PerfTest)", "s2-1000", "e2e_p99_us", 5, MS, 2),
        shown(lines, "1000 B: end to end p50 ms (PerfTest)", "s2-1000", "e2e_p50_us", MS, 2),
        shown(lines, "1000 B: confirm p99 ms (PerfTest)", "s2-1000", "confirm_p99_us", MS, 2),
        fraction(lines, "1000 B: end to end p99 ms (open loop, whole run)", "tail-1000", "e2e_p99_us", 5, MS, 2),
        fraction(lines, "1000 B: end to end p99.9 ms (open loop, whole run)", "tail-1000", "e2e_p999_us", 5, MS, 2),
        shown(lines, "1000 B: end to end p99.99 ms (open loop, whole run)", "tail-1000", "e2e_p9999_us", MS, 2),
        shown(lines, "1000 B: confirm p99.9 ms (open loop, whole run)", "tail-1000", "confirm_p999_us", MS, 2),
        Row("1000 B: bytes written per byte of message", *(per_byte(lines, b) for b in ("rabbitmq", "leveret")), "≤ 1.2", met(per_byte(lines, "leveret"), 1.2), 2),
    ]  # fmt: skip
    yield "Scenario 3: 500 queues, 5,000 messages/s together", [
        *[fraction(lines, f"{z} B: CPU µs/message", f"s3-{z}", "cpu_us_per_message", 10) for z in (10, 1000)],
        *[fraction(lines, f"{z} B: end to end p99 ms", f"s3-{z}", "e2e_p99_us", 10, MS, 2) for z in (10, 1000)],
        *[shown(lines, f"{z} B: end to end p50 ms", f"s3-{z}", "e2e_p50_us", MS, 2) for z in (10, 1000)],
        *[shown(lines, f"{z} B: peak RSS MB", f"s3-{z}", "rss_peak_mb") for z in (10, 1000)],
    ]
    count = lines.get("leveret", "s4-fill", "messages") or lines.get("rabbitmq", "s4-fill", "messages")
    growth = [growth_mb(lines, broker) for broker in ("rabbitmq", "leveret")]
    slowest, fill, drain = ({b: lines.get(b, s, f) for b in ("rabbitmq", "leveret")} for s, f in (("s4-fill", "sent_min_s"), ("s4-fill", "sent_avg"), ("s4-drain", "received_avg")))
    drains = None if drain["leveret"] is None or fill["leveret"] is None else drain["leveret"] >= fill["leveret"]
    # A second far below the others is a pause, though not a whole one.
    steady = None if slowest["leveret"] is None or fill["leveret"] is None else slowest["leveret"] * 2 >= fill["leveret"]
    yield f"Scenario 4: {number(count)} messages standing, killed, drained", [
        Row("RSS over idle, MB", *growth, "≤ 32 MB", met(growth[1], 32)),
        Row("slowest second of publishing, messages/s", slowest["rabbitmq"], slowest["leveret"], "≥ half the average", steady),
        Row("publish rate, messages/s", fill["rabbitmq"], fill["leveret"], "", None),
        Row("drain rate, messages/s", drain["rabbitmq"], drain["leveret"], "≥ publish rate", drains),
        at_most(lines, "kill -9 to serving all of them, s", "s4-restart", "seconds", 2, "s", digits=2),
        shown(lines, "idle writes with the backlog, bytes", "s4-standing", "written_bytes", digits=0),
    ]  # fmt: skip
    queues = f"{lines.get('leveret', 'queues', 'queues') or lines.get('rabbitmq', 'queues', 'queues') or 10_000:,}"
    yield "Idle and many queues", [
        at_most(lines, "idle RSS, MB", "idle", "rss_mb", 20, "MB"),
        at_most(lines, "start, s", "idle", "start_s", 0.3, "s", digits=2),
        at_most(lines, "idle writes, bytes", "idle", "written_bytes", 0, "B", digits=0),
        shown(lines, "idle CPU, cores", "idle", "idle_cores", digits=4),
        at_most(lines, f"{queues} durable queues: more RSS, MB", "queues", "more_mb", 10, "MB"),
        at_most(lines, f"{queues} durable queues: start, s", "queues", "seconds", 1, "s", digits=2),
    ]


def sections_of_three(lines):
    """Three nodes have targets of their own; CPU, memory and bytes are those of all three together."""
    yield "Scenario 1: one queue, 2 publishers, 2 consumers, full speed", [
        fraction(lines, "1000 B: CPU µs/message", "s1-1000", "cpu_us_per_message", 10),
        shown(lines, "1000 B: messages/s", "s1-1000", "received_s"),
        shown(lines, "1000 B: load tool's cores", "s1-1000", "generator_cores", digits=2),
        shown(lines, "1000 B: confirm p99 ms", "s1-1000", "confirm_p99_us", MS),
        shown(lines, "1000 B: end to end p99 ms", "s1-1000", "e2e_p99_us", MS),
        shown(lines, "1000 B: peak RSS MB", "s1-1000", "rss_peak_mb"),
        at_most(lines, "1000 B: bytes written/message", "s1-1000", "written_per_message", 3600, "B", digits=0),
    ]
    yield "Scenario 2: one queue at 10,000 messages/s", [
        shown(lines, "1000 B: CPU µs/message", "s2-1000", "cpu_us_per_message"),
        at_most(lines, "1000 B: end to end p50 ms", "s2-1000", "e2e_p50_us", 1, "ms", MS, 2),
        at_most(lines, "1000 B: end to end p99 ms", "s2-1000", "e2e_p99_us", 5, "ms", MS, 2),
        shown(lines, "1000 B: confirm p99 ms", "s2-1000", "confirm_p99_us", MS, 2),
        fraction(lines, "1000 B: end to end p99.9 ms (open loop, whole run)", "tail-1000", "e2e_p999_us", 5, MS, 2),
    ]
    yield "Scenario 3: 500 queues, 5,000 messages/s together", [
        shown(lines, "1000 B: CPU µs/message", "s3-1000", "cpu_us_per_message"),
        shown(lines, "1000 B: end to end p50 ms", "s3-1000", "e2e_p50_us", MS, 2),
        at_most(lines, "1000 B: end to end p99 ms", "s3-1000", "e2e_p99_us", 25, "ms", MS, 2),
        shown(lines, "1000 B: peak RSS MB", "s3-1000", "rss_peak_mb"),
    ]
    yield "Idle", [
        shown(lines, "idle RSS, MB", "idle", "rss_mb"),
        shown(lines, "start, s", "idle", "start_s", digits=2),
        at_most(lines, "idle writes, bytes", "idle", "written_bytes", 0, "B", digits=0),
        at_most(lines, "idle CPU, cores", "idle", "idle_cores", 0.01, "cores", digits=4),
    ]


def met(value, limit):
    return None if value is None else value <= limit


def per_byte(lines, broker):
    written = lines.get(broker, "s2-1000", "written_per_message")
    return None if written is None else written / 1000


def growth_mb(lines, broker):
    peak, idle = lines.get(broker, "s4-fill", "rss_peak_mb"), lines.get(broker, "s4-fill", "rss_idle_mb")
    drained = lines.get(broker, "s4-drain", "rss_peak_mb")
    return None if peak is None or idle is None else max(peak, drained or 0) - idle


def curve(lines):
    """Cost of a message along each axis, and the factor from its first point."""
    rows = []
    axes = (("queues", "curve-queues-"), ("connections", "curve-connections-"), ("backlog", "curve-backlog-"))
    for broker in ("rabbitmq", "leveret"):
        for title, prefix in axes:
            points = sorted((int(s.removeprefix(prefix)), s) for s, b in lines.by if b == broker and s.startswith(prefix))
            costs = [(n, lines.get(broker, s, "cpu_us_per_message"), lines.get(broker, s, "e2e_p99_us")) for n, s in points]
            base = costs[0][1] if costs else None
            for n, cost, p99 in costs:
                factor = None if not cost or not base else cost / base
                verdict = "not measured" if factor is None else "" if (n, cost) == costs[0][:2] else "**met**" if factor <= 1.5 else "**missed**"
                rows.append(f"| {broker} | {n:,} {title} | {number(cost)} | {number(factor, 2)} | {number(None if p99 is None else p99 / MS, 2)} | {verdict} |")
    if not rows:
        return []
    return ["", "**The curve: cost of a message, target within a factor of 1.5**", "", "| broker | with | CPU µs/message | factor | e2e p99 ms | |", "|---|---|--:|--:|--:|---|", *rows]


def table(*paths):
    """The whole report as markdown."""
    lines = Lines(paths)
    about = lines.by.get(("machine", None), {})
    versions = [line["version"] for (scenario, _), line in sorted(lines.by.items(), key=str) if scenario == "version"]
    out = [
        f"Command `{about.get('command')}`, commit {about.get('commit')}, {about.get('date', '')[:10]}; {' against '.join(versions)}; "
        f"{about.get('cores')} cores ({about.get('cpu')}), {about.get('memory_mb')} MB, kernel {about.get('kernel')}; quorum queues, PerfTest with its client on the same machine.",
    ]
    for title, rows in (sections_of_three if about.get("nodes") == 3 else sections)(lines):
        out += ["", f"**{title}**", "", "| | RabbitMQ | Leveret | ratio | target | |", "|---|--:|--:|--:|---|---|", *[row.text() for row in rows]]
    out += curve(lines)
    noise = {f"{s} {b}": line["other_cores"] for (s, b), line in lines.by.items() if (line.get("other_cores") or 0) > 0.3}
    if noise:
        worst = max(noise, key=noise.get)
        out += ["", f"Other work on the machine disturbed {len(noise)} measurements, most {worst} with {noise[worst]:.1f} cores: compare those rates and latencies with care."]
    failed = [f"{s} on {b}: {line['failed']}" for (s, b), line in lines.by.items() if line.get("failed")]
    out += ["", *[f"Failed: {text}" for text in failed]] if failed else []
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    print(table(*sys.argv[1:]))
