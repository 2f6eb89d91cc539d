// The management page in a real Chromium, by clicks: `make page-test`.
//
// Each run starts a broker of its own (the newest in the target folder, or LEVERET_BIN) in a
// temporary folder. SHOTS=folder keeps a screenshot of every page in both themes and all sizes.
// CHROMIUM names the browser if it is not at /usr/bin/chromium. Several nodes, and what is wrong with
// them, are in cluster.test.mjs.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Client } from "./amqp.mjs";
import { THEMES, WIDTHS, binary, browse, close, confirmBy, fill, go, gone, login, look, open as window, press, says, start, until, wait, watchAccess } from "./harness.mjs";

let broker, folder, api, amqp, browser, benches = [];
const open = (how) => window(browser, broker.base, how);

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "leveret-page-"));
  broker = await start(join(folder, "data"));
  ({ api, amqp } = broker);
  const quorum = { durable: true, arguments: { "x-queue-type": "quorum" } };
  await api("PUT", "exchanges/%2F/orders", { type: "topic", durable: true });
  for (const name of ["orders.eu", "orders.us", "emails", "a queue/with %2F ünd \"quotes\" <b>"]) {
    await api("PUT", `queues/%2F/${encodeURIComponent(name)}`, quorum);
    await api("POST", `bindings/%2F/e/orders/q/${encodeURIComponent(name)}`, { routing_key: `order.${name}.#` });
  }
  for (let at = 0; at < 60; at += 1) await api("PUT", `queues/%2F/bulk.${String(at).padStart(3, "0")}`, { durable: true, arguments: { "x-message-ttl": 60_000 + at } });
  for (let at = 0; at < 3; at += 1) await api("POST", "exchanges/%2F/amq.default/publish", { routing_key: "emails", payload: `{"n":${at}}`, payload_encoding: "string", properties: { delivery_mode: 2, content_type: "application/json" } });
  await api("PUT", "users/watcher", { password: "w", tags: "monitoring" });
  await api("PUT", "permissions/%2F/watcher", { configure: "", write: "", read: ".*" });
  await api("PUT", "policies/%2F/limits", { pattern: "^bulk", definition: { "max-length": 1000 }, "apply-to": "queues" });
  await api("PUT", "vhosts/second", { description: "another one" });
  await api("PUT", "global-parameters/owners", { value: { team: "a_word_that_is_as_long_as_the_window_of_a_phone_is_wide_and_longer", on_call: ["anna", "ben"] } });
  benches.push(spawn(binary(), ["bench", "--uri", `amqp://127.0.0.1:${amqp}`, "--rate", "50", "--time", "600", "--queue", "measured"], { stdio: "ignore" }));
  browser = await browse();
});

