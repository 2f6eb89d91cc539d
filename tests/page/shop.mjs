// A shop that runs on three nodes, for pictures of the page that look like somebody's day: services with names that publish and
// consume at rates that swing, quorum queues of which some fall behind and catch up again, a few dead letters, and a queue that
// nobody has looked at.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client } from "./amqp.mjs";
import { freePort, start, until } from "./harness.mjs";

const NODES = [1, 2, 3].map((number) => `leveret@shop-${number}`);
const REGIONS = ["eu", "us", "asia"];
const EXCHANGES = { orders: "topic", payments: "topic", notices: "fanout", "dead-letters": "fanout" };
/** Each queue with the exchange and the key that fill it. */
const QUEUES = [
  ...REGIONS.map((region) => [`orders.${region}`, "orders", `order.*.${region}`]),
  ["invoices", "orders", "order.placed.*"], ["warehouse", "orders", "order.placed.*"], ["shipping", "orders", "order.packed.*"], ["search-index", "orders", "#"],
  ["payments.capture", "payments", "capture"], ["payments.refund", "payments", "refund"], ["fraud-check", "payments", "#"], ["ledger", "payments", "#"],
  ["emails", "notices", ""], ["push", "notices", ""], ["dead-letters", "dead-letters", ""],
];
/** Who publishes: to which exchange, with which keys in turn, how many messages a second, and in how many seconds that swings. */
const PUBLISHERS = [
  ["web-shop-1", "orders", REGIONS.map((region) => `order.placed.${region}`), 60, 300], ["web-shop-2", "orders", REGIONS.map((region) => `order.placed.${region}`), 45, 260],
  ["packing", "orders", REGIONS.map((region) => `order.packed.${region}`), 30, 200], ["checkout", "payments", ["capture", "capture", "capture", "refund"], 70, 280],
  ["accounts", "notices", [""], 24, 180], ["cron", "", ["reports"], 0.4, 60], ["gateway", "", ["audit"], 35, 240],
];
/** Who consumes: from which queue, and how many messages a second at most; what comes above that waits. */
const CONSUMERS = [
  ...REGIONS.flatMap((region) => [[`orders-${region}-1`, `orders.${region}`, 60], [`orders-${region}-2`, `orders.${region}`, 60]]),
  ["invoicing", "invoices", 112], ["picker-1", "warehouse", 80], ["picker-2", "warehouse", 80], ["carrier", "shipping", 60], ["indexer", "search-index", 143],
  ["payment-api", "payments.capture", 90], ["payment-api", "payments.refund", 60], ["fraud-model", "fraud-check", 76], ["bookkeeping", "ledger", 200],
  ["mailer", "emails", 24], ["push-sender", "push", 120], ["archiver", "audit", 90],
];
/** One message in so many of the captures is refused, and one is given back and comes again. */
const REFUSED_EACH = 400, AGAIN_EACH = 300;
const BODY = JSON.stringify({ order: 48_213, customer: "c-90177", total: "129.90", currency: "EUR", lines: Array.from({ length: 6 }, (_, at) => ({ sku: `SKU-${1000 + at}`, count: 1 + at })) });
const TURN_MS = 50;

