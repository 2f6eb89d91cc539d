// What the page's tests and measurements share: brokers of their own, and a browser that clicks by the words a user reads.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, statSync } from "node:fs";
import { createServer } from "node:net";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import puppeteer from "puppeteer-core";
import { Client } from "./amqp.mjs";

const here = dirname(fileURLToPath(import.meta.url));
export const root = join(here, "../..");
const axe = readFileSync(join(here, "node_modules/axe-core/axe.min.js"), "utf8");
const PATIENCE = 20_000;

/** The broker that LEVERET_BIN names, or the newest that was built. */
export function binary() {
  if (process.env.LEVERET_BIN) return process.env.LEVERET_BIN;
  const folder = process.env.CARGO_TARGET_DIR ?? join(root, "target");
  const found = ["debug", "release", "dist"].map((profile) => join(folder, profile, "leveret")).filter(existsSync);
  found.sort((a, b) => statSync(b).mtimeMs - statSync(a).mtimeMs);
  assert.ok(found[0], "no leveret is built: cargo build -p leveret");
  return found[0];
}

export const freePort = () => new Promise((resolve) => { const server = createServer().listen(0, "127.0.0.1", () => { const { port } = server.address(); server.close(() => resolve(port)); }); });
export const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

/** Asks until it is so. */
export async function until(what, ask, patience = PATIENCE) {
  const end = Date.now() + patience;
  for (;;) {
    const value = await ask().catch(() => undefined);
    if (value) return value;
    assert.ok(Date.now() < end, `never: ${what}`);
    await wait(0.05);
  }
}

/** Asks the HTTP API that is at `base`. */
export const apiOf = (base) => async (method, path, body, user = "guest:guest") => {
  const response = await fetch(`${base}api/${path}`, { method, body: body === undefined ? undefined : JSON.stringify(body), headers: { authorization: `Basic ${btoa(user)}`, "content-type": "application/json" } });
  const text = await response.text();
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
  return text ? JSON.parse(text) : undefined;
};

/** Our broker on a data folder and ports of its own, once it answers. `more` are arguments of its command line. */
export async function start(data, more = [], ports = {}) {
  const amqp = ports.amqp ?? (await freePort());
  const http = ports.http ?? (await freePort());
  // What is meant for the tests is no setting of the broker.
  const { LEVERET_BIN, ...env } = globalThis.process.env;
  const process = spawn(binary(), ["server", "--data-dir", data, "--amqp", `127.0.0.1:${amqp}`, "--management", `127.0.0.1:${http}`, ...more], { stdio: "ignore", env });
  const base = `http://127.0.0.1:${http}/`;
  const api = apiOf(base);
  const broker = { process, amqp, http, base, api };
  broker.end = (signal = "SIGTERM") => new Promise((resolve) => {
    if (process.exitCode !== null || process.signalCode !== null) { resolve(); return; }
    process.once("exit", resolve);
    process.kill(signal);
  });
  await until("the broker answers", () => api("GET", "overview")).catch(async (error) => { await broker.end("SIGKILL"); throw error; });
  return broker;
}

/** A connection over AMQP that is open and does nothing. */
export const client = async (amqp) => (await Client.open(amqp)).socket;

export const browse = () => puppeteer.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });

/** A window of its own at `base`; what it says wrong is kept. */
export async function open(browser, base, { width = 1300, theme = "light", user, password } = {}) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.wrong = [];
  // A login that is refused, and what is not there, are told by the browser as errors too.
  page.on("console", (message) => { if (message.type() === "error" && !/status of (401|404|400)/.test(message.text())) page.wrong.push(message.text()); });
  page.on("pageerror", (error) => page.wrong.push(error.message));
  page.on("request", (request) => { if (!request.url().startsWith(base) && !/^(blob|data):/.test(request.url())) page.wrong.push(`asked ${request.url()}`); });
  await page.setViewport({ width, height: width < 600 ? 860 : 900 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }, { name: "prefers-reduced-motion", value: "reduce" }]);
  await page.goto(base);
  if (user !== null) await login(page, user ?? "guest", password ?? "guest");
  return page;
}

export async function login(page, user, password) {
  await page.waitForSelector(".login input[name=name]");
  await page.type(".login input[name=name]", user);
  await page.type(".login input[name=password]", password);
  await page.click(".login button.primary");
  // The login has a heading of its own.
  await page.waitForSelector(".side a");
  await page.waitForSelector("main h1");
}

export const close = async (page) => { assert.deepEqual(page.wrong, []); await page.browserContext().close(); };
export const go = async (page, hash) => {
  await page.evaluate((to) => { location.hash = to; }, hash);
  await page.waitForSelector("main h1");
  await page.waitForFunction(() => !document.querySelector("tr.waiting"));
};
/** Clicks the first button or link that is called so. */
export const press = async (page, name, within = "body") => {
  const found = await page.waitForFunction((words, scope) => {
    const box = [...document.querySelectorAll(scope)].at(-1);
    return box && [...box.querySelectorAll("button, a, summary, label")].find((one) => (one.textContent.trim() === words || one.getAttribute("aria-label") === words || one.title === words) && !one.disabled && one.getClientRects().length > 0);
  }, {}, name, within);
  await found.evaluate((element) => element.scrollIntoView({ block: "center" }));
  await found.click();
};
/** Fills the field with this label in the open window. */
export const fill = async (page, label, text, within = "dialog[open]") => {
  const field = await page.waitForFunction((words, scope) => {
    const box = [...document.querySelectorAll(scope)].at(-1);
    const found = box && [...box.querySelectorAll("label, legend")].find((one) => one.textContent.replace("*", "").trim().startsWith(words));
    return found && (found.htmlFor ? document.getElementById(found.htmlFor) : found.querySelector("input, textarea, select") ?? found.parentElement.querySelector("input"));
  }, {}, label, within);
  if (await field.evaluate((element) => element.tagName === "SELECT")) { await field.select(text); return; }
  await field.evaluate((element) => { element.focus(); element.select?.(); });
  await page.keyboard.press("Backspace");
  await field.type(text);
};
/** Types what has to be typed before something is lost. */
export const confirmBy = async (page, word) => { await page.waitForSelector("dialog[open] input.mono"); await page.type("dialog[open] input.mono", word); };
export const says = (page, text, within = "body") => page.waitForFunction((words, scope) => [...document.querySelectorAll(scope)].some((one) => one.textContent.includes(words)), {}, text, within);
export const gone = (page, selector) => page.waitForFunction((what) => !document.querySelector(what), {}, selector);

/** The policy of the page lets nobody add a script; the debugger is not bound by it. */
export const watchAccess = (page) => page.evaluate(axe);
/** It is as wide as its window, so are its lists, and it has nothing serious for axe; SHOTS=folder keeps a picture of it. Needs `watchAccess` before. */
export async function look(page, name) {
  const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(over <= 0, `${name} scrolls sideways by ${over} pixels`);
  const cut = await page.$$eval(".table-box", (all) => all.filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.querySelector("thead").textContent));
  assert.deepEqual(cut, [], `${name} has a list that is wider than its box`);
  if (process.env.SHOTS) {
    mkdirSync(process.env.SHOTS, { recursive: true });
    await page.screenshot({ path: join(process.env.SHOTS, `${name}.png`) });
  }
  const found = await page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return violations.filter((one) => ["serious", "critical"].includes(one.impact)).map((one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((node) => node.html).join(" | ")}`);
  });
  assert.deepEqual(found, [], name);
}
export const THEMES = ["light", "dark"];
export const WIDTHS = [400, 1300, 2560];
