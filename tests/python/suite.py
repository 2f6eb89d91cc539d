"""A client library's own tests against a broker of ours: `suite.py kombu` or `suite.py py-amqp`.

    LEVERET_NODES=3 suite.py kombu                        on three nodes, each connection on another
    LEVERET_NODES=3 LEVERET_KILLS=yes suite.py kombu      on the first of three nodes, the other two of which are killed in turn

Invariant: the tests are those of the library's source distribution, untouched, of the version that is installed; what is left
out is named here with its reason."""

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import trustme
from conftest import Server, free_port, is_killing
from kills import Kills

# The package, where its tests are, and which of these. Left out are two that need a public host, and those that fail to connect to nobody.
SUITES = {
    "kombu": ("kombu", "t/integration/test_py_amqp.py", "not test_failed_"),
    "py-amqp": ("amqp", "t/integration", "not default_certs"),
}


# A suite is run again until so many nodes were killed.
KILLS_MIN = 20
# How often a test may be tried while nodes are killed.
TRIES_MAX = 3


def source(package):
    """The folder of the package's source distribution, fetched once."""
    version = importlib.metadata.version(package)
    folder = pathlib.Path(sys.prefix) / "src"
    unpacked = folder / f"{package}-{version}"
    if not unpacked.exists():
        with tempfile.TemporaryDirectory() as download:
            pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:"]
            subprocess.run([*pip, "-d", download, f"{package}=={version}"], check=True)
            with tarfile.open(next(pathlib.Path(download).iterdir())) as archive:
                archive.extractall(folder, filter="data")
    return unpacked


def certificates(folder):
    """An authority's certificate, a client's, one of nobody's, where py-amqp's tests look for them; and the broker's."""
    folder.mkdir(exist_ok=True)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca_certificate.pem")
    for name, certificate in [
        ("server", authority.issue_cert("localhost", "127.0.0.1")),
        ("client", authority.issue_cert("client@example.org")),
        ("broken", trustme.CA().issue_cert("client@example.org")),
    ]:
        prefix, suffix = ("client", "_broken") if name == "broken" else (name, "")
        (folder / f"{prefix}_certificate{suffix}.pem").write_bytes(b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
        certificate.private_key_pem.write_to_path(folder / f"{prefix}_key{suffix}.pem")


def run_under_kills(server, command, folder, environment):
    """Runs the tests again and again until KILLS_MIN nodes were killed. What fails, since it waits for a second at most or holds on to a
    name that a kill had not let go yet, has to pass when it is run again, under kills too."""
    kills, status, again = Kills(server), 0, 0
    command = [*command, "-o", f"cache_dir={server.folder / 'cache'}"]
    while status == 0 and kills.count < KILLS_MIN and not kills.failure:
        status = subprocess.run(command, cwd=folder, env=environment).returncode
        for _ in range(TRIES_MAX - 1):
            if status == 1:
                failed = json.loads((server.folder / "cache/v/cache/lastfailed").read_text())
                print(f"run again: {' '.join(failed)}", file=sys.stderr)
                again += len(failed)
                status = subprocess.run([*command, "--last-failed"], cwd=folder, env=environment).returncode
    kills.end()
    print(f"{kills.count} kills (seed {kills.seed}), {again} tests were run again", file=sys.stderr)
    return status


def main():
    package, tests, which = SUITES[sys.argv[1]]
    folder = source(package)
    certs = folder / "t/certs"
    certificates(certs)
    tls_port = free_port()
    with tempfile.TemporaryDirectory() as data:
        server = Server(
            pathlib.Path(data),
            "--amqps", f"127.0.0.1:{tls_port}", "--tls-certificate", certs / "server_certificate.pem", "--tls-key", certs / "server_key.pem",
            "--tls-ca", certs / "ca_certificate.pem", "--tls-verify", "optional",
        )  # fmt: skip
        environment = os.environ | {
            "RABBITMQ_HOST": "127.0.0.1",
            "RABBITMQ_5672_TCP": str(server.port),
            "RABBITMQ_5671_TCP": str(tls_port),
        }
        command = [sys.executable, "-m", "pytest", "-q", "--disable-warnings", "--timeout", "60", "-k", which, tests, *sys.argv[2:]]
        try:
            if is_killing():
                status = run_under_kills(server, command, folder, environment)
            else:
                status = subprocess.run([*command, "-p", "no:cacheprovider"], cwd=folder, env=environment).returncode
            server.stop()
        finally:
            for process in server.processes:
                process.kill()
    sys.exit(status)


if __name__ == "__main__":
    main()
