// The management page of three nodes in a real Chromium: who leads and who has copies, leaders that are spread, and what is wrong
// with what to do about it, each in both themes and three sizes. `make page-test` runs it after page.test.mjs; as there, the broker
// is LEVERET_BIN or the newest that was built, and SHOTS=folder keeps pictures.
//
// Invariant: the tests go through one cluster in the order in which they stand, and each leaves it as the next one expects it.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { THEMES, WIDTHS, browse, client, close, confirmBy, fill, freePort, go, gone, login, look, open as window, press, says, start, until, watchAccess } from "./harness.mjs";

const QUEUES = 12, COPIES = 3;
const NAMES = [1, 2, 3].map((number) => `leveret@n${number}`);
let folder, nodes = [], browser, ports, addresses;
const sockets = [];
const open = (how) => window(browser, nodes[0].base, how);

/** Starts a node, or starts it again, with more arguments. */
async function begin(at, more = []) {
  const own = ["--cluster-peers", addresses.join(","), "--cluster-address", addresses[at], "--cluster-secret-file", join(folder, "secret"), "--node-name", NAMES[at], "--partitions", "4"];
  nodes[at] = await start(join(folder, `data${at}`), [...own, ...more], ports[at]);
}
const all = (path) => nodes[0].api("GET", path);
const running = async () => (await all("nodes")).filter((node) => node.running).length;
/** How many queues each node leads, by its name. */
async function led() {
  const counts = Object.fromEntries(NAMES.map((name) => [name, 0]));
  for (const queue of await all("queues?columns=leader,node")) counts[queue.leader ?? queue.node] += 1;
  return counts;
}
const whole = async () => (await all("queues?columns=name,members,online,leader")).every((queue) => queue.leader && queue.online?.length === COPIES);

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "leveret-page-cluster-"));
  writeFileSync(join(folder, "secret"), "a secret of three nodes\n");
  ports = await Promise.all(NAMES.map(async () => ({ amqp: await freePort(), http: await freePort() })));
  // Nodes are numbered in the order of their addresses.
  addresses = (await Promise.all(NAMES.map(freePort))).map((port) => `127.0.0.1:${port}`).sort();
  await Promise.all(NAMES.map((_, at) => begin(at)));
  await until("three nodes run", async () => (await running()) === 3);
  for (let at = 0; at < QUEUES; at += 1) await nodes[at % 3].api("PUT", `queues/%2F/orders.${at}`, { durable: true, arguments: { "x-queue-type": "quorum" } });
  await until("every queue has its copies", whole);
  browser = await browse();
});

after(async () => {
  await browser?.close();
  sockets.forEach((socket) => socket.destroy());
  await Promise.all(nodes.map((node) => node?.end()));
  if (folder) rmSync(folder, { recursive: true, force: true });
});

/** Looks at pages in every theme and size; `hashes` are pairs of where and its name, `sees` what each has to say. */
async function everywhere(what, hashes, sees) {
  for (const theme of THEMES) {
    for (const width of WIDTHS) {
      const page = await open({ theme, width, user: null });
      await watchAccess(page);
      await login(page, "guest", "guest");
      for (const [hash, name] of hashes) {
        await go(page, `#/${hash}`);
        for (const [text, within] of sees(name)) await says(page, text, within);
        await look(page, `${theme}-${width}-${what}-${name}`);
      }
      await close(page);
    }
  }
}

/** What the map says of a node: how many it leads and follows, and how many copies it lacks. */
const row = (page, name) => page.evaluate((node) => {
  const found = [...document.querySelectorAll(".map-row")].find((one) => one.textContent.includes(node));
  const number = (pattern) => Number(pattern.exec(found.querySelector("span").textContent)?.[1] ?? 0);
  return { led: number(/(\d+) led/), followed: number(/(\d+) followed/), away: number(/(\d+) away/) };
}, name);