/** Three nodes with everything declared, and its clients at work until `end`. */
export async function open() {
  const folder = mkdtempSync(join(tmpdir(), "leveret-shop-"));
  const nodes = [], clients = [], timers = [];
  const end = async () => {
    timers.forEach(clearInterval);
    clients.forEach((client) => client.end());
    await Promise.all(nodes.map((node) => node.end()));
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    writeFileSync(join(folder, "secret"), "a secret of three nodes\n");
    const addresses = (await Promise.all(NODES.map(freePort))).map((port) => `127.0.0.1:${port}`).sort();
    const begin = (name, at) => start(join(folder, `data${at}`), ["--cluster-peers", addresses.join(","), "--cluster-address", addresses[at], "--cluster-secret-file", join(folder, "secret"), "--node-name", name, "--partitions", "4"]);
    nodes.push(...await Promise.all(NODES.map(begin)));
    const { api } = nodes[0];
    await until("three nodes run", async () => (await api("GET", "nodes")).filter((node) => node.running).length === NODES.length);
    const leaders = async () => new Set((await api("GET", "leveret/cluster")).partitions.filter((one) => one.kind !== "topology").map((one) => one.leader));
    await until("each node leads a partition", async () => (await leaders()).size === NODES.length);
    await declare(nodes.map((node) => node.api));
    for (const [at, of] of PUBLISHERS.entries()) await publish(nodes[at % NODES.length].amqp, ...of);
    for (const [at, of] of CONSUMERS.entries()) await consume(nodes[at % NODES.length].amqp, ...of);
  } catch (error) {
    await end();
    throw error;
  }
  return { base: nodes[0].base, api: nodes[0].api, end };

  async function connect(port, name) {
    const client = await Client.open(port, name);
    clients.push(client);
    await client.channel();
    client.failed = (error) => { throw error; };
    return client;
  }

  async function publish(port, name, exchange, keys, rate, period) {
    const client = await connect(port, name);
    await client.confirm();
    const begun = performance.now();
    let due = 0, count = 0, last = begun;
    timers.push(setInterval(() => {
      const now = performance.now(), wave = Math.sin(((now - begun) / 1000 / period) * 2 * Math.PI) + 0.25 * Math.sin(((now - begun) / 47_000) * 2 * Math.PI);
      due += rate * (1 + 0.35 * wave) * ((now - last) / 1000) * (0.7 + 0.6 * Math.random());
      last = now;
      for (; due >= 1; due -= 1, count += 1) client.publish(exchange, keys[count % keys.length], BODY);
    }, TURN_MS));
  }

  async function consume(port, name, queue, most) {
    const client = await connect(port, name);
    const held = [];
    await client.consume(queue, name, Math.max(10, Math.round(most / 4)), (deliveryTag) => held.push(deliveryTag));
    let allowed = 0, last = performance.now();
    timers.push(setInterval(() => {
      const now = performance.now();
      allowed = Math.min(allowed + most * ((now - last) / 1000), Math.max(1, most * 0.2));
      last = now;
      for (; allowed >= 1 && held.length > 0; allowed -= 1) {
        const deliveryTag = held.shift();
        if (queue === "payments.capture" && deliveryTag % REFUSED_EACH === 0) client.reject(deliveryTag, false);
        else if (queue === "payments.capture" && deliveryTag % AGAIN_EACH === 0) client.reject(deliveryTag, true);
        else client.ack(deliveryTag);
      }
    }, TURN_MS));
  }
}

async function declare(apis) {
  const [api] = apis;
  const own = { vhost: "/", durable: true, auto_delete: false };
  const everything = { configure: ".*", write: ".*", read: ".*" };
  // A fresh broker has its user guest only until definitions come in.
  await api("PUT", "users/guest", { password: "guest", tags: "administrator" });
  await api("PUT", "permissions/%2F/guest", everything);
  // Who is asked leads a queue: each node in turn.
  const queues = [...QUEUES.map(([name]) => [name, {}]), ["audit", {}], ["reports", { "x-max-length": 1000 }]];
  for (const [at, [name, more]] of queues.entries()) await apis[at % apis.length]("PUT", `queues/%2F/${name}`, { durable: true, arguments: { "x-queue-type": "quorum", ...more } });
  await api("POST", "definitions", {
    exchanges: Object.entries(EXCHANGES).map(([name, type]) => ({ ...own, name, type, internal: false, arguments: {} })),
    bindings: QUEUES.map(([destination, source, routing_key]) => ({ source, vhost: "/", destination, destination_type: "queue", routing_key, arguments: {} })),
    policies: [{ vhost: "/", name: "payments", pattern: "^payments\\.", "apply-to": "queues", priority: 1, definition: { "dead-letter-exchange": "dead-letters", "delivery-limit": 5 } }],
  });
  await api("PUT", "cluster-name", { name: "shop" });
  const copies = async () => (await api("GET", "queues?columns=leader,online")).every((one) => one.leader && one.online?.length === NODES.length);
  await until("every queue has its copies", copies);
}
