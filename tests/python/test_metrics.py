"""What `/metrics` says, as the strictest reader of its format takes it: one line that is wrong and it refuses the page."""

import urllib.request

import pika
import pytest
from conftest import free_port
from prometheus_client.openmetrics.parser import text_string_to_metric_families


@pytest.mark.parametrize("page", ["/metrics", "/metrics/per-object"])
def test_the_strict_parser_of_openmetrics_takes_the_page(start, page):
    port = free_port()
    server = start("--management", f"127.0.0.1:{port}")
    connection = pika.BlockingConnection(pika.URLParameters(server.uri))
    channel = connection.channel()
    channel.queue_declare('a "queue" \\ of', durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", 'a "queue" \\ of', b"synced before it is confirmed")
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}{page}").read().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    syncs = families["leveret_log_sync_seconds"]
    assert syncs.type == "histogram"
    assert any(sample.labels.get("le") == "+Inf" and sample.value >= 1 for sample in syncs.samples)
    connection.close()
