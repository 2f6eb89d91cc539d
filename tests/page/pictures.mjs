// The pictures of the page that README.md and docs/page.md show: `node pictures.mjs FOLDER` (`make page-pictures`).
//
// A shop of three nodes (`shop.mjs`) runs until its charts are full, and then a browser looks at it. MINUTES=11 is how long that is;
// the broker is LEVERET_BIN or the newest that was built.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { browse, close, go, open as window, wait } from "./harness.mjs";
import { open } from "./shop.mjs";

const [into = "pictures"] = process.argv.slice(2);
const MINUTES = Number(process.env.MINUTES ?? 11);
/** A picture's name, the page, its theme, its height. */
const PICTURES = [["overview", "#/", "light", 880], ["queue", "#/queues/%2F/emails", "light", 880], ["topology", "#/topology", "dark", 840]];

const shop = await open();
let browser;
try {
  mkdirSync(into, { recursive: true });
  browser = await browse();
  // The page's first look begins the finer samples of queues.
  const pages = [];
  for (const [name, hash, theme, height] of PICTURES) {
    const page = await window(browser, shop.base, { theme });
    await page.setViewport({ width: 1300, height, deviceScaleFactor: 1.4 });
    await go(page, hash);
    // No room is kept for a bar that a picture has not.
    await page.evaluate(() => { document.documentElement.style.scrollbarGutter = "auto"; });
    pages.push([name, page]);
  }
  await wait(MINUTES * 60);
  for (const [name, page] of pages) {
    await page.bringToFront();
    await page.keyboard.press("r");
    // What is asked for less often comes too.
    await wait(16);
    await page.screenshot({ path: join(into, `page-${name}.png`) });
    await close(page);
  }
} finally {
  await browser?.close();
  await shop.end();
}
