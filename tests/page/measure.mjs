// What the page costs with many queues and connections: `node measure.mjs [QUEUES [CONNECTIONS]]` starts a
// broker, declares and opens them, opens the page and prints: time to first paint, time until the list is there, the broker's
// processor time and memory without a page and with one that is looked at, the management thread's (it takes the samples) and
// the shards' by themselves. LEVERET_BIN names the broker; a release build on a quiet machine is what counts.
// SECONDS=60 is how long each cost is looked at.
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { browse, client, start, wait } from "./harness.mjs";

const count = Number(process.argv[2] ?? 10_000);
const connections = Number(process.argv[3] ?? 2_000);
const SECONDS = Number(process.env.SECONDS ?? 60);
const folder = mkdtempSync(join(tmpdir(), "leveret-measure-"));
const broker = await start(join(folder, "data"));
const { api, base, amqp } = broker;
/** Seconds of processor time in all and by thread, and MiB in memory. */
function cost() {
  const own = `/proc/${broker.process.pid}`;
  const seconds = (file) => { const stat = readFileSync(file, "utf8").split(") ").at(-1).split(" "); return (Number(stat[11]) + Number(stat[12])) / 100; };
  const memory = /VmRSS:\s+(\d+)/.exec(readFileSync(`${own}/status`, "utf8"))[1];
  const threads = new Map();
  for (const thread of readdirSync(`${own}/task`)) {
    const name = readFileSync(`${own}/task/${thread}/comm`, "utf8").trim();
    threads.set(name, (threads.get(name) ?? 0) + seconds(`${own}/task/${thread}/stat`));
  }
  return { seconds: seconds(`${own}/stat`), threads, mib: Math.round(memory / 1024) };
}
async function over(what, seconds) {
  const before = cost();
  await wait(seconds);
  const after = cost();
  const share = (used) => `${((100 * used) / seconds).toFixed(2)} %`;
  const busy = [...after.threads].map(([name, used]) => [name, used - (before.threads.get(name) ?? 0)]).filter(([, used]) => used >= 0.02).sort((a, b) => b[1] - a[1]);
  console.log(`${what}: ${share(after.seconds - before.seconds)} of a core over ${seconds} s (${busy.map(([name, used]) => `${name} ${share(used)}`).join(", ") || "no thread more than 0.02 s"}), ${after.mib} MiB`);
}
let browser;
const sockets = [];
try {
  const queues = Array.from({ length: count }, (_, at) => ({ name: `orders.${String(at).padStart(5, "0")}`, vhost: "/", durable: true, auto_delete: false, arguments: { "x-queue-type": at % 2 ? "quorum" : "classic" } }));
  // A fresh broker has its user guest only until definitions come in.
  const everything = { configure: ".*", write: ".*", read: ".*" };
  await api("PUT", "users/guest", { password: "guest", tags: "administrator" });
  await api("PUT", "permissions/%2F/guest", everything);
  await api("POST", "definitions", { queues });
  while (sockets.length < connections) sockets.push(...await Promise.all(Array.from({ length: Math.min(50, connections - sockets.length) }, () => client(amqp))));
  console.log(`${count} queues, ${(await api("GET", "overview")).object_totals.connections} connections`);
  await over("no page", SECONDS);
  browser = await browse();
  const page = await browser.newPage();
  await page.setViewport({ width: 1300, height: 860 });
  const paint = () => page.evaluate(() => Math.round(performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? NaN));
  await page.goto(base);
  await page.waitForSelector(".login");
  await page.waitForFunction(() => document.activeElement?.name === "name");
  console.log(`first paint, nothing in the browser's cache: ${await paint()} ms`);
  await page.type("input[name=name]", "guest");
  await page.type("input[name=password]", "guest");
  await page.click(".login button.primary");
  await page.waitForSelector(".tile-value");
  await page.evaluate(() => { location.hash = "#/queues"; });
  await page.waitForSelector("tbody td.name");
  const listed = async (what, change) => {
    const begun = performance.now();
    await change();
    console.log(`${what}: ${Math.round(performance.now() - begun)} ms`);
  };
  await listed("the queues again, from the cache, until the list is there", async () => { await page.reload(); await page.waitForSelector("tbody td.name"); });
  console.log(`first paint of that: ${await paint()} ms`);
  const first = () => page.$eval("tbody td.name", (cell) => cell.textContent);
  await listed("the next page", async () => { const was = await first(); await page.click("button[aria-label='Next page']"); await page.waitForFunction((before) => document.querySelector("tbody td.name")?.textContent !== before, {}, was); });
  await listed("sorted by messages", async () => { const was = await page.$eval(".table-box", (box) => box.className); await page.evaluate(() => [...document.querySelectorAll("th button.sort")].find((one) => one.textContent.startsWith("Total")).click()); await page.waitForFunction(() => document.querySelector("th[aria-sort]")?.textContent.startsWith("Total") && !document.querySelector(".is-old")); return was; });
  await listed("filtered (of which 200 ms are a pause after the last letter)", async () => { await page.focus("[data-main-search]"); await page.keyboard.type("07777"); await page.waitForFunction(() => document.querySelectorAll("tbody td.name").length === 1); });
  await page.evaluate(() => { location.hash = "#/"; });
  await page.waitForSelector(".tile-value");
  await over("the overview open", SECONDS);
  await page.evaluate(() => { location.hash = "#/queues"; });
  await page.waitForSelector("tbody td.name");
  await over("the list of queues open, by name", SECONDS);
  await page.evaluate(() => { location.hash = "#/queues?sort=messages&sort_reverse=true"; });
  await wait(2);
  await over("the list of queues open, by messages", SECONDS);
  await page.evaluate(() => { location.hash = "#/connections"; });
  await page.waitForSelector("tbody td.name");
  await over("the list of connections open", SECONDS);
  console.log(`the browser's heap: ${Math.round((await page.metrics()).JSHeapUsedSize / (1 << 20))} MiB`);
} finally {
  await browser?.close();
  sockets.forEach((socket) => socket.destroy());
  await broker.end();
  rmSync(folder, { recursive: true, force: true });
}
