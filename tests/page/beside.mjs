// RabbitMQ's management page and ours beside each other: `node beside.mjs FOLDER [rabbitmq|leveret]` (`make page-beside`).
//
// Each broker in turn gets the same queues and the same load, in a browser of the same size: five pictures of each page in the
// light theme and five of ours in the dark one go into FOLDER, and then, with 10,000 queues, how quick both are is printed as a
// table. RabbitMQ is Debian's, on a folder and ports of its own (`tests/rabbitmq.sh`; RABBITMQ_TEST_ROOT names the root of a system
// with another release), ours the newest in the target folder or LEVERET_BIN. ROUNDS=5 is how often each time is taken (the middle
// one counts), QUEUES=10000 how long the list is, PICTURES=no or TIMES=no leaves a part out.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { apiOf, binary, browse, client, freePort, root, start, until, wait } from "./harness.mjs";

const [into = "beside", only] = process.argv.slice(2);
const ROUNDS = Number(process.env.ROUNDS ?? 5);
const MANY = Number(process.env.QUEUES ?? 10_000);
const LISTED = 1_000;
const WIDTH = 1300, HEIGHT = 900;
const PATIENCE = 120_000;

/** What is clicked and waited for on either page. */
const PAGES = {
  rabbitmq: {
    field: "input[name=username]", button: "input[type=submit]", ready: "#main h1", row: "#main table.list a[href^=\"#/queues/\"]",
    scenes: async (api) => [["overview", "#/"], ["queues", "#/queues"], ["queue", "#/queues/%2F/payments"], ["node", `#/nodes/${encodeURIComponent((await api("GET", "overview")).node)}`], ["connections", "#/connections"]],
    next: async (page) => { await page.select("#queues-page", "2"); },
    byLength: (page) => page.click(".sort[sort=messages]"),
    filter: async (page, text) => { await page.type("#queues-name", text); await page.keyboard.press("Enter"); },
    // Charts of one queue are folded until somebody opens them.
    unfold: (page) => page.evaluate(() => document.querySelectorAll("#main .section-hidden h2").forEach((head) => { if (/^Overview/.test(head.textContent)) head.click(); })),
  },
  leveret: {
    field: ".login input[name=name]", button: ".login button.primary", ready: "main h1", row: "tbody td.name a[href^=\"#/queues/\"]",
    scenes: async (api) => [["overview", "#/"], ["queues", "#/queues"], ["queue", "#/queues/%2F/payments"], ["node", `#/nodes/${encodeURIComponent((await api("GET", "overview")).node)}`], ["connections", "#/connections"]],
    next: (page) => page.click("button[aria-label='Next page']"),
    byLength: (page) => page.evaluate(() => [...document.querySelectorAll("th button.sort")].find((one) => one.textContent.startsWith("Total")).click()),
    filter: async (page, text) => { await page.focus("[data-main-search]"); await page.keyboard.type(text); },
    unfold: async () => {},
  },
};

const name = (at) => `orders.${String(at).padStart(5, "0")}`;
const median = (all) => all.toSorted((a, b) => a - b)[all.length >> 1];

/** RabbitMQ on a folder of its own. */
async function rabbitmq(folder) {
  const amqp = 20_000 + ((await freePort()) % 5_000) * 2;
  const env = { ...process.env, RABBITMQ_TEST_FOLDER: join(folder, "rabbitmq"), RABBITMQ_TEST_PORT: String(amqp) };
  const control = (verb) => execFileSync(join(root, "tests/rabbitmq.sh"), [verb], { env, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] }).trim();
  const end = async () => { control("stop"); rmSync(`${process.env.RABBITMQ_TEST_ROOT ?? ""}${folder}`, { recursive: true, force: true }); };
  try { control("start"); } catch (error) { await end().catch(() => {}); throw error; }
  const base = `http://127.0.0.1:${amqp + 1}/`;
  const api = apiOf(base);
  const { rabbitmq_version: version } = await api("GET", "overview");
  return { amqp, base, api, title: `RabbitMQ ${version}`, end };
}

