"""TLS as Python's clients speak it: both versions, certificates of clients, and certificates that change."""

import json
import signal
import socket
import ssl

import amqp
import pika
import pytest
import trustme
from conftest import free_port
from cryptography import x509
from test_access import user

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class Secured:
    """A broker with TLS, its authority, and a user who logs in by certificate."""

    def __init__(self, start, folder):
        self.authority, self.folder, self.tls_port = trustme.CA(), folder, free_port()
        self.issue()
        self.authority.cert_pem.write_to_path(folder / "ca.pem")
        self.client = self.authority.issue_cert("ann@example.org", common_name="ann")
        subject = x509.load_pem_x509_certificate(self.client.cert_chain_pems[0].bytes()).subject
        ann = user("ann") | {"name": subject.rfc4514_string(), "password_hash": ""}
        rights = {"vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
        file = {
            "users": [ann, user("sue")],
            "vhosts": [{"name": "/"}],
            "permissions": [{"user": ann["name"], **rights}, {"user": "sue", **rights}],
        }
        (folder / "definitions.json").write_text(json.dumps(file))
        self.server = start(
            "--amqps", f"127.0.0.1:{self.tls_port}",
            "--tls-certificate", folder / "server.pem", "--tls-key", folder / "key.pem", "--tls-ca", folder / "ca.pem",
            "--tls-verify", "optional", "--auth-mechanisms", "PLAIN,AMQPLAIN,EXTERNAL",
            "--definitions", folder / "definitions.json",
        )

    def issue(self):
        certificate = self.authority.issue_cert("localhost", "127.0.0.1")
        (self.folder / "server.pem").write_bytes(b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
        certificate.private_key_pem.write_to_path(self.folder / "key.pem")

    def context(self, version="1.3", client=None):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = context.maximum_version = VERSIONS[version]
        self.authority.configure_trust(context)
        if client is not None:
            client.configure_cert(context)
        return context

    def connect(self, context, credentials):
        options = pika.SSLOptions(context, "localhost")
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.tls_port, "/", credentials, ssl_options=options))

    def certificate(self):
        """The certificate that a new connection sees."""
        with socket.create_connection(("127.0.0.1", self.tls_port), timeout=20) as raw:
            with self.context().wrap_socket(raw, server_hostname="localhost") as secured:
                return secured.getpeercert(binary_form=True)


@pytest.fixture
def secured(start, tmp_path):
    secured = Secured(start, tmp_path)
    yield secured
    secured.server.stop()


SUE = pika.PlainCredentials("sue", "sue-pw")


def test_no_session_ticket_follows_a_handshake(secured):
    # Java's NIO transport gives a connection up where one does.
    with socket.create_connection(("127.0.0.1", secured.tls_port), timeout=20) as raw:
        with secured.context().wrap_socket(raw, server_hostname="localhost") as client:
            client.sendall(b"AMQP\x00\x00\x09\x01")
            assert client.recv(1) == b"\x01", "connection.start, so whatever the handshake brought was read"
            assert not client.session.has_ticket


@pytest.mark.parametrize("version", VERSIONS)
def test_messages_of_every_size_go_through_both_versions(secured, version):
    channel = secured.connect(secured.context(version), SUE).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    bodies = [b"x" * size for size in (0, 1, 16_384, 131_065, 3_000_000)] + [b"%d" % n for n in range(300)]
    for body in bodies:
        channel.basic_publish("", "q", body)
    channel.basic_qos(prefetch_count=50)
    seen = []
    for method, _, body in channel.consume("q", inactivity_timeout=20):
        assert method is not None, "a message is due"
        seen.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(seen) == len(bodies):
            break
    assert seen == bodies
    channel.connection.close()


def test_py_amqp_speaks_tls(secured):
    options = {"ca_certs": str(secured.folder / "ca.pem"), "server_hostname": "localhost"}
    with amqp.Connection(f"127.0.0.1:{secured.tls_port}", userid="sue", password="sue-pw", ssl=options) as connection:
        channel = connection.channel()
        channel.queue_declare("from-py-amqp", durable=True, auto_delete=False)
        channel.basic_publish_confirm(amqp.Message("hello"), routing_key="from-py-amqp")
        assert channel.basic_get("from-py-amqp", no_ack=True).body == "hello"


def test_a_certificate_is_a_login_and_a_wrong_one_is_none(secured):
    client = secured.client
    external = pika.credentials.ExternalCredentials()
    connection = secured.connect(secured.context(client=client), external)
    connection.channel().queue_declare("by-certificate", exclusive=True)
    connection.close()
    other = secured.authority.issue_cert("bob@example.org", common_name="bob")
    for context in [secured.context(client=other), secured.context()]:
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            secured.connect(context, external)
    stranger = trustme.CA().issue_cert("ann@example.org", common_name="ann")
    with pytest.raises((pika.exceptions.AMQPConnectionError, ssl.SSLError, ConnectionError)):
        secured.connect(secured.context("1.2", client=stranger), external)
    secured.connect(secured.context(client=client), SUE).close()


def test_certificates_change_without_a_restart_and_a_bad_one_keeps_the_old(secured):
    connection = secured.connect(secured.context(), SUE)
    before = secured.certificate()
    (secured.folder / "server.pem").write_text("-----BEGIN CERTIFICATE-----\nnot one\n-----END CERTIFICATE-----\n")
    secured.server.send_signal(signal.SIGHUP)
    secured.server.wait_for("certificates not changed, those before stay in use")
    assert "server.pem" in secured.server.log()
    assert secured.certificate() == before
    secured.issue()
    secured.server.send_signal(signal.SIGHUP)
    secured.server.wait_for("certificates read again")
    assert secured.certificate() != before
    assert connection.channel().queue_declare("", exclusive=True).method.queue, "open connections go on"
    assert "PRIVATE KEY" not in secured.server.log()


def test_clients_that_dawdle_at_the_door_hold_up_nobody(secured):
    dawdlers = [socket.create_connection(("127.0.0.1", secured.tls_port)) for _ in range(100)]
    for dawdler in dawdlers[::2]:
        dawdler.sendall(b"\x16\x03\x01\x02")
    for dawdler in dawdlers[1::10]:
        dawdler.sendall(b"AMQP\x00\x00\x09\x01")
    secured.connect(secured.context(), SUE).close()
    plain = pika.ConnectionParameters("127.0.0.1", secured.server.port, "/", SUE)
    pika.BlockingConnection(plain).close()
    for dawdler in dawdlers:
        dawdler.close()
