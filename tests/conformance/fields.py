#!/usr/bin/env python3
"""The same things declared and used over RabbitMQ and over Leveret, and what both answer to the same GETs, field by field.

    fields.py RABBIT_AMQP RABBIT_HTTP LEVERET_AMQP LEVERET_HTTP [PURPOSE]

Each is a port of this machine. A difference is a field that one of them has and the other has not, or that is of another
type there. Differences on purpose are lines of PURPOSE (`fields.txt` beside this file): a path, a field and `-` (only
RabbitMQ has it), `+` (only Leveret has it) or `~` (of another type), then the reason; `*` stands for anything. Every other
difference is printed and makes the exit code 1, as does a line of PURPOSE that nothing needs.

Needs pika. Invariant: nothing of it is about values: what they are, other tests say."""

import base64
import fnmatch
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import pika

NOT_RATES = ("samples", "avg", "avg_rate")
RANGE = "lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5&data_rates_age=60&data_rates_incr=5&node_stats_age=60&node_stats_incr=5"
PATHS = """
overview overview?RANGE whoami nodes nodes/NODE nodes/NODE?RANGE nodes/NODE/memory cluster-name extensions
vhosts vhosts/%2F vhosts/%2F/permissions exchanges exchanges/%2F exchanges/%2F/judged exchanges/%2F/judged?RANGE
exchanges/%2F/judged/bindings/source exchanges/%2F/judged/bindings/destination queues queues/%2F queues/%2F/judged-quorum
queues/%2F/judged-classic queues/%2F/judged-classic?RANGE queues/%2F/judged-classic?disable_stats=true
queues?disable_stats=true&enable_queue_totals=true queues?page=1&page_size=3 queues/%2F/judged-classic/bindings bindings
bindings/%2F bindings/%2F/e/judged/q/judged-quorum connections connections/CONNECTION connections/CONNECTION?RANGE
connections/CONNECTION/channels channels channels/CHANNEL channels/CHANNEL?RANGE consumers consumers/%2F users users/guest
users/guest/permissions permissions permissions/%2F/guest topic-permissions policies policies/%2F policies/%2F/judged
operator-policies vhost-limits user-limits parameters global-parameters feature-flags definitions definitions/%2F
auth aliveness-test/%2F health/checks/alarms health/checks/local-alarms health/checks/virtual-hosts
health/checks/node-is-quorum-critical health/checks/port-listener/AMQP health/checks/protocol-listener/amqp091
""".split()


class Broker:
    """A broker under load of its own, as long as it is entered."""

    def __init__(self, amqp, http):
        self.amqp, self.http = int(amqp), int(http)
        self.ends = threading.Event()

    def ask(self, path, method="GET", body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}/api/{path}", method=method)
        request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
        data = None if body is None else json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, data=data, timeout=30) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            text = error.read()
            return error.code, json.loads(text) if text.startswith(b"{") else None

    def connect(self):
        properties = {"connection_name": "judged"}
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.amqp, client_properties=properties))

    def __enter__(self):
        self.publisher = self.connect()
        channel = self.publisher.channel()
        channel.exchange_declare("judged", "topic", durable=True)
        channel.queue_declare("judged-quorum", durable=True, arguments={"x-queue-type": "quorum"})
        for name in ("judged-classic", "judged-idle"):
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "classic"})
        channel.queue_bind("judged-quorum", "judged", "a.#")
        channel.queue_bind("judged-classic", "judged", "a.b")
        self.ask("policies/%2F/judged", "PUT", {"pattern": "^judged-idle$", "definition": {"max-length": 5}, "apply-to": "queues"})
        channel.confirm_delivery()
        self.threads = [threading.Thread(target=run, args=arguments) for run, arguments in ((self.publish, (channel,)), (self.consume, ()))]
        for thread in self.threads:
            thread.start()
        return self

    def publish(self, channel):
        persistent = pika.BasicProperties(delivery_mode=2)
        while not self.ends.is_set():
            for exchange, key in (("judged", "a.b"), ("", "judged-classic"), ("judged", "nowhere")):
                channel.basic_publish(exchange, key, b"x" * 100, persistent)
            method, _, _ = channel.basic_get("judged-classic")
            if method:
                channel.basic_ack(method.delivery_tag)
            channel.basic_get("judged-classic", auto_ack=True)
            self.publisher.sleep(0.1)
        self.publisher.close()

    def consume(self):
        connection = self.connect()
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        for method, _, _ in channel.consume("judged-quorum", inactivity_timeout=0.2):
            if method:
                channel.basic_ack(method.delivery_tag)
            if self.ends.is_set():
                break
        connection.close()

    def __exit__(self, *_):
        self.ends.set()
        for thread in self.threads:
            thread.join()
        for name in ("judged-quorum", "judged-classic", "judged-idle"):
            self.ask(f"queues/%2F/{name}", "DELETE")
        self.ask("exchanges/%2F/judged", "DELETE")
        self.ask("policies/%2F/judged", "DELETE")

    def answers(self):
        """What it answers to each path, under the path as it is written above."""
        quote = lambda name: urllib.parse.quote(name, safe="")
        names = {"NODE": quote(self.ask("overview")[1]["node"]), "RANGE": RANGE, "AMQP": str(self.amqp)}
        publishers = [c for c in self.ask("channels")[1] if c.get("confirm")]
        names["CHANNEL"], names["CONNECTION"] = quote(publishers[0]["name"]), quote(publishers[0]["connection_details"]["name"])
        answers = {}
        for path in PATHS:
            real = path
            for name, value in names.items():
                real = real.replace(name, value)
            answers[path] = self.ask(real)
        return answers


