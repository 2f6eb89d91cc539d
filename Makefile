# The project's commands, each one line to type. Details: CONTRIBUTING.md.
.PHONY: server test check matrices page-test page-pictures page-measure page-beside lab-pages conformance applications migration upgrade-test torture bench examples fuzz dist static image deb verify-packages beside

# Starts the broker: AMQP on 5672, data in ./data.
server:
	cargo run --release -p leveret -- server

# Installs what the tests need and runs all of them.
test:
	cargo xtask test

# Everything quick before a commit.
check:
	cargo xtask check

# The whole of the matrices whose quick parts are among the tests (minutes; MATRICES=restart for one of them).
matrices:
	cargo xtask matrices $(MATRICES)

# The management page in a headless Chromium, by clicks, of one node and of three (minutes; needs node 20 with npm and a chromium; SHOTS=folder keeps screenshots).
page-test:
	cargo build --locked --workspace --bin leveret
	cd tests/page && npm ci --omit=optional --no-fund --no-audit && node --test --test-timeout=1200000 --test-concurrency=1 page.test.mjs cluster.test.mjs

# The pictures of the page in README.md and docs/page.md anew (a quarter of an hour; needs node 20 with npm and a chromium).
page-pictures:
	cargo build --locked --workspace --bin leveret
	cd tests/page && npm ci --omit=optional --no-fund --no-audit && node pictures.mjs ../../docs/images

# What the page costs with 10,000 queues and 2,000 connections (six minutes on a quiet machine; LEVERET_BIN=a release build; needs node 20
# with npm and a chromium).
page-measure:
	cd tests/page && npm ci --omit=optional --no-fund --no-audit && node measure.mjs

# RabbitMQ's page and ours: pictures of both into docs/images/beside, and how quick both are with 10,000 queues (a quarter of an hour on a
# quiet machine; LEVERET_BIN=a release build; needs Debian's rabbitmq-server, or RABBITMQ_TEST_ROOT, node 20 with npm and a chromium).
page-beside:
	cd tests/page && npm ci --omit=optional --no-fund --no-audit && node beside.mjs ../../docs/images/beside

# Client libraries' own test suites against this broker (tens of minutes; needs root for network namespaces, go, a JRE and maven).
conformance:
	tests/conformance/run.sh $(SUITES)

# What RabbitMQ 3.10.8 and this broker answer over HTTP, field by field, and what their metrics are called (a minute; needs Debian's
# rabbitmq-server, and a python3 that has pika: PYTHON).
beside:
	tests/conformance/beside.sh

# A Celery worker and services in Node, Java, Go, Ruby and PHP against this broker, which is killed under each of them (minutes; needs
# python3 with venv, node with npm, a JDK and maven, go; Ruby and PHP come from Debian's packages).
applications:
	tests/applications/run.sh $(APPLICATIONS)

# From RabbitMQ to a broker of ours under load, as docs/migrating-from-rabbitmq.md says (a minute or two; needs Debian's rabbitmq-server and
# python3 with venv).
migration:
	tests/migration/run.sh

# Three nodes of an earlier build go over to this one in turn, under load, and one of them back in the middle (minutes; EARLIER=the commit
# of that build, or LEVERET_OLD=its binary; needs python3 with venv).
upgrade-test:
	tests/upgrade/run.sh

# Three nodes in network namespaces under kills, cuts and bad disks, judged by what clients saw (needs root and go; MINUTES=120 for longer,
# TORTURE="--broker rabbitmq" for RabbitMQ).
MINUTES = 5
torture:
	TORTURE_MINUTES=$(MINUTES) tests/torture/run.sh $(TORTURE)

# RabbitMQ 3.10.8 and Leveret in one run, with the table of ratios (tens of minutes; BENCH=smoke|short|full).
bench:
	bench/run.sh

# The pages of docs/examples anew, unattended (20 to 30 minutes on a machine that does nothing else; root; SECONDS_A_RUN=30 for longer
# windows, LIMIT_MINUTES=20 to end by then, DRY=1 to see what it would run).
examples:
	bench/examples.sh $(EXAMPLES)

# The pages of bench and sizing in a headless Chromium, against their goldens (a minute; needs node with npm, and chromium).
lab-pages:
	tests/page/lab.sh

# Each fuzz target for SECONDS=60.
SECONDS = 60
fuzz:
	fuzz/run.sh $(SECONDS)

# Scripts, the unit and the Helm chart, without building what is packed (seconds; helm is built once where there is none: needs go).
verify-packages:
	packaging/verify.sh

# The program as it is handed out, without symbols (many minutes).
dist:
	packaging/binary.sh

# The same against musl: it needs nothing of the system it runs on (many minutes; needs Debian's musl-tools and
# `rustup target add x86_64-unknown-linux-musl`).
static:
	packaging/static.sh

# A container image of the static binary, TAG=leveret:0.1.0 (BUILDER=podman, buildah or docker).
TAG = leveret
image: static
	packaging/container/build.sh target/$$(uname -m)-unknown-linux-musl/dist/leveret $(TAG)

# A Debian package of the program, in target/deb.
deb: dist
	packaging/debian/build.sh target/dist/leveret target/deb
