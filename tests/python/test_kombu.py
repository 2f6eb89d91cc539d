"""kombu, unmodified: the library under Celery, which takes the broker for RabbitMQ by its product and version."""

import os
import socket

from kombu import Connection, Exchange, Queue


def test_producer_consumer_and_requeue(uri, name):
    with Connection(uri) as connection:
        exchange = Exchange(name, "direct", durable=True)
        arguments = {"x-queue-type": "quorum"}
        if "AMQP_URI" in os.environ:
            arguments["x-delivery-limit"] = 20  # RabbitMQ 3.10 puts returned messages last without one.
        queue = Queue(name, exchange, routing_key=name, durable=True, queue_arguments=arguments)
        producer = connection.Producer(serializer="json")
        for n in range(20):
            producer.publish({"n": n}, exchange=exchange, routing_key=name, declare=[queue], retry=True)
        seen = []

        def on_message(body, message):
            if body["n"] == 3 and not message.delivery_info["redelivered"]:
                message.requeue()
            else:
                seen.append(body["n"])
                message.ack()

        with connection.Consumer([queue], callbacks=[on_message], prefetch_count=1):
            while len(seen) < 20:
                connection.drain_events(timeout=10)
        assert seen == list(range(20)), "the requeued message kept its place"
        queue.maybe_bind(connection)
        queue.delete()


def test_simple_queue_times_out_when_empty(uri, name):
    with Connection(uri) as connection:
        simple = connection.SimpleQueue(name)
        simple.put({"hello": "world"})
        message = simple.get(timeout=10)
        assert message.payload == {"hello": "world"}
        message.ack()
        try:
            simple.get(timeout=0.2)
            raise AssertionError("the queue should be empty")
        except (simple.Empty, socket.timeout):
            pass
        queue = simple.queue
        simple.close()
        queue(connection.channel()).delete()


def test_prefetch_changes_while_consuming(uri, name):
    """Celery raises and lowers the channel's prefetch as tasks with an ETA come and go."""
    with Connection(uri) as connection:
        channel = connection.channel()
        queue = Queue(name, durable=True)(channel)
        queue.declare()
        producer = connection.Producer(channel)
        for n in range(10):
            producer.publish(str(n), routing_key=name)
        got = []
        consumer = connection.Consumer([queue], channel=channel, callbacks=[lambda body, message: got.append(message)])
        consumer.qos(prefetch_count=2, apply_global=True)
        consumer.consume()
        drain(connection)
        assert len(got) == 2
        consumer.qos(prefetch_count=5, apply_global=True)
        drain(connection)
        assert len(got) == 5
        for message in got:
            message.ack()
        drain(connection)
        assert len(got) == 10
        consumer.cancel()
        queue.delete()


def drain(connection):
    while True:
        try:
            connection.drain_events(timeout=0.5)
        except (socket.timeout, TimeoutError):
            return