async function leveret(folder) {
  const broker = await start(join(folder, "data"));
  return { ...broker, title: `Leveret ${(await broker.api("GET", "overview")).leveret_version}` };
}

/** A window with nothing in its cache, at the login. */
async function window(browser, broker, theme) {
  const page = await (await browser.createBrowserContext()).newPage();
  page.setDefaultTimeout(PATIENCE);
  await page.setViewport({ width: WIDTH, height: HEIGHT });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }, { name: "prefers-reduced-motion", value: "reduce" }]);
  await page.goto(broker.base);
  return page;
}

async function login(page, how) {
  await page.waitForSelector(how.field);
  await page.type(how.field, "guest");
  await page.type("input[name=password]", "guest");
  await page.click(how.button);
  await page.waitForSelector(how.ready);
  await page.waitForFunction((field) => !document.querySelector(field), {}, how.field);
}

/** The same queues, clients and messages for either. */
async function load(broker) {
  const { api, amqp } = broker;
  await api("PUT", "exchanges/%2F/orders", { type: "topic", durable: true });
  await declare(api, 0, LISTED);
  const uri = `amqp://guest:guest@127.0.0.1:${amqp}/%2F`;
  const bench = (...more) => spawn(binary(), ["bench", "--uri", uri, "--time", "3600", "--size", "256", ...more], { stdio: "ignore" });
  // The first is a backlog that grows a little; the second keeps up.
  const benches = [
    bench("--quorum-queue", "--queue", "payments", "--producers", "2", "--rate", "150", "--confirm", "100", "--consumers", "2", "--consumer-rate", "140", "--qos", "50"),
    bench("--flag", "persistent", "--auto-delete", "false", "--queue", "shipments", "--rate", "100", "--confirm", "100", "--qos", "50"),
  ];
  const sockets = await Promise.all(Array.from({ length: 30 }, () => client(amqp)));
  await until("messages flow", async () => (await api("GET", "queues/%2F/payments")).consumers === 2, PATIENCE);
  return () => { benches.forEach((one) => one.kill("SIGKILL")); sockets.forEach((one) => one.destroy()); };
}

/** Durable classic queues from one number to another, each bound to the exchange `orders`. */
async function declare(api, from, to) {
  const numbers = Array.from({ length: to - from }, (_, at) => from + at);
  const queues = numbers.map((at) => ({ name: name(at), vhost: "/", durable: true, auto_delete: false, arguments: { "x-queue-type": "classic" } }));
  const bindings = numbers.map((at) => ({ source: "orders", vhost: "/", destination: name(at), destination_type: "queue", routing_key: `order.${at}.#`, arguments: {} }));
  await api("POST", "definitions", { queues, bindings });
  for (const at of numbers.slice(0, 20)) await api("POST", "exchanges/%2F/amq.default/publish", { routing_key: name(at), payload: "an order", payload_encoding: "string", properties: { delivery_mode: 2 } });
}

async function pictures(browser, broker, which) {
  const how = PAGES[which];
  const end = await load(broker);
  try {
    for (const theme of which === "leveret" ? ["light", "dark"] : ["light"]) {
      const page = await window(browser, broker, theme);
      await login(page, how);
      // A minute for the charts to have something to show.
      await wait(theme === "light" ? 75 : 0);
      for (const [scene, hash] of await how.scenes(broker.api)) {
        await page.evaluate((to) => { location.hash = to; }, hash);
        await page.waitForSelector(how.ready);
        await wait(2);
        await how.unfold(page);
        await wait(14);
        await page.screenshot({ path: join(into, `${which}-${scene}${theme === "dark" ? "-dark" : ""}.webp`), type: "webp", quality: 60 });
      }
      await page.browserContext().close();
    }
  } finally {
    end();
  }
}

