// What the page costs with many queues and connections: `node measure.mjs [QUEUES [CONNECTIONS]]` starts a
// broker, declares and opens them, opens the page and prints: time to first paint, time until the list is there, the broker's
// processor time and memory without a page and with one that is looked at. LEVERET_BIN names the
// broker; a release build on a quiet machine is what counts.
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import puppeteer from "puppeteer-core";

const count = Number(process.argv[2] ?? 10_000);
const connections = Number(process.argv[3] ?? 2_000);
const SECONDS = Number(process.env.SECONDS ?? 60);
const root = join(dirname(fileURLToPath(import.meta.url)), "../..");
const binary = process.env.LEVERET_BIN ?? join(root, "target/debug/leveret");
const port = () => new Promise((resolve) => { const server = createServer().listen(0, "127.0.0.1", () => { const at = server.address().port; server.close(() => resolve(at)); }); });
const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const folder = mkdtempSync(join(tmpdir(), "leveret-measure-"));
const [amqp, http] = [await port(), await port()];
const base = `http://127.0.0.1:${http}/`;
const broker = spawn(binary, ["server", "--data-dir", join(folder, "data"), "--amqp", `127.0.0.1:${amqp}`, "--management", `127.0.0.1:${http}`], { stdio: "ignore" });
const headers = { authorization: `Basic ${btoa("guest:guest")}` };
const api = async (path, init) => { const answer = await fetch(`${base}api/${path}`, { headers, ...init }); if (!answer.ok) throw new Error(`${path}: ${answer.status}`); return answer; };
/** Seconds of processor time and MiB in memory. */
function cost() {
  const stat = readFileSync(`/proc/${broker.pid}/stat`, "utf8").split(") ")[1].split(" ");
  const memory = /VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${broker.pid}/status`, "utf8"))[1];
  return { seconds: (Number(stat[11]) + Number(stat[12])) / 100, mib: Math.round(memory / 1024) };
}
async function over(what, seconds) {
  const before = cost();
  await wait(seconds);
  const after = cost();
  console.log(`${what}: ${((100 * (after.seconds - before.seconds)) / seconds).toFixed(2)} % of a core over ${seconds} s, ${after.mib} MiB`);
}
/** A connection over AMQP that is open and does nothing; by hand, as a client's library is not needed for it. */
function client() {
  const short = (text) => Buffer.from([text.length, ...Buffer.from(text)]);
  const long = (text) => Buffer.concat([Buffer.from([0, 0, 0, text.length]), Buffer.from(text)]);
  const method = (...parts) => { const body = Buffer.concat(parts); const head = Buffer.alloc(7); head[0] = 1; head.writeUInt32BE(body.length, 3); return Buffer.concat([head, body, Buffer.from([0xce])]); };
  const said = [
    [method(Buffer.from([0, 10, 0, 11, 0, 0, 0, 0]), short("PLAIN"), long("\0guest\0guest"), short("en_US"))],
    [method(Buffer.from([0, 10, 0, 31, 0, 1, 0, 2, 0, 0, 0, 0])), method(Buffer.from([0, 10, 0, 40]), short("/"), Buffer.from([0, 0]))],
  ];
  return new Promise((resolve, reject) => {
    let held = Buffer.alloc(0);
    const socket = connect(amqp, "127.0.0.1", () => socket.write("AMQP\0\0\t\x01"));
    socket.on("error", reject);
    socket.on("data", (bytes) => {
      held = Buffer.concat([held, bytes]);
      while (held.length >= 8 && held.length >= held.readUInt32BE(3) + 8) {
        const number = held.readUInt16BE(9);
        held = held.subarray(held.readUInt32BE(3) + 8);
        const next = said.shift();
        if (next) next.forEach((frame) => socket.write(frame));
        else if (number === 41) resolve(socket);
        else reject(new Error(`method ${number} instead of open-ok`));
      }
    });
  });
}
try {
  for (;;) if (await api("overview").then(() => true, () => wait(0.2))) break;
  const queues = Array.from({ length: count }, (_, at) => ({ name: `orders.${String(at).padStart(5, "0")}`, vhost: "/", durable: true, auto_delete: false, arguments: { "x-queue-type": at % 2 ? "quorum" : "classic" } }));
  // A fresh broker has its user guest only until definitions come in.
  const everything = { configure: ".*", write: ".*", read: ".*" };
  await api("users/guest", { method: "PUT", body: JSON.stringify({ password: "guest", tags: "administrator" }) });
  await api("permissions/%2F/guest", { method: "PUT", body: JSON.stringify(everything) });
  await api("definitions", { method: "POST", body: JSON.stringify({ queues }) });
  const open = [];
  while (open.length < connections) open.push(...await Promise.all(Array.from({ length: Math.min(50, connections - open.length) }, client)));
  console.log(`${count} queues, ${(await (await api("overview")).json()).object_totals.connections} connections`);
  await over("no page", SECONDS);
  const browser = await puppeteer.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
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
  await browser.close();
  open.forEach((socket) => socket.destroy());
} finally {
  broker.kill("SIGTERM");
  await new Promise((resolve) => broker.once("exit", resolve));
  rmSync(folder, { recursive: true, force: true });
}
