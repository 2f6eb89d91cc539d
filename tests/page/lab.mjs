// Looks at pages in a headless Chromium as a reader would: at four widths, in light and dark; and on paper.
//
//   node lab.mjs PAGES GOLDEN [SHOTS]      compare with the goldens, pictures into SHOTS if it is named
//   UPDATE=1 node lab.mjs PAGES GOLDEN     write the goldens anew
//
// Of every page of the folder PAGES it holds, at every width and in both themes, that the page does not scroll sideways, asks
// nobody anything, says nothing on the console, and that each chart is drawn within its place. What a reader can read of it, with
// everything unfolded, is the golden: GOLDEN/NAME.txt.
import { readdirSync, readFileSync, writeFileSync, existsSync, mkdirSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import puppeteer from "puppeteer-core";

const [pages, golden, shots] = process.argv.slice(2).map((folder) => resolve(folder));
const WIDTHS = [400, 1300, 2560, 3840];
const THEMES = ["light", "dark"];
const wrong = [];

// What a page is like, asked inside of it.
function look() {
  const root = document.documentElement;
  const isHidden = (element) => element.closest("details:not([open])") !== null;
  const charts = [...document.querySelectorAll("figure.chart")].filter((figure) => !isHidden(figure)).map((figure) => {
    const canvas = figure.querySelector("canvas");
    const title = figure.querySelector("figcaption > b").textContent;
    if (!canvas) return { title, colours: 0 };
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const colours = new Set();
    for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 200) colours.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
    const place = figure.getBoundingClientRect(), drawn = canvas.getBoundingClientRect();
    return { title, colours: colours.size, isOutside: drawn.right > place.right + 1 || drawn.left < place.left - 1 };
  });
  // Text that is cut off by its own box, unless that scrolls.
  const cut = [...document.querySelectorAll("h1, h2, h3, p, td, th, b, summary, .tile, .answer")]
    .filter((element) => !isHidden(element) && element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).overflowX === "hidden")
    .map((element) => element.textContent.slice(0, 60));
  return { scrolls: root.scrollWidth - root.clientWidth, charts, cut, background: getComputedStyle(document.body).backgroundColor };
}

