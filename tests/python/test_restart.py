"""Clients over a `kill -9` of their broker and its start on the same folder: what was confirmed is there, and they go on.

Invariant: a message may come twice after a kill, since its ack may be lost; it never fails to come."""

import threading
import time

import pika
import pytest
from kombu import Connection, Queue
from kombu.mixins import ConsumerMixin
from pika.exceptions import AMQPConnectionError

PATIENCE_S = 60


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_pika_finds_what_was_confirmed(start, kind):
    server = start()
    connection = pika.BlockingConnection(pika.URLParameters(server.uri))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True, arguments={"x-queue-type": kind})
    for n in range(100):
        channel.basic_publish("", "q", b"%d" % n, pika.BasicProperties(delivery_mode=2))
    held = channel.basic_get("q")
    assert held[2] == b"0"
    server.kill()
    with pytest.raises(AMQPConnectionError):
        channel.basic_publish("", "q", b"to nobody")
        connection.process_data_events(time_limit=PATIENCE_S)
    server.start()
    channel = pika.BlockingConnection(pika.URLParameters(server.uri)).channel()
    assert channel.queue_declare("q", passive=True).method.message_count == 100
    bodies = [channel.basic_get("q", auto_ack=True)[2] for _ in range(100)]
    assert bodies == [b"%d" % n for n in range(100)], "in order, and the one that was held in its place"
    channel.connection.close()
    server.stop()


class Worker(ConsumerMixin):
    """A consumer as kombu's users write it: the library connects again and declares again."""

    def __init__(self, connection, queue):
        self.connection, self.queue, self.seen = connection, queue, set()

    def get_consumers(self, consumer, channel):
        return [consumer([self.queue], callbacks=[self.on_message], prefetch_count=10)]

    def on_message(self, body, message):
        self.seen.add(body)
        message.ack()


def test_kombu_connects_again_by_itself(start):
    server = start()
    queue = Queue("q", durable=True, queue_arguments={"x-queue-type": "quorum"})
    worker = Worker(Connection(server.uri), queue)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    with Connection(server.uri, transport_options={"confirm_publish": True}) as connection:
        producer = connection.Producer()
        policy = {"max_retries": 100, "interval_start": 0.05, "interval_step": 0, "interval_max": 0.05}

        def publish(numbers):
            for n in numbers:
                producer.publish(str(n), routing_key="q", declare=[queue], retry=True, retry_policy=policy)

        publish(range(100))
        server.kill()
        server.start()
        publish(range(100, 200))
    due = time.monotonic() + PATIENCE_S
    while len(worker.seen) < 200:
        assert time.monotonic() < due, f"{200 - len(worker.seen)} messages never came"
        time.sleep(0.02)
    worker.should_stop = True
    thread.join(PATIENCE_S)
    server.stop()
