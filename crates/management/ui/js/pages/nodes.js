// The nodes, what each of them has left, and who leads what.
import { html, useStore } from "../lib.js";
import { ask, part, refresh, useOffer, usePoll, useRights } from "../api.js";
import { go, href } from "../router.js";
import { byteRate, bytes, count, duration, list, plural, rate } from "../format.js";
import { Chart, samplesQuery, useTimeline } from "../chart.js";
import { Icon } from "../icons.js";
import { Badge, Card, Empty, Facts, Menu, Meter, Wrong, attempt, confirm } from "../ui.js";
import { useSpan } from "./span.js";
import { Alarms, alarmsOf } from "../alarms.js";
import { cluster } from "../cluster.js";
import { grow, shrink } from "./copies.js";
import { showJoin } from "./join.js";
import { showLeave } from "./leave.js";
import { useDoing } from "./queues.js";
import { Logins, Settings } from "./settings.js";

const isUp = (node) => node.running !== false;
const State = ({ node }) => (isUp(node) ? node.being_drained ? html`<${Badge} kind="warn">in maintenance</${Badge}>` : html`<${Badge} kind="good">runs</${Badge}>` : html`<${Badge} kind="bad">does not run</${Badge}>`);

/** Free space is told as what is used up of the way to the limit: full is where publishers are blocked. */
function DiskMeter({ node }) {
  return html`<${Meter} label="Disk free" used=${node.disk_free > 0 ? Math.min(node.disk_free_limit, node.disk_free) : 0} of=${node.disk_free || 1} words=${bytes(node.disk_free)} limitWords=${`limit ${bytes(node.disk_free_limit)}`} />`;
}

const isAsked = (node) => cluster.get().nodes?.length > 1 && cluster.get().overview?.node === node.name;

export const NodeRow = ({ node }) => html`<article class="node-row">
  <div class="node-name"><a href=${href("nodes", node.name)}><i class="dot ${isUp(node) ? "good" : "bad"}" />${node.name}</a><span class="faint">${isUp(node) ? `up ${duration(node.uptime)}${isAsked(node) ? ", serves this page" : ""}` : "does not run"}</span></div>
  ${isUp(node) && html`<${Meter} label="Memory" used=${node.mem_used} of=${node.mem_limit} words=${bytes(node.mem_used)} limitWords=${node.mem_limit ? `of ${bytes(node.mem_limit)}` : ""} />
  <${DiskMeter} node=${node} />
  <${Meter} label="Connections" used=${node.sockets_used} of=${node.sockets_total} limitWords=${node.sockets_total ? `of ${count(node.sockets_total)}` : ""} />
  <${Meter} label="File descriptors" used=${node.fd_used} of=${node.fd_total} limitWords=${node.fd_total ? `of ${count(node.fd_total)}` : ""} />`}</article>`;

export function Nodes() {
  const can = useRights();
  const { data, failure } = usePoll("nodes");
  useDoing("join", showJoin, can.administrates);
  if (!can.monitors) return html`<h1>Nodes</h1><${Empty} title="Nodes are shown to users with the tag “monitoring”.">An administrator can give it to you.</${Empty}>`;
  const nodes = data ?? [];
  return html`<div class="page-head"><h1>Nodes</h1>${can.administrates && html`<div class="actions"><button type="button" onClick=${showJoin}><${Icon} name="plus" />Add a node</button>${nodes.length > 1 && html`<button type="button" onClick=${() => confirm({ title: "Spread the leaders over the nodes?", body: html`<p>Leaders move so that each node leads about as many queues. Nothing is lost; publishes to a queue wait some milliseconds while its leader moves.</p>`, verb: "Spread them", isSafe: true, doing: () => ask("POST", "rebalance/queues", {}).then(refresh) })}><${Icon} name="move" />Spread leaders</button>`}</div>`}</div>
    <${Wrong} failure=${failure} /><${Alarms} of=${alarmsOf(data)} />
    ${data && html`<${Card} title=${nodes.length === 1 ? "The node" : `${nodes.length} nodes`}><div class="node-rows">${nodes.map((node) => html`<${NodeRow} key=${node.name} node=${node} />`)}</div></${Card}>`}
    <${ClusterMap} nodes=${nodes} /><${Partitions} />`;
}