/** Milliseconds of each step, as a user waits for it, and how much comes over the network for the page itself. */
async function times(browser, broker, which) {
  const how = PAGES[which];
  const taken = new Map();
  const took = (what, value) => taken.set(what, [...(taken.get(what) ?? []), value]);
  const paint = (page) => page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime);
  // Each step is told, so that one that hangs is known.
  const timed = async (what, doing) => { process.stderr.write(`${which}: ${what}\n`); const begun = performance.now(); await doing(); took(what, performance.now() - begun); };
  const rows = (page, ask, value) => page.waitForFunction((row, test, wanted) => { const all = globalThis.isOld ? [] : [...document.querySelectorAll(row)].map((one) => one.textContent); return { any: all.length > 0, changed: all.length > 0 && all[0] !== wanted, one: all.length === 1 && all[0] === wanted, is: all[0] === wanted }[test]; }, { polling: "raf" }, how.row, ask, value);
  for (let round = 0; round < ROUNDS; round += 1) {
    const page = await window(browser, broker, "light");
    await page.waitForSelector(how.field);
    took("first paint, nothing in the browser's cache", await paint(page));
    took("KiB over the network for that", await page.evaluate(() => [...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation")].reduce((sum, one) => sum + one.transferSize, 0) / 1024));
    await timed("from the login to the overview", () => login(page, how));
    await timed("from there to the first rows of the list", async () => { await page.evaluate(() => { location.hash = "#/queues"; }); await rows(page, "any"); });
    await timed("loaded again on the list, until its rows are there", async () => { await page.evaluate(() => { globalThis.isOld = true; location.reload(); }); await rows(page, "any"); });
    took("first paint of that", await paint(page));
    const first = await page.$eval(how.row, (one) => one.textContent);
    await timed("sorted by messages", async () => { await how.byLength(page); await rows(page, "changed", first); });
    const top = await page.$eval(how.row, (one) => one.textContent);
    await timed("the next page of the list", async () => { await how.next(page); await rows(page, "changed", top); });
    await page.evaluate(() => { location.hash = "#/"; });
    await wait(1);
    await page.evaluate(() => { location.hash = "#/queues"; });
    await rows(page, "any");
    await timed("filtered down to one of them", async () => { await how.filter(page, name(Math.floor(MANY * 0.7777))); await rows(page, "one", name(Math.floor(MANY * 0.7777))); });
    await page.browserContext().close();
  }
  return new Map([...taken].map(([what, all]) => [what, Math.round(median(all))]));
}

mkdirSync(into, { recursive: true });
assert.ok([undefined, "rabbitmq", "leveret"].includes(only), "beside.mjs FOLDER [rabbitmq|leveret]");
const columns = [];
for (const which of only ? [only] : ["rabbitmq", "leveret"]) {
  const folder = mkdtempSync(join(tmpdir(), "page-beside-"));
  let broker, browser;
  try {
    broker = await { rabbitmq, leveret }[which](folder);
    browser = await browse();
    if (process.env.PICTURES !== "no") await pictures(browser, broker, which);
    if (process.env.TIMES !== "no") {
      await broker.api("PUT", "exchanges/%2F/orders", { type: "topic", durable: true });
      for (let at = 0; at < MANY; at += 1_000) await declare(broker.api, at, Math.min(MANY, at + 1_000));
      await wait(20);
      columns.push([broker.title, await times(browser, broker, which)]);
    }
  } finally {
    await browser?.close();
    await broker?.end();
    rmSync(folder, { recursive: true, force: true });
  }
}
if (columns.length > 0) {
  console.log(`\n| ${MANY.toLocaleString("en")} queues, ms unless said | ${columns.map(([title]) => title).join(" | ")} |`);
  console.log(`|---|${columns.map(() => "--:").join("|")}|`);
  for (const what of columns[0][1].keys()) console.log(`| ${what} | ${columns.map(([, all]) => all.get(what).toLocaleString("en")).join(" | ")} |`);
}