after(async () => {
  await browser?.close();
  for (const one of benches) one.kill("SIGKILL");
  await broker?.end();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

const EVERY = [["", "overview"], ["nodes", "nodes"], ["queues", "queues"], ["queues/%2F/emails", "queue"], ["exchanges", "exchanges"], ["exchanges/%2F/orders", "exchange"], ["topology", "topology"], ["connections", "connections"], ["channels", "channels"], ["consumers", "consumers"], ["waiting", "waiting"], ["vhosts", "vhosts"], ["vhosts/second", "vhost"], ["policies", "policies"], ["users", "users"], ["users/guest", "user"], ["limits", "limits"], ["definitions", "definitions"], ["cluster-name", "cluster"], ["feature-flags", "flags"], ["api", "api"]];

for (const theme of THEMES) {
  for (const width of WIDTHS) {
    test(`every page is readable, accessible and as wide as the window: ${theme}, ${width} pixels`, async () => {
      const page = await open({ width, theme, user: null });
      await watchAccess(page);
      await page.waitForSelector(".login");
      await look(page, `${theme}-${width}-login`);
      await login(page, "guest", "guest");
      const one = async (list) => `${list}/${encodeURIComponent((await until(`one of ${list}`, () => api("GET", `${list}?columns=name`).then((all) => all[0]))).name)}`;
      const ones = [[await one("nodes"), "node"], [await one("connections"), "connection"], [await one("channels"), "channel"]];
      const every = [...EVERY, ...ones];
      const menu = await page.$$eval(".side li a", (all) => all.map((link) => link.getAttribute("href").slice(2)));
      assert.deepEqual(menu.filter((hash) => !every.some(([known]) => known === hash)), [], "every page of the menu is looked at");
      for (const [hash, name] of every) {
        await go(page, `#/${hash}`);
        // What is drawn with the first answer is looked at too.
        await page.waitForFunction(() => document.querySelector("main .card, main .table-box, main .topology, main .tiles"));
        await look(page, `${theme}-${width}-${name}`);
      }
      await go(page, "#/nodes");
      await press(page, "Add a node", "main");
      await says(page, "This node runs alone.", "dialog[open]");
      await look(page, `${theme}-${width}-join`);
      for (const [hash, name, button] of [["queues", "declare-queue", "Declare a queue"], ["exchanges/%2F/orders", "publish", "Publish"], ["users", "add-user", "Add a user"], ["policies", "add-policy", "Add a policy"]]) {
        await go(page, `#/${hash}`);
        await press(page, button, "main");
        await page.waitForSelector("dialog[open] form");
        await look(page, `${theme}-${width}-${name}`);
      }
      await go(page, "#/");
      for (const [key, name] of [["?", "keys"], ["/", "palette"]]) {
        await page.keyboard.press(key);
        await page.waitForSelector("dialog[open]");
        await look(page, `${theme}-${width}-${name}`);
        await page.keyboard.press("Escape");
        await gone(page, "dialog[open]");
      }
      await close(page);
    });
  }
}

test("between a phone and a desk, a list that is wider than the window is scrolled, and keeps its columns and whole words", async () => {
  const page = await open({ width: 900 });
  for (const [hash, last] of [["queues", "Consumers"], ["channels", "Acked"], ["connections", "Since"]]) {
    await go(page, `#/${hash}`);
    await page.waitForFunction(() => document.querySelectorAll("tbody tr").length > 0);
    await page.$eval(".table-box", (box) => { box.scrollLeft = box.scrollWidth; });
    const { right, text, names } = await page.$eval(".table-box", (box) => {
      const head = [...box.querySelectorAll("thead th")].at(-1);
      return { text: head.textContent, right: head.getBoundingClientRect().right - box.getBoundingClientRect().right, names: box.querySelector("td.name").getBoundingClientRect().width };
    });
    assert.ok(text.startsWith(last) && right <= 1, `${hash}: the last column is ${text}, ${right} pixels beyond its box`);
    assert.ok(names >= 100, `${hash}: ${names} pixels are left for names`);
  }
  await close(page);
});

test("on a phone the stages of a message are words on a line or two", async () => {
  const page = await open({ width: 400 });
  await page.waitForSelector("table.latencies tbody th");
  const heights = await page.$$eval("table.latencies tbody th", (all) => all.map((one) => one.getBoundingClientRect().height));
  assert.ok(heights.every((height) => height < 60), heights.join());
  await close(page);
});

test("lists of clients are in the order that their heads tell", async () => {
  // They come in another order than that of their names.
  const clients = [];
  for (const [name, queue] of [["zebra", "orders.us"], ["ant", "bulk.050"], ["mole", "orders.eu"]]) {
    const client = await Client.open(amqp, name);
    clients.push(client);
    await client.channel();
    await client.consume(queue, name, 1, () => {});
  }
  await until("all consume", async () => (await api("GET", "consumers")).length > clients.length);
  const page = await open();
  const heads = () => page.$$eval("th[aria-sort]", (all) => all.map((one) => one.cellIndex));
  for (const [hash, head] of [["connections", 1], ["consumers", 0], ["channels", 0]]) {
    await go(page, `#/${hash}`);
    await page.waitForFunction(() => document.querySelectorAll("tbody tr").length > 0);
    // Channels come as they were opened, until somebody asks for another order.
    if (hash === "channels") {
      assert.deepEqual(await heads(), []);
      await press(page, "Channel", "main");
      await page.waitForFunction(() => document.querySelector("th[aria-sort]") && !document.querySelector(".is-old"));
    }
    assert.deepEqual(await heads(), [head], hash);
    const shown = await page.$$eval("tbody td.name a", (all) => all.map((one) => one.textContent));
    assert.ok(shown.length > clients.length, hash);
    assert.deepEqual(shown, shown.toSorted(), hash);
  }
  clients.forEach((client) => client.end());
  await close(page);
});

test("a wrong password is told in words, and nothing of the broker is shown before the right one", async () => {
  const page = await open({ user: null });
  await page.waitForSelector(".login");
  await page.type(".login input[name=name]", "guest");
  await page.type(".login input[name=password]", "wrong");
  await page.click(".login button.primary");
  await says(page, "Name or password is wrong", "[role=alert]");
  assert.equal(await page.$(".side"), null);
  await page.type(".login input[name=password]", "guest");
  await page.click(".login button.primary");
  await page.waitForSelector(".side");
  await page.reload();
  await page.waitForSelector(".side");
  await press(page, "User guest");
  await press(page, "Log out");
  await page.waitForSelector(".login");
  await page.reload();
  await page.waitForSelector(".login");
  await close(page);
});

test("a queue is declared, published to, looked into, moved from, purged and deleted", async () => {
  const page = await open();
  await go(page, "#/queues");
  await press(page, "Declare a queue", "main");
  await fill(page, "Name", "parcels");
  await press(page, "Declare", "dialog[open]");
  await says(page, "1 of 1 copy synced to disk", ".guarantee");
  await press(page, "Publish", "main");
  await fill(page, "Message", "{\"parcel\": 7}");
  await fill(page, "How many times", "4");
  await press(page, "Publish", "dialog[open]");
  await gone(page, "dialog[open]");
  await until("four messages", async () => (await api("GET", "queues/%2F/parcels")).messages_ready === 4);
  await says(page, "Written for each byte published", "main");
  await press(page, "Peek");
  await says(page, "\"parcel\": 7", ".message pre");
  assert.equal((await page.$$(".message")).length, 4);
  await until("they are still there", async () => (await api("GET", "queues/%2F/parcels")).messages_ready === 4);
  await page.keyboard.press("r");
  await press(page, "Move", "main");
  await fill(page, "To the queue", "orders.us");
  await fill(page, "How many", "3");
  await press(page, "Move", "dialog[open]");
  await says(page, "3 messages moved to orders.us", ".toasts");
  await until("three are there", async () => (await api("GET", "queues/%2F/orders.us")).messages_ready === 3);
  await until("one is left", async () => (await api("GET", "queues/%2F/parcels")).messages_ready === 1);
  await press(page, "More", "main");
  await press(page, "Purge …", "main");
  // What loses messages has to be typed.
  await page.waitForSelector("dialog[open] input.mono");
  assert.equal(await page.$eval("dialog[open] button.danger", (button) => button.disabled), true);
  await confirmBy(page, "parcels");
  await press(page, "Purge", "dialog[open]");
  await gone(page, "dialog[open]");
  await until("it is empty", async () => (await api("GET", "queues/%2F/parcels")).messages_ready === 0);
  await page.keyboard.press("r");
  await page.waitForFunction(() => document.querySelector(".tile-value")?.textContent === "0");
  await press(page, "More", "main");
  await press(page, "Delete …", "main");
  await press(page, "Delete", "dialog[open]");
  await page.waitForFunction(() => location.hash === "#/queues");
  await until("it is gone", async () => !(await api("GET", "queues")).some((queue) => queue.name === "parcels"));
  await close(page);
});

test("messages are rejected into the dead-letter exchange of their queue after a question", async () => {
  await api("PUT", "queues/%2F/letters", { durable: true });
  await api("PUT", "queues/%2F/failing", { durable: true, arguments: { "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters" } });
  await api("POST", "exchanges/%2F/amq.default/publish", { routing_key: "failing", payload: "no good", payload_encoding: "string", properties: {} });
  const ready = async (name) => (await api("GET", `queues/%2F/${name}`)).messages_ready;
  const page = await open();
  await go(page, "#/queues/%2F/failing");
  await until("it is there", async () => (await ready("failing")) === 1);
  await page.keyboard.press("r");
  await press(page, "Reject …", "main");
  await says(page, "(AMQP default)", "dialog[open]");
  assert.equal(await ready("letters"), 0, "not before the question is answered");
  await press(page, "Reject them", "dialog[open]");
  await says(page, "no good", ".message pre");
  await until("it is a dead letter", async () => (await ready("letters")) === 1 && (await ready("failing")) === 0);
  // Another queue has nowhere to send them.
  await go(page, "#/queues/%2F/letters");
  await says(page, "Take out …", "main");
  assert.equal(await page.$$eval("main button", (all) => all.some((one) => one.textContent.includes("Reject"))), false);
  await api("DELETE", "queues/%2F/failing");
  await api("DELETE", "queues/%2F/letters");
  await close(page);
});

test("a dead letter's headers read well: tables within them are shown as such, and no word is squeezed", async () => {
  await api("PUT", "queues/%2F/dead", { durable: true });
  await api("PUT", "queues/%2F/brief", { durable: true, arguments: { "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 1 } });
  const headers = { "a-header-whose-name-is-as-long-as-a-phone-is-wide-and-goes-on": 7, deep: { list: [1, "two"], table: { yes: true } } };
  await api("POST", "exchanges/%2F/amq.default/publish", { routing_key: "brief", payload: "late", payload_encoding: "string", properties: { headers } });
  await until("it is dead", async () => (await api("GET", "queues/%2F/dead")).messages_ready === 1);
  for (const width of WIDTHS) {
    const page = await open({ width });
    await watchAccess(page);
    await go(page, "#/queues/%2F/dead");
    await press(page, "Peek", "main");
    await says(page, "a-header-whose-name", ".message .headers");
    await look(page, `dead-letter-${width}`);
    const death = await page.$$eval(".message .headers > .arguments > li", (all) => all.find((one) => one.firstChild.textContent === "x-death").querySelector("ol.values > li").textContent);
    assert.match(death, /count 1.*queue brief.*reason expired/);
    // What fits a line is on one.
    const broken = await page.$$eval(".message .headers .faint", (all) => all.filter((one) => one.textContent.length < 24 && one.getClientRects().length > 1).map((one) => one.textContent));
    assert.deepEqual(broken, [], `at ${width}`);
    assert.ok(await page.$eval(".message .headers > .faint", (one) => one.getBoundingClientRect().height < 30), `at ${width}`);
    await close(page);
  }
  await api("DELETE", "queues/%2F/brief");
  await api("DELETE", "queues/%2F/dead");
});

test("lists are searched, sorted, paged and chosen from by the broker", async () => {
  const page = await open();
  await go(page, "#/queues");
  await says(page, "1–50 of", ".pager");
  await press(page, "Next page");
  await says(page, "51–", ".pager");
  await page.keyboard.press("/");
  await page.keyboard.type("bulk.01");
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 10);
  assert.match(await page.evaluate(() => location.hash), /name=bulk\.01/);
  await press(page, "Name↑", "main");
  await page.waitForFunction(() => document.querySelector("tbody td.name")?.textContent === "bulk.019");
  for (const name of ["//bulk.019", "//bulk.018"]) await press(page, `Choose ${name}`).catch(async () => { await page.click(`input[aria-label="Choose ${name}"]`); });
  await press(page, "Delete", ".banner.chosen");
  await confirmBy(page, "delete");
  await press(page, "Delete", "dialog[open]");
  await gone(page, "dialog[open]");
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 8);
  await page.click("input[type=search]");
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 50);
  await close(page);
});

test("the page of the API has every path, and a browser that looks for it where RabbitMQ has it is led there", async () => {
  const page = await open();
  const { paths } = await api("GET", "openapi.json");
  await page.goto(`${broker.base}api/`);
  await page.waitForFunction(() => location.pathname === "/" && location.hash === "#/api");
  await says(page, `of ${Object.keys(paths).length} paths`, ".pager");
  await page.keyboard.press("/");
  await page.keyboard.type("topic-permissions/{vhost}/{user}/");
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
  await says(page, "/api/topic-permissions/{vhost}/{user}/{exchange}", "tbody");
  assert.deepEqual(await page.$$eval("tbody .badge", (all) => all.map((one) => one.textContent)), ["DELETE"]);
  await close(page);
});

test("a name may hold anything", async () => {
  const page = await open();
  await go(page, "#/queues?name=%C3%BCnd");
  await press(page, "a queue/with %2F ünd \"quotes\" <b>", "main");
  await says(page, "a queue/with %2F ünd \"quotes\" <b>", "h1");
  await says(page, "copy synced to disk", ".guarantee");
  await close(page);
});

test("an exchange is declared, bound, published to, unbound and deleted", async () => {
  const page = await open();
  await go(page, "#/exchanges");
  await press(page, "Declare an exchange", "main");
  await fill(page, "Name", "alerts");
  await fill(page, "Type", "fanout");
  await press(page, "Declare", "dialog[open]");
  await says(page, "alerts", "h1");
  await press(page, "Publish", "main");
  await fill(page, "Message", "nobody");
  await press(page, "Publish", "dialog[open]");
  await says(page, "No queue took it", "dialog[open]");
  await press(page, "Cancel", "dialog[open]");
  await press(page, "Bind", "main");
  await fill(page, "Its name", "orders.eu");
  await press(page, "Bind", "dialog[open]");
  await says(page, "orders.eu", "main table");
  await press(page, "Publish", "main");
  await fill(page, "Message", "somebody");
  await press(page, "Publish", "dialog[open]");
  await until("it is there", async () => (await api("GET", "queues/%2F/orders.eu")).messages_ready === 1);
  await gone(page, "dialog[open]");
  await press(page, "Unbind alerts from orders.eu");
  await press(page, "Unbind", "dialog[open]");
  await says(page, "No bindings.", "main");
  await press(page, "More", "main");
  await press(page, "Delete …", "main");
  await confirmBy(page, "alerts");
  await press(page, "Delete", "dialog[open]");
  await page.waitForFunction(() => location.hash === "#/exchanges");
  await close(page);
});

test("a user is added, given rights and limits, and deleted", async () => {
  const page = await open();
  await go(page, "#/users");
  await press(page, "Add a user", "main");
  await fill(page, "Name", "carol");
  await fill(page, "Password", "secret");
  await fill(page, "Tags", "policymaker");
  await press(page, "Add", "dialog[open]");
  await says(page, "carol", "h1");
  // Nobody gets rights that were not asked for.
  await says(page, "User carol is there, without rights in any virtual host yet.", ".toasts");
  assert.deepEqual(await api("GET", "users/carol/permissions"), []);
  await says(page, "This user may use no virtual host.", "main");
  await press(page, "Give rights", "main");
  await fill(page, "Virtual host", "second");
  await fill(page, "Configure: declare and delete", "^carol");
  await press(page, "Give", "dialog[open]");
  await gone(page, "dialog[open]");
  assert.deepEqual(await api("GET", "users/carol/permissions"), [{ user: "carol", vhost: "second", configure: "^carol", write: ".*", read: ".*" }]);
  await press(page, "Change", ".halves section.card:last-child");
  await fill(page, "Connections", "5");
  await press(page, "Save", "dialog[open]");
  await until("the limit", async () => (await api("GET", "user-limits/carol"))[0]?.value["max-connections"] === 5);
  const hash = (await api("GET", "users/carol")).password_hash;
  await gone(page, "dialog[open]");
  await press(page, "Change", ".page-head");
  await fill(page, "Tags", "monitoring");
  await press(page, "Save", "dialog[open]");
  await until("the tag", async () => (await api("GET", "users/carol")).tags.includes("monitoring"));
  assert.equal((await api("GET", "users/carol")).password_hash, hash, "an empty field leaves the password");
  await gone(page, "dialog[open]");
  await press(page, "More", ".page-head");
  await press(page, "Delete …", ".page-head");
  await confirmBy(page, "carol");
  await press(page, "Delete", "dialog[open]");
  await page.waitForFunction(() => location.hash === "#/users");
  // All rights in one virtual host are there for the asking.
  await press(page, "Add a user", "main");
  await fill(page, "Name", "dave");
  await fill(page, "Password", "secret");
  await fill(page, "May do everything in", "second");
  await press(page, "Add", "dialog[open]");
  await says(page, "User dave is there and may do everything in second.", ".toasts");
  assert.deepEqual(await api("GET", "users/dave/permissions"), [{ user: "dave", vhost: "second", configure: ".*", write: ".*", read: ".*" }]);
  await api("DELETE", "users/dave");
  await close(page);
});

test("a policy and a virtual host are added and deleted", async () => {
  const page = await open();
  await go(page, "#/policies");
  await press(page, "Add a policy", "main");
  await fill(page, "Name", "short");
  await fill(page, "Names that match", "^orders");
  await press(page, "Add", "dialog[open]");
  await says(page, "Say at least one setting", "dialog[open]");
  await page.type("dialog[open] input[placeholder=name]", "message-ttl");
  await page.type("dialog[open] input[placeholder=value]", "60000");
  await press(page, "Add", "dialog[open]");
  await until("the policy", async () => (await api("GET", "policies/%2F/short")).definition["message-ttl"] === 60000);
  await gone(page, "dialog[open]");
  await press(page, "Delete short");
  await press(page, "Delete", "dialog[open]");
  await until("no policy", async () => !(await api("GET", "policies")).some((one) => one.name === "short"));
  await go(page, "#/vhosts");
  await press(page, "Add a virtual host", "main");
  await fill(page, "Name", "third");
  await press(page, "Add", "dialog[open]");
  await says(page, "third", "h1");
  await press(page, "More", ".page-head");
  await press(page, "Delete …", ".page-head");
  await confirmBy(page, "third");
  await press(page, "Delete everything in it", "dialog[open]");
  await until("it is gone", async () => !(await api("GET", "vhosts")).some((one) => one.name === "third"));
  await close(page);
});

test("definitions come in from a file, and a file that is none is told", async () => {
  const page = await open();
  await go(page, "#/definitions");
  const choose = async (name, text) => page.$eval("input[type=file]", (input, called, held) => { const data = new DataTransfer(); data.items.add(new File([held], called)); input.files = data.files; input.dispatchEvent(new Event("change", { bubbles: true })); }, name, text);
  await choose("photo.json", "no");
  await says(page, "photo.json is no file of definitions", "[role=alert]");
  await choose("mine.json", JSON.stringify({ queues: [{ name: "imported", vhost: "/", durable: true, auto_delete: false, arguments: {} }] }));
  await press(page, "Import …", "main");
  await press(page, "Import", "dialog[open]");
  await until("the queue", async () => (await api("GET", "queues")).some((queue) => queue.name === "imported"));
  await says(page, "Imported.", "main");
  await close(page);
});

test("who replaces his own user by an import is told before, and reads what was left out over the login and after it", async () => {
  await api("PUT", "users/mover", { password: "old", tags: "administrator" });
  const page = await open({ user: "mover", password: "old" });
  await go(page, "#/definitions");
  const choose = (held) => page.$eval("input[type=file]", (input, text) => { const data = new DataTransfer(); data.items.add(new File([text], "moved.json")); input.files = data.files; input.dispatchEvent(new Event("change", { bubbles: true })); }, JSON.stringify(held));
  const told = "Your own user is replaced: you will have to log in again";
  // A file that has him as he is ends no session.
  const { users } = await api("GET", "definitions");
  await choose({ users: users.filter(({ name }) => name === "mover") });
  await press(page, "Import …", "main");
  await says(page, "1 user", "dialog[open]");
  assert.equal(await page.$eval("dialog[open]", (box) => box.textContent.includes("log in again")), false);
  await press(page, "Import", "dialog[open]");
  await gone(page, "dialog[open]");
  await says(page, "Imported.", "main");
  const salt = Buffer.from("aabbccdd", "hex");
  const password_hash = Buffer.concat([salt, createHash("sha256").update(salt).update("new").digest()]).toString("base64");
  await choose({ users: [{ name: "mover", password_hash, hashing_algorithm: "rabbit_password_hashing_sha256", tags: "administrator" }], policies: [{ vhost: "/", name: "mirrors", pattern: "^m", "apply-to": "queues", priority: 0, definition: { "ha-mode": "all" } }] });
  await press(page, "Import …", "main");
  await says(page, told, "dialog[open]");
  await press(page, "Import", "dialog[open]");
  await page.waitForSelector(".login");
  await says(page, "ha-mode", "dialog[open]");
  await press(page, "Close", "dialog[open] footer");
  await gone(page, "dialog[open]");
  await login(page, "mover", "new");
  await says(page, "ha-mode", "main [role=status]");
  await press(page, "Close", "main [role=status]");
  await gone(page, "main [role=status]");
  await api("DELETE", "policies/%2F/mirrors");
  await api("DELETE", "users/mover");
  await close(page);
});

test("the command palette goes to a queue, by keys alone", async () => {
  const page = await open();
  await page.keyboard.down("Control");
  await page.keyboard.press("k");
  await page.keyboard.up("Control");
  await page.waitForSelector("dialog[open] [role=combobox]");
  await page.keyboard.type("emails");
  await says(page, "emails", "[role=option][aria-selected=true]");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => location.hash === "#/queues/%2F/emails");
  await page.keyboard.press("g");
  await page.keyboard.press("e");
  await page.waitForFunction(() => location.hash === "#/exchanges");
  await page.keyboard.press("t");
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await page.reload();
  await page.waitForSelector("main h1");
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark", "a choice is kept");
  await close(page);
});

test("who only watches is not offered what is refused", async () => {
  const page = await open({ user: "watcher", password: "w" });
  const shown = await page.$$eval(".side a", (all) => all.map((one) => one.textContent.trim()));
  assert.ok(shown.includes("Nodes") && !shown.includes("Users") && !shown.includes("Definitions"), shown.join());
  await go(page, "#/users");
  await says(page, "shown to administrators", "main");
  await go(page, "#/policies");
  assert.equal(await page.$("main .actions button"), null);
  // What the broker refuses by name and not by tag is told in its words.
  await go(page, "#/queues");
  await press(page, "Declare a queue", "main");
  await fill(page, "Name", "mine");
  await press(page, "Declare", "dialog[open]");
  await says(page, "You may not do this: Access refused. An administrator can give you the right.", "dialog[open] [role=alert]");
  await close(page);
});

test("an administrator is not sent to an administrator: reserved names are told as such, and who lacks rights where to take them", async () => {
  const page = await open();
  for (const [hash, button] of [["exchanges", "Declare an exchange"], ["queues", "Declare a queue"]]) {
    await go(page, `#/${hash}`);
    await press(page, button, "main");
    await fill(page, "Name", "amq.bad");
    await press(page, "Declare", "dialog[open]");
    await says(page, "Names that begin with “amq.” are the broker's own", "dialog[open] [role=alert]");
    await press(page, "Cancel", "dialog[open]");
    await gone(page, "dialog[open]");
  }
  await api("PUT", "vhosts/alien", {});
  await api("DELETE", "permissions/alien/guest");
  await go(page, "#/queues?vhost=alien");
  await page.waitForSelector("label.vhost-filter select");
  await press(page, "Declare a queue", "main");
  await fill(page, "Name", "mine");
  await press(page, "Declare", "dialog[open]");
  await says(page, "your own page under Users", "dialog[open] [role=alert]");
  assert.equal(await page.$eval("dialog[open] [role=alert]", (box) => box.textContent.includes("An administrator can")), false);
  await api("DELETE", "vhosts/alien");
  await close(page);
});

test("a queue is declared of the type that its virtual host has for queues without one", async () => {
  await api("PUT", "vhosts/quorums", { default_queue_type: "quorum" });
  await api("PUT", "vhosts/classics", { default_queue_type: "classic" });
  const page = await open();
  await go(page, "#/queues");
  await page.waitForSelector("label.vhost-filter select");
  await press(page, "Declare a queue", "main");
  const type = () => page.$$eval("dialog[open] select", (all) => all[1].value);
  for (const name of ["quorums", "classics", "quorums"]) {
    await fill(page, "Virtual host", name);
    assert.equal(await type(), name.slice(0, -1));
    // Durable or not is a classic queue's to choose.
    assert.equal(await page.$$eval("dialog[open] label", (all) => all.some((one) => one.textContent.startsWith("Durable"))), name === "classics");
  }
  assert.equal(await page.$eval("dialog[open]", (box) => box.textContent.includes("if durable")), false);
  // What somebody has chosen stays chosen.
  await fill(page, "Type", "classic");
  await fill(page, "Virtual host", "quorums");
  assert.equal(await type(), "classic");
  await fill(page, "Name", "own");
  await press(page, "Declare", "dialog[open]");
  await until("it is there", async () => (await api("GET", "queues/quorums/own")).type === "classic");
  for (const name of ["quorums", "classics"]) await api("DELETE", `vhosts/${name}`);
  await close(page);
});

test("the overview of a node that is alone speaks of no copies, counts one message as one, and says how long it has run", async () => {
  await api("PUT", "vhosts/lonely", {});
  await api("PUT", "queues/lonely/single", { durable: true });
  // Some of them are measured.
  for (let at = 0; at < 60; at += 1) await api("POST", "exchanges/lonely/amq.default/publish", { routing_key: "single", payload: "one", payload_encoding: "string", properties: {} });
  assert.ok((await api("GET", "leveret/latencies")).stages.confirm.count > 0);
  assert.equal((await api("GET", "leveret/latencies")).stages.replicate.count, 0);
  const page = await open();
  await page.setRequestInterception(true);
  page.on("request", (request) => (request.url().includes("sort=messages") ? request.respond({ contentType: "application/json", body: JSON.stringify({ items: [{ name: "single", vhost: "lonely", messages: 1 }, { name: "pair", vhost: "lonely", messages: 2 }] }) }) : request.continue()));
  await page.reload();
  await says(page, "Publish to confirm, in all", "table.latencies");
  assert.equal(await page.$eval("table.latencies", (table) => table.textContent.includes("Copies on other nodes")), false);
  await page.waitForFunction(() => [...document.querySelectorAll(".ranking li")].some((row) => row.textContent === "single lonely1 message"));
  assert.ok(await page.$$eval(".ranking li", (rows) => rows.some((row) => row.textContent === "pair lonely2 messages")));
  await page.waitForFunction(() => /The node has run for \d+ (s|min \d+ s)\./.test(document.querySelector(".all-well")?.textContent));
  await api("DELETE", "vhosts/lonely");
  await close(page);
});

test("a session that ended leads back to the login, and from there to the same page", async () => {
  const page = await open();
  await go(page, "#/exchanges");
  for (const cookie of await page.browserContext().cookies()) await page.browserContext().deleteCookie(cookie);
  await page.keyboard.press("r");
  await page.waitForSelector(".login");
  await login(page, "guest", "guest");
  await says(page, "Exchanges", "h1");
  await close(page);
});

test("publishers are held after a question, every page says what to do about it, and they go on", async () => {
  const page = await open();
  const [{ name }] = await api("GET", "nodes?columns=name");
  const held = async () => (await api("GET", "nodes"))[0].leveret_publishers_held;
  await go(page, `#/nodes/${encodeURIComponent(name)}`);
  await press(page, "Hold publishers", ".page-head:not(.minor)");
  assert.equal(await held(), false, "not before the question is answered");
  await press(page, "Hold publishers", "dialog[open]");
  await until("publishers are held", held);
  await go(page, "#/");
  await says(page, "An operator holds all publishers", ".banner");
  await says(page, "Consumers go on and drain the queues", ".banner");
  await go(page, `#/nodes/${encodeURIComponent(name)}`);
  await press(page, "Let publishers go on", ".banner");
  await until("publishers go on", async () => !(await held()));
  await gone(page, ".banner");
  await close(page);
});

test("a virtual host is limited on the page of limits, and the limit taken back", async () => {
  const page = await open();
  await go(page, "#/limits");
  await press(page, "Set a limit", "main section.card:first-of-type");
  await fill(page, "Which", "second");
  // One window asks for all of it.
  await fill(page, "Queues", "7");
  await press(page, "Save", "dialog[open]");
  const limit = async () => (await api("GET", "vhost-limits/second"))[0]?.value?.["max-queues"];
  await until("the limit", async () => (await limit()) === 7);
  await gone(page, "dialog[open]");
  await says(page, "second", "main section.card:first-of-type table");
  // What there is already is in the fields of whatever is chosen.
  await press(page, "Set a limit", "main section.card:first-of-type");
  const offered = () => page.$$eval("dialog[open] input", (all) => all.map((one) => one.value));
  await page.waitForSelector("dialog[open] input");
  assert.deepEqual(await offered(), ["", ""]);
  await fill(page, "Which", "second");
  assert.deepEqual(await offered(), ["", "7"]);
  await press(page, "Cancel", "dialog[open]");
  await gone(page, "dialog[open]");
  await press(page, "Change", "main section.card:first-of-type table");
  await fill(page, "Queues", "");
  await press(page, "Save", "dialog[open]");
  await until("no limit", async () => (await limit()) === undefined);
  await close(page);
});

test("a connection is closed with a reason, and its page says so", async () => {
  const names = async () => (await api("GET", "connections?columns=name")).map((one) => one.name);
  const before = await names();
  const one = spawn(binary(), ["bench", "--uri", `amqp://127.0.0.1:${amqp}`, "--rate", "1", "--time", "600", "--queue", "closing"], { stdio: "ignore" });
  benches.push(one);
  const name = await until("its connections", async () => (await names()).find((known) => !before.includes(known)));
  const page = await open();
  await go(page, `#/connections/${encodeURIComponent(name)}`);
  await press(page, "Close …", ".page-head:not(.minor)");
  await fill(page, "Reason", "it has to move");
  await press(page, "Close it", "dialog[open]");
  await until("it is closed", async () => !(await names()).includes(name));
  await page.waitForFunction(() => location.hash === "#/connections");
  await go(page, `#/connections/${encodeURIComponent(name)}`);
  await says(page, "It is closed.", "main");
  one.kill("SIGKILL");
  await close(page);
});

test("a global parameter is set, changed and deleted, and the cluster gets another name, each after a question", async () => {
  const page = await open();
  const value = async () => (await api("GET", "global-parameters")).find((one) => one.name === "contact")?.value;
  await go(page, "#/cluster-name");
  await press(page, "Set a parameter", "main");
  await fill(page, "Name", "contact");
  await fill(page, "Value", "nobody");
  await press(page, "Set", "dialog[open]");
  await says(page, "The value is no JSON", "dialog[open] [role=alert]");
  await fill(page, "Value", '{"team": "mail", "phone": 7}');
  await press(page, "Set", "dialog[open]");
  await until("it is set", async () => (await value())?.phone === 7);
  await gone(page, "dialog[open]");
  await says(page, "contact", "main table");
  // What is there is not written over by mistake.
  await press(page, "Set a parameter", "main");
  await fill(page, "Name", "contact");
  await fill(page, "Value", "1");
  await press(page, "Set", "dialog[open]");
  await says(page, "contact is there already", "dialog[open] [role=alert]");
  await press(page, "Cancel", "dialog[open]");
  await press(page, "Change contact", "main");
  await fill(page, "Value", "[1, 2]");
  await press(page, "Save", "dialog[open]");
  await until("it is changed", async () => JSON.stringify(await value()) === "[1,2]");
  await gone(page, "dialog[open]");
  await press(page, "Delete contact", "main");
  await says(page, "lost for good", "dialog[open]");
  assert.deepEqual(await value(), [1, 2], "not before the question is answered");
  await press(page, "Delete", "dialog[open]");
  await until("it is deleted", async () => (await value()) === undefined);
  await gone(page, "dialog[open]");

  const called = async () => (await api("GET", "cluster-name")).name;
  const before = await called();
  await press(page, "Change the name …", "main");
  await says(page, "dashboards and alerts that name the old one find nothing", "dialog[open]");
  await fill(page, "Name", "harbour");
  assert.equal(await called(), before, "not before the question is answered");
  await press(page, "Change it", "dialog[open]");
  await until("it is called so", async () => (await called()) === "harbour");
  await says(page, "harbour", ".head-name");
  // What tells clusters apart does not change.
  await says(page, "leveret-cluster-id-", "main table");
  assert.equal(await page.$("[aria-label='Delete internal_cluster_id']"), null);
  await press(page, "Delete cluster_name", "main");
  await says(page, "as its first node again", "dialog[open]");
  await press(page, "Delete", "dialog[open]");
  await until("it is called as before", async () => (await called()) === before);
  await says(page, before, ".head-name");
  await close(page);
});

test("feature flags are shown as the API tells them, and of what is deprecated that which is in use", async () => {
  const flags = await api("GET", "feature-flags");
  const page = await open();
  await go(page, "#/feature-flags");
  await page.waitForFunction((all) => all.every((name) => [...document.querySelectorAll("main section:first-of-type td.name")].some((cell) => cell.textContent === name)), {}, flags.map((one) => one.name));
  const used = () => page.$$eval("main section:last-of-type tbody tr", (rows) => rows.filter((row) => row.textContent.includes("in use")).map((row) => row.querySelector("td.name").textContent));
  await api("PUT", "queues/%2F/passing", { durable: false });
  await page.keyboard.press("r");
  await says(page, "in use", "main section:last-of-type tbody");
  assert.deepEqual(await used(), ["transient_nonexcl_queues"]);
  assert.deepEqual((await api("GET", "deprecated-features/used")).map((one) => one.name), ["transient_nonexcl_queues"]);
  await api("DELETE", "queues/%2F/passing");
  const row = (name) => page.$$eval("main section:last-of-type tbody tr", (rows, of) => rows.find((one) => one.querySelector("td.name").textContent === of).textContent, name);
  assert.match(await row("classic_queue_mirroring"), /not there.*no.*removed/);
  await close(page);
});

test("a user without a password and without rights is added, and the list says both", async () => {
  const page = await open();
  await go(page, "#/users");
  await press(page, "Add a user", "main");
  await fill(page, "Name", "robot");
  await press(page, "No password: logs in by certificate or token alone", "dialog[open]");
  await press(page, "Add", "dialog[open]");
  await says(page, "no password: by certificate or token", "main");
  assert.equal((await api("GET", "users/robot")).password_hash, "");
  await go(page, "#/users");
  await page.waitForFunction(() => [...document.querySelectorAll("tbody tr")].some((row) => row.textContent.includes("robot") && row.textContent.includes("no rights")));
  assert.equal(await page.$$eval("tbody tr", (rows) => rows.some((row) => row.textContent.includes("guest") && row.textContent.includes("no rights"))), false);
  // Who gets a password gets it.
  await go(page, "#/users/robot");
  await press(page, "Change", ".page-head");
  await press(page, "No password: logs in by certificate or token alone", "dialog[open]");
  await fill(page, "New password", "metal");
  await press(page, "Save", "dialog[open]");
  await until("a password", async () => (await api("GET", "users/robot")).password_hash !== "");
  await api("DELETE", "users/robot");
  await close(page);
});

test("connections, channels and consumers are those of the virtual host that is chosen", async () => {
  const page = await open();
  for (const [hash, none] of [["connections", "Nobody is connected."], ["channels", "No channel is open."], ["consumers", "Nobody consumes."]]) {
    await go(page, `#/${hash}`);
    await page.waitForFunction(() => document.querySelectorAll("tbody tr").length > 0);
    await page.select("label.vhost-filter select", "second");
    await says(page, none, "main");
    await page.select("label.vhost-filter select", "/");
    await page.waitForFunction(() => document.querySelectorAll("tbody tr").length > 0);
    assert.match(await page.evaluate(() => location.hash), /vhost=%2F/);
  }
  await close(page);
});

test("a node's page tells its settings, and has logins counted anew and samples forgotten after a question", async () => {
  const [{ name }] = await api("GET", "nodes?columns=name");
  await api("GET", "whoami", undefined, "guest:wrong").then(() => assert.fail("it is wrong"), () => {});
  const wrong = async () => (await api("GET", `auth/attempts/${encodeURIComponent(name)}`)).reduce((sum, one) => sum + one.auth_attempts_failed, 0);
  assert.ok((await wrong()) > 0);
  const page = await open();
  await go(page, `#/nodes/${encodeURIComponent(name)}`);
  await page.type("input[aria-label='Filter settings']", "data_dir");
  await page.waitForFunction((folder) => { const rows = document.querySelectorAll("main section:last-of-type tbody tr"); return rows.length === 1 && rows[0].textContent.includes(folder) && rows[0].textContent.includes("command line"); }, {}, folder);
  await press(page, "Count anew …", "main");
  assert.ok((await wrong()) > 0, "not before the question is answered");
  await press(page, "Count anew", "dialog[open]");
  await until("they are forgotten", async () => (await wrong()) === 0);
  await gone(page, "dialog[open]");
  const samples = async () => (await api("GET", "overview?lengths_age=60&lengths_incr=5")).queue_totals.messages_details.samples.length;
  await until("some samples", async () => (await samples()) > 2);
  await press(page, "More", ".page-head:not(.minor)");
  await press(page, "Forget samples …", ".page-head:not(.minor)");
  await press(page, "Forget them", "dialog[open]");
  await gone(page, "dialog[open]");
  await says(page, "Logins", "main");
  await close(page);
});

test("a node's page tells Leveret's own version, and the one that clients are told as what it is", async () => {
  const { leveret_version: own, rabbitmq_version: told, node } = await api("GET", "overview");
  assert.notEqual(own, told);
  const page = await open();
  await go(page, `#/nodes/${encodeURIComponent(node)}`);
  await says(page, "Data folder", "main");
  await says(page, "Leveret", "main .facts");
  const facts = Object.fromEntries(await page.$$eval("main .facts > div", (all) => all.map((one) => [one.querySelector("dt").textContent, one.querySelector("dd").textContent])));
  assert.equal(facts.Version, `Leveret ${own}`);
  assert.equal(facts["Speaks as"], `RabbitMQ ${told}`);
  await close(page);
});

test("a window goes with the page that it is of: by Back, by another address and by a link within it", async () => {
  const page = await open();
  await go(page, "#/exchanges");
  await go(page, "#/queues");
  await press(page, "Declare a queue", "main");
  await fill(page, "Name", "never");
  await page.goBack();
  await says(page, "Exchanges", "main h1");
  await gone(page, "dialog");
  await press(page, "Declare an exchange", "main");
  await page.waitForSelector("dialog[open]");
  await page.evaluate(() => { location.hash = "#/policies"; });
  await says(page, "Policies", "main h1");
  await gone(page, "dialog");
  await go(page, "#/vhosts/second");
  await press(page, "More", "main");
  await press(page, "Delete …", "main");
  await press(page, "Export its definitions", "dialog[open]");
  await says(page, "Definitions", "main h1");
  await gone(page, "dialog");
  // What an address asks for is there all the same, with the palette still open.
  await page.keyboard.down("Control");
  await page.keyboard.press("k");
  await page.keyboard.up("Control");
  await page.waitForSelector("dialog[open] [role=combobox]");
  await page.evaluate(() => { location.hash = "#/queues?do=declare"; });
  await says(page, "Declare a queue", "dialog[open] h2");
  assert.equal((await page.$$("dialog")).length, 1);
  await page.keyboard.press("Escape");
  await gone(page, "dialog");
  // The palette opens again after an address closed it.
  await page.keyboard.down("Control");
  await page.keyboard.press("k");
  await page.keyboard.up("Control");
  await page.waitForSelector("dialog[open] [role=combobox]");
  await close(page);
});

test("one thing is told as one, and marks of axes differ", async () => {
  await api("PUT", "vhosts/single", {});
  await api("PUT", "queues/single/only", { durable: true });
  await api("PUT", "exchanges/single/amq.topic", { type: "topic", durable: true });
  await api("PUT", "permissions/single/watcher", { configure: "", write: "", read: ".*" });
  const publish = () => api("POST", "exchanges/single/amq.default/publish", { routing_key: "only", payload: "one", payload_encoding: "string", properties: {} });
  await publish();
  const page = await open();
  await go(page, "#/vhosts/single");
  await page.waitForFunction(() => [...document.querySelectorAll(".chip")].some((chip) => chip.textContent === "1 queue"));
  await press(page, "1 queue", "main");
  await page.waitForFunction(() => document.querySelector(".pager span")?.textContent === "1–1 of 1 queue");
  await go(page, "#/queues/single/only");
  await says(page, "1waits for a consumer", ".tile");
  await go(page, "#/policies");
  await page.waitForFunction(() => document.querySelector(".pager span")?.textContent === "1–1 of 1 policy");
  await page.keyboard.down("Control");
  await page.keyboard.press("k");
  await page.keyboard.up("Control");
  await page.waitForSelector("dialog[open] [role=combobox]");
  await page.keyboard.type("only");
  await page.waitForFunction(() => [...document.querySelectorAll("[role=option]")].some((one) => one.textContent.endsWith("single · queue · 1 message")));
  await page.keyboard.press("Escape");
  await go(page, "#/definitions");
  await page.$eval("input[type=file]", (input) => { const data = new DataTransfer(); data.items.add(new File([JSON.stringify({ queues: [{}], policies: [{}], topic_permissions: [{}], permissions: [{}, {}] })], "one.json")); input.files = data.files; input.dispatchEvent(new Event("change", { bubbles: true })); });
  await says(page, "1 right by routing key", "main .arguments");
  assert.deepEqual(await page.$$eval("main .arguments li", (all) => all.map((one) => one.textContent)), ["2 rights", "1 right by routing key", "1 queue", "1 policy"]);
  // One queue that lacks a copy, as a cluster of which a node is away tells of it.
  const [{ name: node }] = await api("GET", "nodes?columns=name");
  await page.setRequestInterception(true);
  page.on("request", (request) => (request.url().includes("leader,node,members,online,messages") ? request.respond({ contentType: "application/json", body: JSON.stringify([{ name: "only", vhost: "/", type: "quorum", leader: node, members: [node, "b", "c"], online: [node, "b"] }, { name: "whole", vhost: "/", type: "quorum", leader: node, members: [node], online: [node] }]) }) : request.continue()));
  await go(page, "#/nodes");
  await says(page, "1 queue lacks a copy. It goes on, and another node must not fail now. 1 has all its copies.", "main");
  // An axis is drawn on a canvas; what is drawn there is heard.
  await page.evaluateOnNewDocument(() => {
    globalThis.drawn = new Map();
    const own = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
      const title = this.canvas.closest("figure")?.querySelector("h2").textContent;
      // The marks of each drawing begin with the lowest one.
      if (/^0(\/s)?$/.test(text)) drawn.set(title, []);
      if (!text.includes(":")) drawn.get(title)?.push(text);
      return own.call(this, text, ...rest);
    };
  });
  await page.goto(`${broker.base}#/queues/single/only`);
  await page.reload();
  await page.waitForFunction(() => globalThis.drawn?.get("Messages")?.length > 0, { timeout: 40_000 });
  await publish();
  await until("a rate of one message in some seconds", () => page.evaluate(() => parseFloat(drawn.get("Rates")?.at(-1)) < 0.5), 40_000);
  const [messages, rates] = await page.evaluate(() => [drawn.get("Messages"), drawn.get("Rates")]);
  for (const marks of [messages, rates]) assert.equal(new Set(marks).size, marks.length, marks.join());
  assert.ok(messages.every((text) => /^\d+$/.test(text)), messages.join());
  await page.waitForFunction(() => [...document.querySelectorAll(".tile-more")].every((one) => one.scrollWidth <= one.clientWidth));
  await api("DELETE", "vhosts/single");
  await close(page);
});