test("the map of three nodes shows who leads and who has copies, as the broker says it", async () => {
  await everywhere("well", [["nodes", "nodes"], ["", "overview"], ["queues/%2F/orders.0", "queue"]], (name) => ({
    nodes: [["3 nodes", "main h2"], ["Every queue has all its copies.", "main"]],
    overview: [["All 3 nodes run", ".all-well"]],
    queue: [["3 of 3 copies synced to disk", ".guarantee"], ...NAMES.map((node) => [node, "main"])],
  })[name]);
  const page = await open();
  await go(page, "#/nodes");
  await says(page, "Every queue has all its copies.", "main");
  const counts = await led();
  const shown = await Promise.all(NAMES.map((name) => row(page, name)));
  for (const [at, name] of NAMES.entries()) assert.deepEqual(shown[at], { led: counts[name], followed: QUEUES - counts[name], away: 0 }, name);
  // Each partition with a copy on every node.
  await says(page, "the topology itself", "main table");
  const cells = await page.$$eval("main table tbody tr", (rows) => rows.map((one) => [...one.querySelectorAll("td")].slice(1, 4).map((cell) => cell.textContent.trim())));
  for (const of of cells) assert.ok(of.filter((text) => text === "leads").length === 1 && !of.includes("no copy"), of.join());
  await close(page);
});

test("a copy that runs and is some entries behind is no alarm, and one that is far behind is", async () => {
  const page = await open();
  let behind = 7;
  await page.setRequestInterception(true);
  page.on("request", async (request) => {
    if (!request.url().includes("leveret/queues/%2F/orders.0")) { await request.continue(); return; }
    const told = await all("leveret/queues/%2F/orders.0");
    const late = told.members.find((member) => member.node === NAMES[1]);
    Object.assign(late, { in_sync: false, heard: true, synced_index: told.committed_index - behind });
    await request.respond({ contentType: "application/json", body: JSON.stringify({ ...told, copies_in_sync: 2, guarantee: "2 of 3 copies synced to disk; 2 before a confirm" }) });
  });
  await go(page, "#/queues/%2F/orders.0");
  await says(page, "leveret@n2 runs and is 7 entries behind.", ".guarantee.good");
  behind = 5000;
  await page.keyboard.press("r");
  await says(page, "leveret@n2 runs and is 5,000 entries behind.", ".guarantee.warn");
  await close(page);
});

test("a node that is gone is told with what to do, and what lacks a copy; when it is back, nothing is", async () => {
  await nodes[2].end("SIGKILL");
  await until("it is missed", async () => (await running()) === 2 && !(await whole()));
  await everywhere("gone", [["nodes", "nodes"], ["", "overview"], ["queues/%2F/orders.0", "queue"]], (name) => {
    const alarm = [["leveret@n3 does not run.", ".banner.bad"], ["Start it again with its own data folder; it catches up by itself.", ".banner.bad"]];
    return {
      nodes: [...alarm, ["12 queues lack a copy.", "main"], ["another node must not fail now", "main"]],
      overview: alarm,
      // Nothing was published since: what is on the disk of a node that is gone counts for nothing all the same.
      queue: [["2 of 3 copies synced to disk", ".guarantee"]],
    }[name];
  });
  const page = await open();
  await go(page, "#/nodes");
  await says(page, "12 queues lack a copy.", "main");
  const counts = await led();
  assert.deepEqual((({ led: leads, away }) => ({ leads, away }))(await row(page, NAMES[2])), { leads: 0, away: QUEUES });
  assert.equal((await row(page, NAMES[0])).led, counts[NAMES[0]]);
  await begin(2);
  await until("it caught up", whole);
  await page.keyboard.press("r");
  await gone(page, ".banner");
  await says(page, "Every queue has all its copies.", "main");
  await close(page);
});

/** Has the first node lead everything, and only just: who has led for less than a minute hands nothing over by itself. */
async function haveFirstLead() {
  const rest = async (at, isOn) => {
    await nodes[0].api(isOn ? "PUT" : "DELETE", `nodes/${NAMES[at]}/maintenance`);
    if (isOn) await until("it leads nothing", async () => (await led())[NAMES[at]] === 0);
  };
  await rest(0, true);
  await rest(0, false);
  await rest(1, true);
  await rest(2, true);
  await rest(1, false);
  await rest(2, false);
}

