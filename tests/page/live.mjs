// Looks at the live page of a run in a headless Chromium: node live.mjs LEVERET [SHOTS]
//
// A broker is started and loaded for some seconds with --live. The page has to grow under the reader's eyes without being loaded
// again, keep what the reader unfolded and the part of a chart that is looked at, say at the end that the run passed, and ask
// nobody but the program that serves it.
import { spawn } from "node:child_process";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import puppeteer from "puppeteer-core";

const [leveret, shots] = process.argv.slice(2);
const SECONDS = 9;
const words = ["bench", "--nodes", "1", "-u", "live", "-qq", "-c", "500", "--rate", "2000", "--time", String(SECONDS), "--plain", "--live", "0"];
const bench = spawn(leveret, words, { stdio: ["ignore", "pipe", "inherit"] });
let said = "";
const ended = new Promise((done) => bench.on("exit", done));
bench.stdout.on("data", (text) => { said += text; });
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
async function until(what, ask, seconds = 20) {
  for (const end = Date.now() + seconds * 1000; Date.now() < end; await wait(50)) {
    const found = await ask();
    if (found) return found;
  }
  throw new Error(`${what} did not come: ${said.slice(-600)}`);
}

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb"],
});
const wrong = [];
try {
  const url = await until("the address", () => (said.match(/live page: (http:\S+)/) || [])[1]);
  const page = await browser.newPage();
  await page.setViewport({ width: 1300, height: 1200 });
  let loads = 0;
  page.on("console", (message) => wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error}`));
  page.on("request", (request) => {
    if (request.isNavigationRequest()) loads += 1;
    if (!request.url().startsWith(url)) wrong.push(`asks for ${request.url()}`);
  });
  await until("the load", () => / s load /.test(said));
  await page.goto(url, { waitUntil: "load" });
  const seen = () => page.evaluate(() => {
    const figure = document.querySelector("figure.chart");
    const u = figure && figure.chart;
    return {
      first: (document.querySelector(".answer .first") || {}).textContent || "",
      points: u ? u.data[0].length : 0,
      part: u ? [u.scales.x.min, u.scales.x.max] : null,
      open: [...document.querySelectorAll("details")].map((fold) => fold.open),
      tone: (document.querySelector(".answer") || {}).className,
    };
  });
  const begun = await until("a chart", async () => { const now = await seen(); return now.points > 0 && now; });
  if (!/ is under way: \d of 9 s, \d s left; [\d,.]+ of 2,000 msg\/s sent, /.test(begun.first)) wrong.push(`it says ${begun.first}`);
  // The reader looks at a part of it, and unfolds something.
  await page.evaluate(() => {
    document.querySelectorAll("details").forEach((fold) => { fold.open = true; });
    document.querySelector("figure.chart").chart.setScale("x", { min: 0.5, max: 1.5 });
  });
  const later = await until("more of it", async () => { const now = await seen(); return now.points >= begun.points + 2 && now; });
  if (later.part[0] !== 0.5 || later.part[1] !== 1.5) wrong.push(`the part that is looked at is ${later.part}`);
  if (later.open.some((open) => !open)) wrong.push("what was unfolded is folded");
  if (later.first === begun.first) wrong.push("its first line stands still");
  if (shots) {
    mkdirSync(shots, { recursive: true });
    await page.screenshot({ path: join(shots, "live-1300-light.png"), fullPage: true });
  }
  const last = await until("the end", async () => { const now = await seen(); return / held 2,000 msg\/s for /.test(now.first) && now; }, SECONDS + 30);
  if (!/good/.test(last.tone)) wrong.push(`at the end it is ${last.tone}`);
  if (loads !== 1) wrong.push(`it was loaded ${loads} times`);
  const code = await ended;
  if (code !== 0) wrong.push(`the run ended with ${code}: ${said.slice(-400)}`);
} catch (why) {
  wrong.push(String(why));
}
await browser.close();
bench.kill();
wrong.forEach((line) => console.log(line));
console.log(`live page: ${wrong.length === 0 ? "ok" : `${wrong.length} things are wrong`}`);
process.exit(wrong.length === 0 ? 0 : 1);