test("a delivery that was not a message's first is told as such", async () => {
  await api("PUT", "queues/%2F/again", { durable: true });
  await api("POST", "exchanges/%2F/amq.default/publish", { routing_key: "again", payload: "one", payload_encoding: "string", properties: {} });
  for (let at = 0; at < 3; at += 1) await api("POST", "queues/%2F/again/get", { count: 1, ackmode: "ack_requeue_true", encoding: "auto" });
  const page = await open();
  await go(page, "#/queues/%2F/again");
  await says(page, "3 in all, 2 of them again", ".tile");
  await go(page, "#/");
  await says(page, "of them again", ".tile");
  await api("DELETE", "queues/%2F/again");
  await close(page);
});

test("the topology shows what is fed by what, and queues that are alike as one box that opens", async () => {
  const page = await open();
  await go(page, "#/topology");
  await page.waitForSelector(".topo-node.exchange");
  await page.waitForSelector(".topo-node.group");
  const closed = (await page.$$(".topo-node.queue")).length;
  const bulk = await page.waitForFunction(() => [...document.querySelectorAll(".topo-node.group")].find((one) => one.textContent.includes("bulk")));
  await bulk.click();
  await page.waitForFunction((before) => document.querySelectorAll(".topo-node.queue").length > before + 20, {}, closed);
  assert.ok((await page.$$(".topo-lines path")).length >= 2);
  await close(page);
});