test("leaders are spread over the nodes after a question", async () => {
  await haveFirstLead();
  assert.deepEqual(await led(), { [NAMES[0]]: QUEUES, [NAMES[1]]: 0, [NAMES[2]]: 0 });
  const page = await open();
  await go(page, "#/nodes");
  await press(page, "Spread leaders", ".page-head");
  await says(page, "Nothing is lost", "dialog[open]");
  assert.equal((await led())[NAMES[0]], QUEUES, "not before the question is answered");
  await press(page, "Spread them", "dialog[open]");
  await gone(page, "dialog[open]");
  const counts = await until("the others lead some", async () => { const now = await led(); return now[NAMES[1]] > 0 && now[NAMES[2]] > 0 && now; });
  await until("the map shows it", async () => { await page.keyboard.press("r"); return (await row(page, NAMES[1])).led > 0 && (await row(page, NAMES[2])).led > 0; });
  assert.equal(Object.values(counts).reduce((sum, count) => sum + count, 0), QUEUES);
  await close(page);
});

test("how long copies on other nodes take is on the overview of a node that has such", async () => {
  const replicated = async () => (await all("leveret/latencies")).stages.replicate.count;
  await until("an entry is measured", async () => {
    for (let at = 0; at < QUEUES; at += 1) await nodes[0].api("POST", "exchanges/%2F/amq.default/publish", { routing_key: `orders.${at}`, payload: "m", payload_encoding: "string", properties: { delivery_mode: 2 } });
    return (await replicated()) > 0;
  }, 60_000);
  const page = await open();
  await says(page, "Copies on other nodes", "table.latencies");
  await close(page);
  for (let at = 0; at < QUEUES; at += 1) await nodes[0].api("DELETE", `queues/%2F/orders.${at}/contents`);
});

test("the page of another node tells which Leveret it runs, and what it speaks as", async () => {
  const { leveret_version: own, rabbitmq_version: told } = await all("overview");
  const page = await open();
  await go(page, `#/nodes/${encodeURIComponent(NAMES[1])}`);
  await says(page, "Leveret", "main .facts");
  const facts = Object.fromEntries(await page.$$eval("main .facts > div", (all) => all.map((one) => [one.querySelector("dt").textContent, one.querySelector("dd").textContent])));
  assert.equal(facts.Version, `Leveret ${own}`);
  assert.equal(facts["Speaks as"], `RabbitMQ ${told}`);
  await close(page);
});

test("a node is put into maintenance mode after a question, every page says so, and it is ended", async () => {
  const page = await open();
  const rests = async () => (await all("nodes"))[2].being_drained;
  await go(page, `#/nodes/${encodeURIComponent(NAMES[2])}`);
  await press(page, "Maintenance …", ".page-head:not(.minor)");
  await says(page, "Nothing is lost", "dialog[open]");
  assert.equal(await rests(), false, "not before the question is answered");
  await press(page, "Begin", "dialog[open]");
  await gone(page, "dialog[open]");
  await until("it rests and leads nothing", async () => (await rests()) && (await led())[NAMES[2]] === 0);
  await go(page, "#/");
  await says(page, "leveret@n3 is in maintenance mode: it serves no clients.", ".banner.warn");
  await go(page, `#/nodes/${encodeURIComponent(NAMES[2])}`);
  await says(page, "in maintenance", "h1");
  await press(page, "End maintenance", ".page-head:not(.minor)");
  await until("it serves again", async () => !(await rests()));
  await gone(page, ".banner");
  await close(page);
});