// Contrast of the text of a page to what lies behind it, by WCAG's formula: the least, and of what.
function contrast() {
  const parse = (colour) => (colour.match(/[\d.]+/g) || [0, 0, 0]).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((part) => { part /= 255; return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; }).reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => { for (let at = element; at; at = at.parentElement) { const colour = parse(getComputedStyle(at).backgroundColor); if (colour.length === 3 || colour[3] > 0.9) return colour; } return [255, 255, 255]; };
  let least = { ratio: 99, text: "" };
  for (const element of document.querySelectorAll("h1, h2, h3, p, li, td, th, b, span, summary, figcaption, code, pre, a")) {
    if (!element.textContent.trim() || element.closest("details:not([open])") || !element.offsetParent) continue;
    const [one, two] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (ratio < least.ratio) least = { ratio, text: element.textContent.trim().slice(0, 50) };
  }
  return least;
}

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb"],
});
const names = readdirSync(pages).filter((name) => name.endsWith(".html")).sort();
if (names.length === 0) { console.error(`no page in ${pages}`); process.exit(2); }
for (const name of names) {
  const url = pathToFileURL(join(pages, name)).href;
  const page = await browser.newPage();
  const said = [];
  page.on("console", (message) => said.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => said.push(`error: ${error}`));
  page.on("request", (request) => { if (request.url() !== url) said.push(`asks for ${request.url().slice(0, 80)}`); });
  for (const width of WIDTHS) {
    for (const theme of THEMES) {
      const at = `${name} at ${width} px, ${theme}`;
      await page.setViewport({ width, height: width < 600 ? 800 : 1200, deviceScaleFactor: 1 });
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
      await page.goto(url, { waitUntil: "load" });
      // Charts are drawn when they come into view, so everything is looked at once.
      await page.evaluate(async () => {
        const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        for (let y = 0; y < document.documentElement.scrollHeight; y += innerHeight / 2) { scrollTo(0, y); await frame(); }
        scrollTo(0, 0);
        await frame();
      });
      const seen = await page.evaluate(look);
      if (seen.scrolls > 0) wrong.push(`${at}: scrolls sideways by ${seen.scrolls} px`);
      for (const chart of seen.charts) {
        // Background, lines of the grid, ink of the axes and a curve at least.
        if (chart.colours < 4) wrong.push(`${at}: the chart "${chart.title}" is not drawn`);
        if (chart.isOutside) wrong.push(`${at}: the chart "${chart.title}" is wider than its place`);
      }
      seen.cut.forEach((text) => wrong.push(`${at}: cut off: ${text}`));
      if ((theme === "dark") !== (seen.background === "rgb(13, 17, 23)")) wrong.push(`${at}: the page is ${seen.background}`);
      const least = await page.evaluate(contrast);
      if (least.ratio < 4.5) wrong.push(`${at}: contrast ${least.ratio.toFixed(1)} of "${least.text}", 4.5 is needed to read it`);
      if (shots && width < 3840) {
        mkdirSync(shots, { recursive: true });
        const high = await page.evaluate(() => document.documentElement.scrollHeight);
        // A picture has its limits; who wants to see more of a long page scrolls.
        const clip = { x: 0, y: 0, width, height: Math.min(high, 5000) };
        await page.screenshot({ path: join(shots, `${basename(name, ".html")}-${width}-${theme}.png`), clip, captureBeyondViewport: true });
      }
    }
  }
  // On paper everything is unfolded, and nothing is wider than the sheet.
  await page.setViewport({ width: 794, height: 1123 });
  await page.emulateMediaFeatures([]);
  await page.emulateMediaType("print");
  const printed = await page.evaluate(async () => {
    dispatchEvent(new Event("beforeprint"));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    const wide = [...document.querySelectorAll("canvas, pre, .tile, .answer, p")].filter((element) => element.getBoundingClientRect().right > innerWidth + 1).map((element) => element.className || element.tagName);
    const folded = document.querySelectorAll("details:not([open])").length, undrawn = [...document.querySelectorAll("figure.chart")].filter((figure) => !figure.querySelector("canvas")).length;
    dispatchEvent(new Event("afterprint"));
    return { wide, folded, undrawn };
  });
  if (printed.wide.length + printed.folded + printed.undrawn > 0) wrong.push(`${name} on paper: ${JSON.stringify(printed).slice(0, 300)}`);
  if (shots) await page.pdf({ path: join(shots, `${basename(name, ".html")}.pdf`), format: "A4", printBackground: true });
  await page.emulateMediaType("screen");
  // A crosshair over one chart shows values in the legends of all that move with it; a drag looks at a part, a double click goes back.
  await page.setViewport({ width: 1300, height: 1200 });
  const over = await page.$("figure.chart .u-over");
  if (over) {
    await over.scrollIntoView();
    const box = await over.boundingBox();
    await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
    const values = await page.evaluate(() => (document.querySelector("figure.chart .uplot.pointed .u-legend") || {}).textContent || "");
    if (!/[0-9]/.test(values)) wrong.push(`${name}: no value under the pointer: ${values}`);
    // Each chart can be taken along as a picture and as figures.
    const saved = await page.evaluate(async () => {
      const made = [], create = URL.createObjectURL;
      URL.createObjectURL = (blob) => { made.push(blob); return create(blob); };
      HTMLAnchorElement.prototype.click = function () {};
      document.querySelectorAll("figure.chart")[0].querySelectorAll(".tools button").forEach((button) => button.click());
      for (let wait = 0; made.length < 2 && wait < 100; wait++) await new Promise((done) => setTimeout(done, 20));
      return Promise.all(made.sort((a, b) => (a.type < b.type ? -1 : 1)).map(async (blob) => [blob.type, blob.size, blob.type === "text/csv" ? await blob.text() : ""]));
    });
    if (saved.length !== 2 || saved[0][0] !== "image/png" || saved[0][1] < 2000 || !/^[^\n]+,[^\n]+\n[-0-9.e]+,/.test(saved[1][2])) wrong.push(`${name}: a chart is not saved: ${JSON.stringify(saved).slice(0, 200)}`);
  }
  said.forEach((line) => wrong.push(`${name}: ${line}`));
  const text = await page.evaluate(() => {
    document.querySelectorAll("details").forEach((fold) => { fold.open = true; });
    document.querySelectorAll(".u-legend, .tools, script, style").forEach((legend) => legend.remove());
    return document.body.innerText.replace(/[ \t]+\n/g, "\n").replace(/\n{3,}/g, "\n\n").trim() + "\n";
  });
  const file = join(golden, name.replace(/\.html$/, ".txt"));
  if (process.env.UPDATE) { mkdirSync(golden, { recursive: true }); writeFileSync(file, text); }
  else {
    const expected = existsSync(file) ? readFileSync(file, "utf8") : "";
    if (text !== expected) {
      const [now, then] = [text.split("\n"), expected.split("\n")];
      const line = now.findIndex((one, at) => one !== then[at]);
      wrong.push(`${name}: reads otherwise from line ${line + 1} on: ${JSON.stringify(now[line])}, the golden has ${JSON.stringify(then[line])}`);
    }
  }
  await page.close();
}
await browser.close();
wrong.forEach((line) => console.log(line));
console.log(`${names.length} pages, ${WIDTHS.length * THEMES.length} looks at each: ${wrong.length === 0 ? "ok" : `${wrong.length} things are wrong`}`);
process.exit(wrong.length === 0 ? 0 : 1);