/** Who leads and who holds a copy of how many queues, counted from what the queues say of themselves. */
function ClusterMap({ nodes }) {
  const { data } = usePoll("queues?columns=name,vhost,type,leader,node,members,online,leveret_joining,messages", { every: 15 });
  if (!data || nodes.length === 0) return null;
  const of = new Map(nodes.map((node) => [node.name, { name: node.name, isUp: isUp(node), leads: 0, follows: 0, away: 0, messages: 0 }]));
  let [whole, partly, minority, leaderless] = [0, 0, 0, 0];
  for (const queue of data) {
    const members = queue.members ?? [queue.node], online = queue.online ?? members, joining = queue.leveret_joining ?? [], leader = queue.leader ?? queue.node;
    if (!leader) leaderless += 1;
    else if (online.length === members.length) whole += 1;
    else if (online.length > (members.length - joining.length) / 2) partly += 1;
    else minority += 1;
    for (const member of members) {
      const own = of.get(member);
      if (!own) continue;
      if (member === leader) { own.leads += 1; own.messages += queue.messages ?? 0; }
      else own.follows += 1;
      if (!online.includes(member) && !joining.includes(member)) own.away += 1;
    }
  }
  const most = Math.max(1, ...[...of.values()].map((node) => node.leads + node.follows));
  return html`<${Card} title="Leaders and copies" aside=${html`<span class="faint">${plural(data.length, "queue")}</span>`}>
    <p>${minority + leaderless > 0 ? html`<b class="bad">${plural(minority + leaderless, "queue has", "queues have")} no majority and ${minority + leaderless === 1 ? "waits" : "wait"} for ${minority + leaderless === 1 ? "its" : "their"} nodes.</b> ` : ""}${partly > 0 ? html`<b class="warn">${plural(partly, "queue lacks", "queues lack")} a copy.</b> ${partly === 1 ? "It goes" : "They go"} on, and another node must not fail now. ` : ""}${partly + minority + leaderless === 0 ? html`<b class="good">Every queue has all its copies.</b>` : whole > 0 ? whole === 1 ? "1 has all its copies." : `${count(whole)} have all their copies.` : ""}</p>
    <div class="map">${[...of.values()].map((node) => html`<div class="map-row" key=${node.name}><a href=${href("nodes", node.name)}><i class="dot ${node.isUp ? "good" : "bad"}" />${node.name}</a>
      <div class="map-bar" role="img" aria-label="${node.name} leads ${plural(node.leads, "queue")} and has a copy of ${node.follows} more"><i class="leads" style=${{ width: `${(100 * node.leads) / most}%` }} /><i class="follows" style=${{ width: `${(100 * node.follows) / most}%` }} /></div>
      <span><b>${count(node.leads)}</b> led${node.follows ? html`, <b>${count(node.follows)}</b> followed` : ""}${node.away ? html`, <b class="bad">${count(node.away)} away</b>` : ""}</span></div>`)}</div>
    <p class="key"><span><i class="leads" />leads: clients' messages go here first</span><span><i class="follows" />holds a copy</span></p></${Card}>`;
}

/** Every partition with its copies: who leads, and how far each other one is behind. */
function Partitions() {
  const isThere = useOffer("leveret/cluster");
  const { data } = usePoll(isThere ? "leveret/cluster" : null, { every: 10 });
  if (!data?.partitions?.length) return null;
  const nodes = data.nodes.map((node) => node.name);
  const state = (member) => {
    if (!member) return html`<span class="faint">no copy</span>`;
    if (member.state === "leader" && member.vote_needed === undefined) return html`<${Badge} kind="accent">leads</${Badge}>`;
    if (member.vote_needed !== undefined) return html`<${Badge} kind=${member.vote_needed ? "bad" : "warn"} title="Its copy is taken away, and its vote still counts">leaving${member.vote_needed ? ", its vote is needed" : ""}</${Badge}>`;
    if (member.state === "unreachable") return html`<${Badge} kind="bad">not reached</${Badge}>`;
    return html`<span class=${member.in_sync ? "good" : "warn"}><i class="dot ${member.in_sync ? "good" : "warn"}" />${member.in_sync ? (member.lag > 0 ? `in sync, ${count(member.lag)} behind` : "in sync") : `${count(member.lag)} behind`}</span>`;
  };
  return html`<${Card} title="Copies, partition by partition" aside=${html`<span class="faint">queues live in partitions; each has its own leader</span>`}>
    ${data.missing?.length > 0 && html`<p class="warn">${list(data.missing)} ${data.missing.length === 1 ? "does" : "do"} not answer.</p>`}
    ${data.queues?.guarantees?.length > 0 && html`<div class="chips">${data.queues.guarantees.map((one) => html`<span class="chip" key=${one.guarantee}><b>${plural(one.queues, "queue")}</b> ${one.guarantee}</span>`)}</div>`}
    ${data.queues?.under_replicated_first?.length > 0 && html`<p>Lacking copies: ${data.queues.under_replicated_first.slice(0, 10).map((one, at) => html`${at > 0 ? ", " : ""}<a href=${href("queues", one.vhost, one.name)}>${one.name}</a>`)}${data.queues.under_replicated > 10 ? ` and ${count(data.queues.under_replicated - 10)} more` : ""}.</p>`}
    <div class="table-box"><table><thead><tr><th scope="col">Partition</th>${nodes.map((name) => html`<th scope="col" key=${name}>${name}</th>`)}<th scope="col" class="number">Term</th><th scope="col" class="number">Committed</th></tr></thead>
      <tbody>${data.partitions.slice(0, 200).map((partition) => html`<tr key=${partition.partition}><td class="name">${partition.kind === "topology" ? "the topology itself" : `partition ${partition.partition}`}</td>${nodes.map((name) => html`<td key=${name} data-label=${name}>${state([...partition.members, ...(partition.leaving ?? [])].find((member) => member.node === name))}</td>`)}<td class="number" data-label="Term">${count(partition.term)}</td><td class="number" data-label="Committed">${count(partition.commit)}</td></tr>`)}</tbody></table></div></${Card}>`;
}