test("every alarm of several nodes is told at once, each with its node and with what to do", async () => {
  // A disk that is nearly full, connections that run out, publishers that an operator holds.
  await nodes[1].end();
  await until("it is missed", async () => (await running()) === 2);
  await begin(1, ["--disk-free-min-bytes", String(2 ** 43)]);
  await nodes[2].end();
  await until("it is missed", async () => (await running()) === 2);
  await begin(2, ["--connections-max", "10"]);
  await until("three nodes run", async () => (await running()) === 3 && (await whole()));
  while (sockets.length < 10) sockets.push(await client(nodes[2].amqp));
  await nodes[0].api("PUT", `nodes/${NAMES[0]}/publishers/hold`);
  await until("all of them are on", async () => { const [one, two, three] = await all("nodes"); return one.leveret_publishers_held && two.disk_free_alarm && three.sockets_used === 10; });
  const sees = [
    ["The disk is nearly full on leveret@n2: publishers are blocked.", ".banner.bad"], ["let them drain the queues, purge what nobody needs, or make room on the disk", ".banner.bad"],
    ["An operator holds all publishers on leveret@n1.", ".banner.warn"], ["Let publishers go on when that is done.", ".banner.warn"],
    ["Connections run out on leveret@n3.", ".banner.warn"], ["Raise connections_max", ".banner.warn"],
  ];
  await everywhere("alarms", [["nodes", "nodes"], ["", "overview"], [`nodes/${encodeURIComponent(NAMES[1])}`, "node"]], (name) => (name === "node" ? [["publishers are blocked", ".banner.bad"]] : sees));
  const page = await open();
  await says(page, "publishers are blocked", ".banner.bad");
  assert.deepEqual(await page.$$eval("main .banner", (all) => all.map((one) => (one.classList.contains("bad") ? "bad" : "warn"))), ["bad", "warn", "warn"], "the worst first, and no other");
  assert.equal(await page.$(".all-well"), null);
  await press(page, "Let publishers go on", "main");
  await until("publishers go on", async () => !(await all("nodes"))[0].leveret_publishers_held);
  sockets.splice(0).forEach((socket) => socket.destroy());
  await until("two alarms are over", async () => { await page.keyboard.press("r"); return (await page.$$("main .banner")).length === 1; });
  await close(page);
});

test("copies of a queue are taken and given by clicks, and who still votes for it is shown until it has left", async () => {
  // Without what the test before had them started with.
  for (const at of [1, 2]) {
    await nodes[at].end();
    await until("it is missed", async () => (await running()) < 3);
    await begin(at);
    await until("three nodes run", async () => (await running()) === 3 && (await whole()));
  }
  await nodes[0].api("PUT", "queues/%2F/alone", { durable: true, arguments: { "x-queue-type": "quorum", "x-dedicated-partition": true, "x-quorum-initial-group-size": 2 } });
  const status = () => all("queues/quorum/%2F/alone/status");
  const hasCopies = (count) => async () => { const rows = await status(); return rows.length === count && rows.every((one) => one.Membership === "voter") && rows.some((one) => one["Raft State"] === "leader") && rows; };
  await until("it has its copies", hasCopies(2));
  await haveFirstLead();
  // Not the one whose page this is.
  const rows = await until("one follows", hasCopies(2));
  const leaver = rows.find((one) => one["Raft State"] !== "leader")["Node Name"];
  const { process: stopped } = nodes[NAMES.indexOf(leaver)];
  assert.notEqual(leaver, NAMES[0]);
  const page = await open();
  await go(page, "#/queues/%2F/alone");
  await says(page, "Members (2)", "main");
  await press(page, `Take the copy on ${leaver} away`, "main");
  await says(page, "alone has 1 copy afterwards", "dialog[open]");
  // Of two members both have to decide that one of them goes.
  stopped.kill("SIGSTOP");
  await press(page, "Take it away", "dialog[open]");
  await gone(page, "dialog[open]");
  await until("its vote is needed", async () => (await status()).some((one) => one["Node Name"] === leaver && one.Membership === "leaving" && one.leveret_vote_needed));
  await everywhere("leaving", [["queues/%2F/alone", "queue"], ["nodes", "nodes"]], (name) => ({
    queue: [[`${leaver} is leaving:`, "main .leaving"], ["Its vote is needed", "main .leaving"], ["start it again with its own data folder", "main .leaving"], [`No majority without ${leaver}`, ".guarantee.bad"]],
    nodes: [["leaving, its vote is needed", "main table"]],
  })[name]);
  // Nobody takes a message in, which is told while it waits.
  const refused = nodes[0].api("POST", "exchanges/%2F/amq.default/publish", { routing_key: "alone", payload: "?", payload_encoding: "string", properties: {} }).catch((error) => error.message);
  await go(page, "#/waiting");
  await says(page, "POST /api/exchanges/%2F/amq.default/publish", "main table");
  assert.match(String(await refused), /: 503 /);
  stopped.kill("SIGCONT");
  await until("it has left", hasCopies(1), 60_000);
  await until("three nodes run", async () => (await running()) === 3);
  await go(page, "#/queues/%2F/alone");
  await page.keyboard.press("r");
  await says(page, "Members (1)", "main");
  assert.equal(await page.$("main .leaving"), null);
  await press(page, "Add a copy", "main");
  await fill(page, "On the node", leaver);
  await press(page, "Add the copy", "dialog[open]");
  await until("two copies", hasCopies(2));
  await says(page, "Members (2)", "main");
  await nodes[0].api("DELETE", "queues/%2F/alone");
  await close(page);
});

