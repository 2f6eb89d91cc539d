"""The brokers that are compared: each can be started on a fresh folder or on what is there, killed, stopped, and asked for its pids.

Invariant: only processes started here are ever signalled, and a broker's folder is wiped before it is started fresh."""

import os
import shutil
import signal
import subprocess
import time

import amqp

START_PATIENCE_S = 300
EPMD_PORT = "4371"


class Broker:
    """What RabbitMQ and Leveret have in common."""

    name = ""

    def __init__(self, out, port):
        self.folder = os.path.join(out, "data", f"{self.name}-{port}")
        self.port = port
        self.process = None

    @property
    def uri(self):
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2f"

    def start(self, keep=False):
        """Starts and waits until a channel opens; seconds that took."""
        since = time.monotonic()
        self.launch(keep)
        return amqp.wait_until(self.answers, START_PATIENCE_S, since)

    def launch(self, keep=False):
        """Starts, and does not wait."""
        assert self.process is None, "it runs already"
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder, exist_ok=True)
        command, environment = self.command()
        # The benchmark's own variable would be an unknown setting to the broker.
        surroundings = {name: value for name, value in os.environ.items() if not name.startswith("LEVERET_")}
        with open(os.path.join(self.folder, "output.log"), "ab") as log:
            self.process = subprocess.Popen(
                command, env={**surroundings, **environment}, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, cwd="/"
            )

    def answers(self):
        if self.process.poll() is not None:
            log = open(os.path.join(self.folder, "output.log"), errors="replace").read()
            raise SystemExit(f"{self.name} ended at its start ({self.process.returncode}):\n{log[-2000:]}")
        return amqp.serves(self.port)

    def pids(self):
        return [self.process.pid]

    def kill(self):
        """kill -9 of everything that belongs to it."""
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self):
        for pid in self.pids():
            os.kill(pid, signal.SIGTERM)
        try:
            self.process.wait(60)
            self.process = None
        except subprocess.TimeoutExpired:
            self.kill()

    def wipe(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class Leveret(Broker):
    """`leveret server` with its defaults."""

    name = "leveret"

    def __init__(self, out, port):
        super().__init__(out, port)
        self.binary = os.environ["LEVERET_BIN"]
        # What makes it a node among others.
        self.among_others = []

    def command(self):
        own = ["--data-dir", os.path.join(self.folder, "data"), "--amqp", f"127.0.0.1:{self.port}"]
        return [self.binary, "server", *own, *self.among_others], {}

    def version(self):
        return subprocess.run([self.binary, "--version"], capture_output=True, text=True).stdout.strip()


class RabbitMq(Broker):
    """Debian's RabbitMQ: defaults, no plugins, one node; its epmd has a port of its own."""

    name = "rabbitmq"

    def command(self):
        f = self.folder
        os.makedirs(f"{f}/home", exist_ok=True)
        for path, text in {"rabbitmq.conf": "loopback_users.guest = true\n", "enabled_plugins": "[].\n", "none.conf": ""}.items():
            open(f"{f}/{path}", "w").write(text)
        # As in the published runs: no credit between the connection and the queue.
        open(f"{f}/advanced.config", "w").write("[{rabbit,[{credit_flow_default_credit,{0,0}}]}].\n")
        environment = dict(
            HOME=f"{f}/home", RABBITMQ_NODENAME=f"bench{self.port}@localhost", RABBITMQ_NODE_PORT=str(self.port),
            RABBITMQ_NODE_IP_ADDRESS="127.0.0.1", RABBITMQ_DIST_PORT=str(self.port + 20000), RABBITMQ_MNESIA_BASE=f"{f}/mnesia",
            RABBITMQ_LOG_BASE=f"{f}/log", RABBITMQ_CONFIG_FILE=f"{f}/rabbitmq.conf", RABBITMQ_ADVANCED_CONFIG_FILE=f"{f}/advanced.config",
            RABBITMQ_ENABLED_PLUGINS_FILE=f"{f}/enabled_plugins", RABBITMQ_CONF_ENV_FILE=f"{f}/none.conf", ERL_EPMD_PORT=EPMD_PORT, LANG="C.UTF-8",
        )  # fmt: skip
        return ["/usr/lib/rabbitmq/bin/rabbitmq-server"], environment

    def control(self, *words):
        """rabbitmqctl of this node."""
        _, environment = self.command()
        call = ["/usr/lib/rabbitmq/bin/rabbitmqctl", "-q", "-n", environment["RABBITMQ_NODENAME"], *words]
        subprocess.run(call, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, check=True, capture_output=True)

    def pids(self):
        """The Erlang machine of this node, found by its own environment."""
        wanted = f"RABBITMQ_MNESIA_BASE={self.folder}/mnesia".encode()
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if open(f"/proc/{pid}/comm").read().strip() == "beam.smp" and wanted in open(f"/proc/{pid}/environ", "rb").read().split(b"\0"):
                    found.append(int(pid))
            except OSError:
                pass
        return found

    def wipe(self):
        super().wipe()
        # The name server that Erlang left behind; it stays when somebody else's node is registered there.
        subprocess.run(["epmd", "-port", EPMD_PORT, "-kill"], capture_output=True)

    def version(self):
        line = subprocess.run(["dpkg-query", "-W", "-f", "RabbitMQ ${Version}", "rabbitmq-server"], capture_output=True, text=True)
        return line.stdout.strip() or "RabbitMQ"


class Floor(Broker):
    """The least that any broker could cost here: crates/server/examples/floor.rs, in FLOOR_BIN."""

    name = "floor"
    among_others = ()

    def command(self):
        return [os.environ["FLOOR_BIN"], str(self.port), os.path.join(self.folder, "log"), *self.among_others], {}

    def says(self, words):
        """Whether it has said that it is ready. Who asked a follower would be taken for its leader."""
        if self.process.poll() is not None:
            raise SystemExit(f"the floor ended at its start ({self.process.returncode})")
        return words in open(os.path.join(self.folder, "output.log")).read()

    def version(self):
        return "the floor"


class Cluster:
    """Three nodes of one broker on one machine, as one: clients connect to the first, and what it costs is what all cost."""

    kind = None

    def __init__(self, out, port):
        self.nodes = [self.kind(out, port + at) for at in range(3)]
        self.name, self.port = self.kind.name, port

    uri = Broker.uri
    process = property(lambda self: next((node.process for node in self.nodes if node.process is not None), None))

    def start(self, keep=False):
        raise NotImplementedError

    def each(self, do):
        for node in self.nodes:
            if node.process is not None:
                do(node)

    def pids(self):
        return [pid for node in self.nodes if node.process is not None for pid in node.pids()]

    def kill(self):
        self.each(lambda node: node.kill())

    def stop(self):
        self.each(lambda node: node.stop())

    def wipe(self):
        for node in self.nodes:
            node.wipe()

    def version(self):
        return self.nodes[0].version()


class LeveretCluster(Cluster):
    """Three of Leveret, which found their cluster by themselves."""

    kind = Leveret

    def start(self, keep=False):
        since = time.monotonic()
        addresses = [f"127.0.0.1:{node.port + 20000}" for node in self.nodes]
        secret = os.path.join(os.path.dirname(self.nodes[0].folder), "secret")
        os.makedirs(os.path.dirname(secret), exist_ok=True)
        open(secret, "w").write("the secret of a benchmark\n")
        for node, address in zip(self.nodes, addresses):
            node.among_others = ["--management", "none", "--node-name", f"leveret@{node.port}", "--cluster-peers", ",".join(addresses)]
            node.among_others += ["--cluster-address", address, "--cluster-secret-file", secret]
            node.launch(keep)
        for node in self.nodes:
            amqp.wait_until(node.answers, START_PATIENCE_S, since)
        return time.monotonic() - since


class RabbitMqCluster(Cluster):
    """Three of RabbitMQ; the second and the third join the first."""

    kind = RabbitMq

    def start(self, keep=False):
        since = time.monotonic()
        for node in self.nodes:
            if not keep:
                shutil.rmtree(node.folder, ignore_errors=True)
            cookie = os.path.join(node.folder, "home", ".erlang.cookie")
            os.makedirs(os.path.dirname(cookie), exist_ok=True)
            if not os.path.exists(cookie):
                open(cookie, "w").write("BENCHMARK")
                os.chmod(cookie, 0o400)
        for at, node in enumerate(self.nodes):
            node.launch(keep=True)
            if not keep or at == 2:
                amqp.wait_until(node.answers, START_PATIENCE_S, since)
            if at > 0 and not keep:
                for words in (["stop_app"], ["join_cluster", f"bench{self.port}@localhost"], ["start_app"]):
                    node.control(*words)
        return time.monotonic() - since


class FloorCluster(Cluster):
    """Three processes of the floor: the first serves, the others follow."""

    kind = Floor

    def start(self, keep=False):
        since = time.monotonic()
        leader, *followers = self.nodes
        for node in followers:
            node.among_others = ["--follow"]
            node.launch()
        for node in followers:
            amqp.wait_until(lambda node=node: node.says("follows"), START_PATIENCE_S, since)
        leader.among_others = [str(node.port) for node in followers]
        leader.launch()
        amqp.wait_until(leader.answers, START_PATIENCE_S, since)
        return time.monotonic() - since


# NODES=3: three nodes of each on this machine.
BROKERS = {
    "1": {"rabbitmq": (RabbitMq, 5781), "leveret": (Leveret, 5791), "floor": (Floor, 5771)},
    "3": {"rabbitmq": (RabbitMqCluster, 5781), "leveret": (LeveretCluster, 5791), "floor": (FloorCluster, 5771)},
}[os.environ.get("NODES", "1")]