const lines = (line, of) => of.filter(([field]) => line.of[field]).map(([field, label, hue]) => ({ label, hue, points: line.of[field] }));

export function Node({ parts: [name] }) {
  const can = useRights();
  const [span, spanChoice] = useSpan();
  const { data: node, failure, at } = usePoll(`nodes/${part(name)}?${samplesQuery(span)}`);
  const held = useTimeline(`node ${name}`, node, ["mem_used", "sockets_used"], false, at, span[0]);
  const done = useTimeline(`node ${name}`, node, ["io_write_bytes", "io_sync_count", "connection_created", "connection_closed"], true, at, span[0]);
  const memory = usePoll(`nodes/${part(name)}/memory`, { every: 10 });
  const hold = (on) => attempt(() => ask(on ? "PUT" : "DELETE", `nodes/${part(name)}/publishers/hold`), on ? "Publishers are held." : "Publishers go on.").then(refresh);
  const rest = (on) => attempt(() => ask(on ? "PUT" : "DELETE", `nodes/${part(name)}/maintenance`), on ? `${name} hands over what it leads.` : `${name} serves clients again.`).then(refresh);
  const beginRest = () => confirm({ title: `Put ${name} into maintenance mode?`, verb: "Begin", isSafe: true, doing: () => rest(true),
    body: html`<p>Its clients are disconnected, and those that know another node go there; it takes no new ones and hands what it leads to other nodes. Copies on it stay in sync. Nothing is lost, but <b>a node alone serves nobody</b> until this is ended or it starts again.</p>` });
  const forget = () => confirm({ title: `Forget ${name} for good?`, verb: "Forget it", typed: name, doing: () => ask("DELETE", `leveret/nodes/${part(name)}`).then(() => { go("nodes"); refresh(); }),
    body: html`<p>The cluster stops waiting for it, and other nodes take the places of its copies. <b>It never comes back with what is in its data folder</b>; a new node may take its place. If it only stands still, start it again instead.</p>` });
  const { nodes } = useStore(cluster);
  const others = (nodes ?? []).filter((one) => one.name !== name).map((one) => one.name);
  const forgetSamples = () => confirm({ title: "Forget the samples of rates and histories?", verb: "Forget them", isSafe: true, doing: () => ask("DELETE", `reset/${part(name)}`).then(refresh), body: html`<p>Charts of <b>${name}</b> begin anew. Counts go on, and no message is touched.</p>` });
  const parts = Object.entries(memory.data?.memory ?? {}).filter(([word, size]) => typeof size === "number" && size > 0 && word !== "total").sort((a, b) => b[1] - a[1]);
  const total = memory.data?.memory?.total?.rss ?? node?.mem_used;
  const WORDS = { connection_readers: "Requests that wait", connection_channels: "Unfinished messages", queue_procs: "Messages of transient queues", quorum_queue_procs: "On the way to the log", plugins: "Remembered by x-recent-history", other_system: "Everything else" };
  return html`<nav class="crumbs" aria-label="Where this is"><a href="#/nodes">Nodes</a></nav><div class="page-head"><h1>${name} ${node && html`<${State} node=${node} />`}</h1>
    ${can.administrates && node && isUp(node) && html`<div class="actions">${node.leveret_publishers_held ? html`<button type="button" class="primary" onClick=${() => hold(false)}><${Icon} name="play" />Let publishers go on</button>`
      : html`<button type="button" onClick=${() => confirm({ title: "Hold all publishers of this node?", body: html`<p>They are blocked as by an alarm until you let them go on or the node starts again. Consumers go on and drain the queues. Nothing is lost.</p>`, verb: "Hold publishers", isSafe: true, doing: () => hold(true) })}><${Icon} name="pause" />Hold publishers</button>`}
      ${node.being_drained ? html`<button type="button" class="primary" onClick=${() => rest(false)}><${Icon} name="play" />End maintenance</button>` : html`<button type="button" onClick=${beginRest}><${Icon} name="settings" />Maintenance …</button>`}
      <${Menu} label="More" className="to-left">${others.length > 0 && html`<button type="button" onClick=${() => grow(name)}><${Icon} name="plus" />Give it copies …</button><button type="button" onClick=${() => shrink(name)}><${Icon} name="move" />Take its copies off …</button><hr />`}
        <button type="button" onClick=${forgetSamples}><${Icon} name="refresh" />Forget samples …</button>
        ${others.length > 0 && html`<hr /><button type="button" class="danger-text" onClick=${() => showLeave(name, others)}><${Icon} name="out" />Leave the cluster …</button>`}</${Menu}></div>`}
    ${can.administrates && node && !isUp(node) && html`<div class="actions">${others.length > 0 && html`<button type="button" onClick=${() => shrink(name)}><${Icon} name="move" />Take its copies off …</button>`}<button type="button" class="danger" onClick=${forget}><${Icon} name="trash" />Forget …</button></div>`}</div>
    <${Wrong} failure=${failure} /><${Alarms} of=${node ? alarmsOf([node]) : []} onRelease=${can.administrates ? () => hold(false) : undefined} />
    ${node && html`<${Card}><div class="node-rows"><${NodeRow} node=${node} /></div></${Card}>
    <div class="page-head minor"><h2>Over time</h2>${spanChoice}</div>
    <div class="charts"><${Chart} title="Memory" height=${150} times=${held.times} words=${bytes} series=${lines(held, [["mem_used", "In memory", "--publish"]])} />
      ${done.of.io_write_bytes && html`<${Chart} title="Written to disk" height=${150} times=${done.times} words=${byteRate} series=${lines(done, [["io_write_bytes", "Written", "--ready"]])} />`}
      ${done.of.io_sync_count && html`<${Chart} title="Syncs" height=${150} times=${done.times} words=${rate} series=${lines(done, [["io_sync_count", "Syncs to disk", "--confirm"]])} />`}
      ${done.of.connection_created && html`<${Chart} title="Connections" height=${150} times=${done.times} words=${rate} series=${lines(done, [["connection_created", "Opened", "--deliver"], ["connection_closed", "Closed", "--unroutable"]])} />`}</div>
    <div class="halves">
      <${Card} title="The process"><${Facts} of=${[["Up", duration(node.uptime)], ["Process", node.os_pid], ["Processors", node.processors], ["Threads", count(node.proc_used)], ["Data folder", node.db_dir && html`<code>${node.db_dir}</code>`], ["Files of settings", node.config_files?.length > 0 && node.config_files.map((file) => html`<code key=${file}>${file}</code> `)], ["Log", node.log_files?.length > 0 && node.log_files.map((file) => html`<code key=${file}>${file}</code> `)], ["Version", node.leveret_version && `Leveret ${node.leveret_version}`], ["Speaks as", node.rabbitmq_version && `RabbitMQ ${node.rabbitmq_version}`], ["Connections opened", count(node.connection_created)], ["Channels opened", count(node.channel_created)]]} /></${Card}>
      <${Card} title="The log"><${Facts} of=${[["Written to it", node.leveret_log_bytes_written !== undefined && bytes(node.leveret_log_bytes_written)], ["Syncs to disk", node.leveret_log_syncs !== undefined && count(node.leveret_log_syncs)], ["On the way to it", node.leveret_unwritten_bytes !== undefined && bytes(node.leveret_unwritten_bytes)], ["Value at risk", node.leveret_value_at_risk !== undefined && count(node.leveret_value_at_risk)], ["Messages set aside", node.leveret_messages_set_aside !== undefined && count(node.leveret_messages_set_aside)], ["Written to disk in all", node.io_write_bytes !== undefined && bytes(node.io_write_bytes)]]} /></${Card}>
      ${parts.length > 0 && html`<${Card} title="Memory" aside=${html`<b>${bytes(total)}</b>`}><ul class="bars">${parts.slice(0, 10).map(([word, size]) => html`<li key=${word}><span>${WORDS[word] ?? word.replaceAll("_", " ")}</span><span class="track"><i style=${{ width: `${Math.max(0.5, (100 * size) / (total || 1))}%` }} /></span><b>${bytes(size)}</b></li>`)}</ul></${Card}>`}
      ${isUp(node) && html`<${Logins} node=${name} />`}
    </div>
    ${isUp(node) && html`<${Settings} node=${name} />`}`}`;
}
