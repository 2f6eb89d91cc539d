"""pika, unmodified: what a Python application does with a broker."""

import threading

import pika
import pytest

PERSISTENT = pika.BasicProperties(delivery_mode=2, content_type="text/plain", headers={"n": 1, "nested": {"list": [1, "two", None]}})


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_confirmed_messages_are_consumed_and_acked(connection, name, kind):
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
    for n in range(200):
        channel.basic_publish("", name, f"{n}".encode(), PERSISTENT, mandatory=True)
    channel.basic_qos(prefetch_count=10)
    seen = []
    for method, properties, body in channel.consume(name, inactivity_timeout=5):
        assert method is not None, "a message is due"
        assert properties.headers == PERSISTENT.headers and properties.content_type == "text/plain"
        assert not method.redelivered
        seen.append(int(body))
        channel.basic_ack(method.delivery_tag)
        if len(seen) == 200:
            break
    channel.cancel()
    assert seen == list(range(200))
    assert channel.queue_delete(name).method is not None


def test_unroutable_message_is_an_exception(connection, name):
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", name, b"back", mandatory=True)
    assert caught.value.messages[0].body == b"back"


def test_missing_queue_closes_the_channel_and_not_the_connection(connection, name):
    channel = connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare(name, passive=True)
    assert caught.value.reply_code == 404
    assert connection.channel().queue_declare("", exclusive=True).method.queue.startswith("amq.gen-")


def test_deleted_queue_cancels_its_consumer(connection, name):
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    channel.basic_consume(name, lambda *_: None)
    cancelled = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    connection.channel().queue_delete(name)
    connection.process_data_events(time_limit=5)
    assert len(cancelled) == 1


def test_nacked_message_comes_again(connection, name):
    channel = connection.channel()
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    channel.basic_publish("", name, b"again", PERSISTENT)
    consumer = channel.consume(name, inactivity_timeout=5)
    method, _, _ = next(consumer)
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, _, body = next(consumer)
    assert method is not None and method.redelivered and body == b"again"
    channel.basic_ack(method.delivery_tag)


def test_topic_exchange_fans_out(connection, name):
    channel = connection.channel()
    channel.exchange_declare(name, "topic", auto_delete=True)
    queues = {pattern: channel.queue_declare("", exclusive=True).method.queue for pattern in ("orders.*", "#", "orders.eu.#")}
    for pattern, queue in queues.items():
        channel.queue_bind(queue, name, pattern)
    channel.confirm_delivery()
    for key in ("orders.eu", "orders.eu.berlin", "users"):
        channel.basic_publish(name, key, key.encode())
    counts = {pattern: channel.queue_declare(queue, passive=True).method.message_count for pattern, queue in queues.items()}
    assert counts == {"orders.*": 1, "#": 3, "orders.eu.#": 2}


def test_rpc_between_two_connections(uri, connection, name):
    ready, stop = threading.Event(), threading.Event()

    def serve():
        server = pika.BlockingConnection(pika.URLParameters(uri))
        channel = server.channel()
        channel.queue_declare(name, auto_delete=True)
        ready.set()
        for method, properties, body in channel.consume(name, inactivity_timeout=0.1):
            if stop.is_set():
                break
            if method is not None:
                reply = pika.BasicProperties(correlation_id=properties.correlation_id)
                channel.basic_publish("", properties.reply_to, body.upper(), reply)
                channel.basic_ack(method.delivery_tag)
        server.close()

    worker = threading.Thread(target=serve)
    worker.start()
    try:
        assert ready.wait(10)
        channel = connection.channel()
        replies = channel.queue_declare("", exclusive=True).method.queue
        for n in range(50):
            properties = pika.BasicProperties(reply_to=replies, correlation_id=str(n))
            channel.basic_publish("", name, f"hello {n}".encode(), properties)
            _, got, body = next(channel.consume(replies, auto_ack=True, inactivity_timeout=5))
            assert got is not None and (got.correlation_id, body) == (str(n), f"HELLO {n}".encode())
    finally:
        stop.set()
        worker.join()


def test_body_of_three_mebibytes(connection, name):
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    body = bytes(range(256)) * 12288
    channel.basic_publish("", name, body, PERSISTENT)
    _, _, got = channel.basic_get(name, auto_ack=True)
    assert got == body