test("a node has all copies of quorum queues taken off it and given back", async () => {
  const members = async () => (await all("queues?columns=name,members")).filter((queue) => queue.members.includes(NAMES[2])).length;
  await until("each has a copy there", async () => (await members()) === QUEUES);
  const page = await open();
  await go(page, `#/nodes/${encodeURIComponent(NAMES[2])}`);
  await press(page, "More", ".page-head:not(.minor)");
  await press(page, "Take its copies off …", ".page-head:not(.minor)");
  await says(page, "one copy fewer", "dialog[open]");
  await confirmBy(page, NAMES[2]);
  assert.equal(await members(), QUEUES, "not before the question is answered");
  await press(page, "Take them off", "dialog[open]");
  await says(page, `${QUEUES} queues: no copy on leveret@n3 any more.`, ".toasts");
  await until("none has a copy there", async () => (await members()) === 0);
  await press(page, "More", ".page-head:not(.minor)");
  await press(page, "Give it copies …", ".page-head:not(.minor)");
  await press(page, "Give it copies", "dialog[open]");
  await says(page, `${QUEUES} queues: a copy on leveret@n3.`, ".toasts");
  await until("each has one again", async () => (await members()) === QUEUES && (await whole()));
  await close(page);
});

test("a node that is gone for good is forgotten once its name is typed", async () => {
  await nodes[1].end();
  await until("it is missed", async () => (await running()) === 2);
  await begin(1);
  await until("three nodes run", async () => (await running()) === 3 && (await whole()));
  await nodes[2].end("SIGKILL");
  await until("it is missed", async () => (await running()) === 2 && (await led())[NAMES[2]] === 0);
  const page = await open();
  await go(page, `#/nodes/${encodeURIComponent(NAMES[2])}`);
  await says(page, "does not run", "h1");
  await press(page, "Forget …", ".page-head:not(.minor)");
  await page.waitForSelector("dialog[open] input.mono");
  assert.equal(await page.$eval("dialog[open] button.danger", (button) => button.disabled), true);
  await confirmBy(page, NAMES[2]);
  await press(page, "Forget it", "dialog[open]");
  await page.waitForFunction(() => location.hash === "#/nodes");
  await until("two nodes are left", async () => (await all("nodes")).map((node) => node.name).join() === NAMES.slice(0, 2).join());
  await says(page, "2 nodes", "main h2");
  await gone(page, ".banner");
  await close(page);
});

