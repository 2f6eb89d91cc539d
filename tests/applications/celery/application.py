"""A Celery worker and who calls it: results over rpc://, a task that fails twice and is retried, a task for later, a group, and a broker
that is killed under both.

Invariant: each task notes when and how often it ran; the caller decides from that. Ends with status 1 when anything is not as it should be."""

import os
import subprocess
import sys
import tempfile
import time

from celery import Celery, group

app = Celery("application", broker=os.environ["AMQP_URI"], backend="rpc://")
app.conf.update(
    task_default_queue=os.environ.setdefault("CELERY_QUEUE", f"celery-{os.getpid()}"),
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
    # A task is sent when the broker has confirmed it.
    broker_transport_options={"confirm_publish": True},
    # A queue of its own for each worker that others can talk to is what Celery does by itself.
    worker_enable_remote_control=True,
)


@app.task
def add(a, b):
    return a + b


@app.task(bind=True, max_retries=5)
def flaky(self, failures):
    if self.request.retries < failures:
        raise self.retry(countdown=0.2)
    return self.request.retries


@app.task
def now():
    return time.time()


@app.task
def note(n):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{n}\n")


def restart():
    """Tasks that were sent before the kill and after it run, on a worker that found its way back by itself."""
    for n in range(50):
        note.delay(n)
    subprocess.run([os.environ["RESTART"]], check=True)
    for n in range(50, 100):
        note.delay(n)
    due = time.monotonic() + 60
    ran = set()
    while ran != set(range(100)):
        assert time.monotonic() < due, f"{100 - len(ran)} tasks never ran"
        time.sleep(0.1)
        with open(os.environ["NOTES"]) as notes:
            ran = {int(line) for line in notes if line.endswith("\n")}


def main():
    notes = tempfile.NamedTemporaryFile()
    os.environ["NOTES"] = notes.name
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "application", "worker", "--concurrency", "2", "--loglevel", "ERROR"],
        env=os.environ,
    )
    try:
        assert add.delay(2, 3).get(timeout=60) == 5, "an RPC"
        assert group(add.s(n, n) for n in range(200)).apply_async().get(timeout=60) == [2 * n for n in range(200)], "a group"
        assert flaky.delay(2).get(timeout=60) == 2, "two retries"
        started = time.time()
        ran = now.apply_async(countdown=2).get(timeout=60)
        assert ran - started >= 1.9, f"a delayed job ran after {ran - started:.1f} s"
        # Work for later beyond the prefetch raises it, which Celery does at run time and for the whole channel.
        jobs = [now.apply_async(countdown=2) for _ in range(20)]
        assert all(job.get(timeout=60) >= started + 2 for job in jobs), "twenty delayed jobs"
        assert app.control.ping(timeout=5), "the worker answers over its own queue"
        parts = "rpc, group, retries, delayed jobs, remote control"
        if "RESTART" in os.environ:
            restart()
            parts += ", a killed broker"
        print(f"celery: {parts}")
    finally:
        worker.terminate()
        worker.wait(30)


if __name__ == "__main__":
    main()