test("boxes of the topology have the same places at each look: first what messages went through lately, however many and how fast", async () => {
  await api("PUT", "vhosts/drawn", {});
  for (const [exchange, queues] of [["a-idle", ["c", "d"]], ["m-idle", ["e"]], ["z-live", ["x", "y"]]]) {
    await api("PUT", `exchanges/drawn/${exchange}`, { type: "direct", durable: true });
    for (const queue of queues) {
      await api("PUT", `queues/drawn/${queue}`, { durable: true });
      await api("POST", `bindings/drawn/e/${exchange}/q/${queue}`, { routing_key: queue });
    }
  }
  const publish = async (queue, count) => { for (let at = 0; at < count; at += 1) await api("POST", "exchanges/drawn/z-live/publish", { routing_key: queue, payload: "m", payload_encoding: "string", properties: {} }); };
  // Something that is sampled before and after it.
  const samples = async (name) => (await api("GET", `queues/drawn/${name}?msg_rates_age=20&msg_rates_incr=5`)).message_stats?.publish_details.samples.map((one) => one.sample);
  await samples("x");
  await wait(6);
  await publish("y", 3);
  await publish("x", 1);
  await until("it is sampled", async () => (await samples("x"))?.[0] === 1 && (await samples("y"))[0] === 3, 40_000);
  const boxes = (page) => page.$$eval(".topo-node", (all) => all.map((one) => one.dataset.id).filter((id) => /^[eq]:/.test(id)));
  const expected = ["e:z-live", "e:a-idle", "e:m-idle", "q:x", "q:y", "q:c", "q:d", "q:e"];
  const page = await open();
  await page.evaluate(() => {
    globalThis.seen = new Set();
    new MutationObserver(() => { const ids = [...document.querySelectorAll(".topo-node")].map((one) => one.dataset.id).filter((id) => /^[eq]:/.test(id)); if (ids.length) seen.add(ids.join(" ")); }).observe(document.body, { childList: true, subtree: true });
  });
  await go(page, "#/topology?vhost=drawn");
  await page.waitForSelector(".topo-node.queue");
  assert.deepEqual(await boxes(page), expected);
  // More wait in another one now, and nothing flows any more.
  await publish("x", 5);
  await page.waitForFunction(() => /6/.test(document.querySelector("[data-id='q:x'] b")?.textContent), { timeout: 40_000 });
  await wait(6);
  await page.keyboard.press("r");
  await wait(1);
  assert.deepEqual(await boxes(page), expected);
  assert.deepEqual(await page.evaluate(() => [...seen]), [expected.join(" ")], "nothing moved, from the first drawing on");
  await close(page);
  const again = await open();
  await go(again, "#/topology?vhost=drawn");
  await again.waitForSelector(".topo-node.queue");
  assert.deepEqual(await boxes(again), expected, "another window sees the same");
  await api("DELETE", "vhosts/drawn");
  await close(again);
});