/** Another node comes to the cluster, as the page says. */
async function comes(number) {
  const page = await open();
  await go(page, "#/nodes");
  await press(page, "Add a node", "main");
  await says(page, join(folder, "secret"), "dialog[open]");
  const found = await page.waitForFunction(() => [...document.querySelectorAll("dialog[open] .command code")].map((one) => one.textContent).find((text) => text.includes("cluster join")));
  const [, via] = /^leveret cluster join (\S+) --cluster-secret-file secret$/.exec(await found.jsonValue());
  await close(page);
  assert.ok(addresses.includes(via), `${via} is none of ${addresses.join()}`);
  const own = ["--cluster-address", `127.0.0.1:${await freePort()}`, "--cluster-secret-file", join(folder, "secret"), "--node-name", `leveret@n${number}`];
  const newcomer = await start(join(folder, `data${number}`), ["--cluster-join", via, ...own]);
  nodes.push(newcomer);
  await until("it has joined and has its copies", async () => (await running()) === 3 && (await whole()), 60_000);
  // Until it has votes and what a majority has, nobody else may go.
  await until("the first one could go", async () => { await all(`leveret/nodes/${NAMES[0]}/leave`); return true; }, 60_000);
  return newcomer;
}

/** Opens the question whether a node is to leave. */
async function askToLeave(page, name) {
  await go(page, `#/nodes/${encodeURIComponent(name)}`);
  await press(page, "More", ".page-head:not(.minor)");
  await press(page, "Leave the cluster …", ".page-head:not(.minor)");
}

test("a node that others need does not leave, which is said before anything is done", async () => {
  const page = await open();
  await askToLeave(page, NAMES[1]);
  await says(page, "1 of 2 copies would keep up without it", "dialog[open] [role=alert]");
  assert.equal(await page.$("dialog[open] button.danger"), null);
  assert.equal((await all("nodes"))[1].being_drained, false);
  await press(page, "Close", "dialog[open] footer");
  await close(page);
});

test("a node joins by the command that the page says, and leaves the cluster after a question while the page shows how far it is", async () => {
  const newcomer = await comes(4);
  for (const theme of THEMES) {
    for (const width of WIDTHS) {
      const page = await open({ theme, width });
      await watchAccess(page);
      await askToLeave(page, "leveret@n4");
      await says(page, "The others forget it", "dialog[open]");
      await look(page, `${theme}-${width}-leave`);
      await close(page);
    }
  }
  const page = await open();
  await askToLeave(page, "leveret@n4");
  await says(page, "No message is lost", "dialog[open]");
  await confirmBy(page, "leveret@n4");
  assert.equal((await all("nodes")).length, 3, "not before the question is answered");
  const steps = page.evaluate(() => new Promise((resolve) => {
    const seen = new Set();
    new MutationObserver(() => { const now = document.querySelector("dialog[open] .marked .is-now b"); if (now) seen.add(now.textContent); if (location.hash === "#/nodes") resolve([...seen]); }).observe(document.body, { subtree: true, childList: true, attributes: true });
  }));
  await press(page, "Leave the cluster", "dialog[open] footer");
  await page.waitForFunction(() => location.hash === "#/nodes");
  assert.deepEqual((await steps).slice(-2), ["The others forget it", "Its process ends"]);
  await until("it is no member", async () => (await all("nodes")).map((node) => node.name).join() === NAMES.slice(0, 2).join());
  await until("its process has ended", async () => newcomer.process.exitCode === 0);
  await gone(page, "dialog[open]");
  await says(page, "2 nodes", "main h2");
  await close(page);
});

test("the node that serves the page leaves too, and the page says where to go on", async () => {
  await comes(5);
  const page = await open();
  await askToLeave(page, NAMES[0]);
  await says(page, "This page is that node's", "dialog[open]");
  await confirmBy(page, NAMES[0]);
  await press(page, "Leave the cluster", "dialog[open] footer");
  await says(page, "Open the page of leveret@n2 and leveret@n5.", "dialog[open]");
  await until("its process has ended", async () => nodes[0].process.exitCode === 0);
  await until("the others are left", async () => (await nodes[1].api("GET", "nodes")).map((node) => node.name).join() === "leveret@n2,leveret@n5");
  // The browser tells of each question that nobody answers.
  page.wrong = page.wrong.filter((text) => !/ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET|ERR_SOCKET_NOT_CONNECTED/.test(text));
  await close(page);
});