def kind(value):
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return {str: "text", list: "list", dict: "object", type(None): "null"}[type(value)]


def fields(value, at="", found=None):
    """Every field below `value` with the types that it has; members of lists are one."""
    found = {} if found is None else found
    if isinstance(value, dict):
        for name, inner in value.items():
            # Names of nodes and of virtual hosts are no fields.
            name = "NAME" if "@" in name or at.endswith((".cluster_state", ".node_tags")) else name
            place = f"{at}.{name}"
            found.setdefault(place, set()).add(kind(inner))
            fields(inner, place, found)
    elif isinstance(value, list):
        for inner in value:
            found.setdefault(f"{at}[]", set()).add(kind(inner))
            fields(inner, f"{at}[]", found)
    return found


def differences(rabbit, leveret):
    for path in PATHS:
        (status, answer), (own_status, own) = rabbit[path], leveret[path]
        if status != own_status:
            yield path, f"status {status}/{own_status}", "~"
            continue
        theirs, ours = fields(answer), fields(own)
        for place in sorted(theirs.keys() | ours.keys()):
            parent = place.rstrip("[]").rsplit(".", 1)[0]
            if place not in ours and (parent in ours or not parent):
                yield path, place, "-"
            elif place not in theirs and (parent in theirs or not parent):
                yield path, place, "+"
            elif place in ours and place in theirs and not (theirs[place] - {"null"}) & (ours[place] - {"null"}):
                if theirs[place] != {"null"} and ours[place] != {"null"}:
                    yield path, place, f"~ {'|'.join(sorted(theirs[place]))} here {'|'.join(sorted(ours[place]))}"


def purposes(path):
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            words = line.split(None, 3)
            if words and not line.startswith("#"):
                yield tuple(words[:3]), words[3].strip() if len(words) > 3 else ""


def judged(found, purpose):
    """Prints differences without a reason and reasons without a difference; how many of the first, and whether there is neither."""
    known = {line: 0 for line, _ in purposes(purpose)}
    unknown = 0
    for where, what, how in found:
        lines = [line for line in known if fnmatch.fnmatchcase(where, line[0]) and fnmatch.fnmatchcase(what, line[1]) and how[0] == line[2]]
        for line in lines:
            known[line] += 1
        if not lines:
            unknown += 1
            print(f"{where}\t{what}\t{how}")
    needless = [line for line, count in known.items() if count == 0]
    for line in needless:
        print("nothing needs:", *line)
    return unknown, not unknown and not needless


def main():
    if len(sys.argv) not in (5, 6):
        sys.exit(__doc__)
    purpose = sys.argv[5] if len(sys.argv) == 6 else os.path.join(os.path.dirname(__file__), "fields.txt")
    with Broker(*sys.argv[1:3]) as rabbit, Broker(*sys.argv[3:5]) as leveret:
        # RabbitMQ has rates after its second sample.
        time.sleep(13)
        found = list(differences(rabbit.answers(), leveret.answers()))
    unknown, is_good = judged(found, purpose)
    print(f"{len(PATHS)} paths, {len(found)} differences, {unknown} of them not on purpose", file=sys.stderr)
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
