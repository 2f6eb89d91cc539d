#!/usr/bin/env python3
"""judge.py SUITE REFERENCE NONE RESULT: of the tests that RabbitMQ passes, which fail here and are not on the list of what is missing?

Invariant: a test that passes without any broker (NONE, may be absent) says nothing and is not counted."""

import os
import sys


# A reason that begins so is of a test that passes on some runs.
SOMETIMES = "sometimes: "


def read(path):
    """Lines 'suite test outcome' of a result file."""
    outcomes = {}
    if os.path.exists(path):
        for line in open(path):
            if line.strip() and not line.startswith("#"):
                name, outcome = line.rstrip("\n").rsplit(" ", 1)
                outcomes[name] = outcome
    return outcomes


def listed(path):
    """Lines 'suite test reason'; a reason may be several words, a test's name has none."""
    lines = (line.split(" ", 2) for line in open(path) if line.strip() and not line.startswith("#"))
    return {f"{suite} {test}": reason.strip() for suite, test, reason in lines}


def main():
    suite, reference, none, result = sys.argv[1:5]
    missing = {name: reason for name, reason in listed(os.path.join(os.path.dirname(__file__), "missing.txt")).items() if name.startswith(suite + " ")}
    without, ours = read(none), read(result)
    wanted = [name for name, outcome in read(reference).items() if outcome == "PASS" and without.get(name) != "PASS"]
    passed = [name for name in wanted if ours.get(name) == "PASS"]
    broken = [name for name in wanted if ours.get(name) != "PASS" and name not in missing]
    stale = [name for name, reason in missing.items() if ours.get(name) == "PASS" and not reason.startswith(SOMETIMES)]
    for name in broken:
        print(f"{name} {ours.get(name, 'ABSENT')}")
    for name in stale:
        print(f"{name} passes now: take it off the list of what is missing")
    print(f"{suite}: {len(passed)} of {len(wanted)} that RabbitMQ passes, {len(wanted) - len(passed) - len(broken)} known to be missing")
    sys.exit(1 if broken or stale else 0)


if __name__ == "__main__":
    main()
