#!/usr/bin/env python3
"""The metrics of RabbitMQ and of Leveret under the same load: names, types and labels.

    metric_names.py RABBIT_AMQP RABBIT_HTTP RABBIT_METRICS LEVERET_AMQP LEVERET_HTTP [PURPOSE]

Each is a port of this machine; Leveret's metrics are on its port for HTTP. A difference is a metric that RabbitMQ has and Leveret
has not, that is of another type there, or whose labels are others; and one that only Leveret has without `leveret_` in its name.
Differences on purpose are lines of PURPOSE (`metric_names.txt` beside this file): a page, a metric and `-` (only RabbitMQ has it),
`+` (only Leveret has it) or `~` (of another type, or with other labels), then the reason; `*` stands for anything. Every other
difference is printed and makes the exit code 1, as does a line of PURPOSE that nothing needs.

Needs pika. Invariant: nothing of it is about values: what they are, other tests say."""

import os
import re
import sys
import time
import urllib.request

from fields import Broker, judged

FAMILIES = """
connection_churn_metrics node_coarse_metrics node_metrics node_persister_metrics ra_metrics auth_attempt_metrics queue_coarse_metrics
queue_metrics queue_consumer_count channel_queue_exchange_metrics queue_exchange_metrics exchange_metrics channel_metrics
channel_exchange_metrics channel_queue_metrics connection_coarse_metrics connection_metrics vhost_status exchange_bindings exchange_names
""".split()
PAGES = {"total": "metrics", "per-object": "metrics/per-object", "detailed": "metrics/detailed?" + "&".join(f"family={name}" for name in FAMILIES)}


def scrape(port, page):
    """Of each metric its type, and the names of its labels."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{page}", headers={"Accept": "text/plain;version=0.0.4"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    types, labels = {}, {}
    for line in lines:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            types[name] = kind
        elif line and not line.startswith("#"):
            name, _, inside = re.match(r'([^{ ]+)(\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?', line).groups()
            family = next((name.removesuffix(end) for end in ("_bucket", "_sum", "_count") if types.get(name.removesuffix(end)) == "histogram"), name)
            labels.setdefault(family, set()).update(re.findall(r'([a-zA-Z_]+)="', inside or ""))
    return {name: (kind, frozenset(labels[name] - {"le"})) for name, kind in types.items() if name in labels}


def differences(page, rabbit, leveret):
    for name in sorted(rabbit.keys() | leveret.keys()):
        if name not in leveret:
            yield page, name, "-"
        elif name not in rabbit:
            if not name.startswith("leveret_"):
                yield page, name, "+"
        elif rabbit[name] != leveret[name]:
            (kind, labels), (own_kind, own_labels) = rabbit[name], leveret[name]
            yield page, name, f"~ {kind} of {','.join(sorted(labels))} here {own_kind} of {','.join(sorted(own_labels))}"


def main():
    if len(sys.argv) not in (6, 7):
        sys.exit(__doc__)
    purpose = sys.argv[6] if len(sys.argv) == 7 else os.path.join(os.path.dirname(__file__), "metric_names.txt")
    rabbit_amqp, rabbit_http, rabbit_metrics, amqp, http = sys.argv[1:6]
    with Broker(rabbit_amqp, rabbit_http), Broker(amqp, http):
        # RabbitMQ knows of queues after it took its second sample.
        time.sleep(13)
        found = [one for page, path in PAGES.items() for one in differences(page, scrape(rabbit_metrics, path), scrape(http, path))]
        same = len(scrape(rabbit_metrics, PAGES["total"]).keys() & scrape(http, PAGES["total"]).keys())
    unknown, is_good = judged(found, purpose)
    print(f"{same} metrics of both, {len(found)} differences, {unknown} of them without a reason")
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
