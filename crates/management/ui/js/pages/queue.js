// One queue: what it promises now, what is in it, who fills and empties it, and what can be done.
import { html } from "../lib.js";
import { ask, get, part, path, refresh, usePoll } from "../api.js";
import { go, href } from "../router.js";
import { bytes, count, duration, plural, rate, short } from "../format.js";
import { Chart, rateNow, samplesQuery, useTimeline } from "../chart.js";
import { DataTable } from "../table.js";
import { Icon } from "../icons.js";
import { Arguments, Badge, Card, Empty, Facts, Figure, Menu, Wrong, ask_for, confirm, table_of, tell } from "../ui.js";
import { Tile, useSpan } from "./overview.js";
import { ConsumerColumns } from "./clients.js";
import { Marks } from "./queues.js";
import { Bindings, bindFields } from "./bindings.js";
import { Messages, publishFields, publishTo } from "./messages.js";

const RATES = ["publish", "deliver_get", "ack", "redeliver"];
const LENGTHS = ["messages_ready", "messages_unacknowledged"];

export function Queue({ parts: [vhost, name] }) {
  const at_ = path(vhost, name);
  const [span, spanChoice] = useSpan();
  const { data: queue, failure, at } = usePoll(`queues/${at_}?${samplesQuery(span)}`);
  const stats = queue?.message_stats;
  const rates = useTimeline(`queue ${at_}`, stats, RATES, true, at, span[0]);
  const lengths = useTimeline(`queue ${at_}`, queue, LENGTHS, false, at, span[0]);
  const now = (field) => rateNow(stats, field, rates);
  if (failure?.status === 404 && !queue) return html`<nav class="crumbs" aria-label="Where this is"><a href="#/queues">Queues</a></nav><h1>${name}</h1><${Empty} title="There is no such queue.">It may have been deleted, or expired, or its connection was closed. <a href="#/queues">All queues</a></${Empty}>`;
  const series = (line, of) => of.filter(([field]) => line.of[field]).map(([field, label, hue]) => ({ label, hue, points: line.of[field] }));
  const consumers = queue?.consumer_details;
  return html`<nav class="crumbs" aria-label="Where this is"><a href="#/queues">Queues</a>${vhost !== "/" && html`<a href="${href("queues")}?vhost=${part(vhost)}">${vhost}</a>`}</nav>
    <div class="page-head"><h1 class="mono-title">${name} ${queue && html`<span class="type ${queue.type}">${queue.type}</span> <${Marks} queue=${queue} />`}</h1>${queue && html`<${Actions} queue=${queue} />`}</div>
    <${Wrong} failure=${failure} />
    ${queue && html`<${Guarantee} queue=${queue} />
    <div class="tiles">
      <${Tile} label="Ready" value=${count(queue.messages_ready)} hue="--ready" points=${lengths.of.messages_ready} more="wait for a consumer" />
      <${Tile} label="Unacknowledged" value=${count(queue.messages_unacknowledged)} hue="--unacked" points=${lengths.of.messages_unacknowledged} more="are with a consumer" />
      ${stats && html`<${Tile} label="Published" value=${rate(now("publish"))} hue="--publish" points=${rates.of.publish} more=${stats?.publish !== undefined && `${short(stats.publish)} in all`} />
      <${Tile} label="Delivered" value=${rate(now("deliver_get"))} hue="--deliver" points=${rates.of.deliver_get} more=${stats?.deliver_get !== undefined && `${short(stats.deliver_get)} in all`} />
      <${Tile} label="Acknowledged" value=${rate(now("ack"))} hue="--ack" points=${rates.of.ack} more=${drains(queue, now)} />`}
      <${Tile} label="Consumers" value=${count(queue.consumers)} more=${queue.consumer_utilisation ? `busy to ${Math.round(queue.consumer_utilisation * 100)} %` : queue.consumers ? "" : "nobody takes messages out"} kind=${queue.messages_ready > 0 && !queue.consumers ? "warn" : ""} />
    </div>
    <div class="page-head minor"><h2>Over time</h2>${spanChoice}</div>
    <div class="charts">
      <${Chart} title="Messages" times=${lengths.times} words=${short} series=${series(lengths, [["messages_ready", "Ready", "--ready"], ["messages_unacknowledged", "Unacknowledged", "--unacked"]])} />
      ${stats && html`<${Chart} title="Rates" times=${rates.times} words=${rate} series=${series(rates, [["publish", "Published", "--publish"], ["deliver_get", "Delivered", "--deliver"], ["ack", "Acknowledged", "--ack"], ...(stats.redeliver > 0 ? [["redeliver", "Redelivered", "--redeliver"]] : [])])} />`}
    </div>
    <div class="halves">
      <${Card} title="Where its messages are"><${Backlog} queue=${queue} /></${Card}>
      <${Card} title="How it is declared"><${Facts} of=${[["Arguments", html`<${Arguments} of=${queue.arguments} />`], ["Policy", queue.policy && html`<a href="#/policies?name=${part(queue.policy)}">${queue.policy}</a>`], ["Operator policy", queue.operator_policy], ["In force by policies", Object.keys(queue.effective_policy_definition ?? {}).length > 0 && html`<${Arguments} of=${queue.effective_policy_definition} />`], ["Durable", queue.durable ? "yes" : "no: it goes at a restart"], ["Virtual host", queue.vhost], ["Owner", queue.owner_pid_details?.name], ["Repeats dropped", queue.leveret_repeats_dropped !== undefined && count(queue.leveret_repeats_dropped)]]} /></${Card}>
    </div>
    <${Members} queue=${queue} />
    <${Card} title=${`Consumers (${count(consumers?.length ?? queue.consumers)})`}>${consumers?.length ? html`<${DataTable} id="queue-consumers" small rows=${consumers} columns=${ConsumerColumns.filter((column) => column.key !== "queue")} rowKey=${(one) => `${one.channel_details?.name}${one.consumer_tag}`} search=${(one) => [one.consumer_tag, one.channel_details?.connection_name]} natural="consumer_tag" noun="consumers" />`
      : html`<${Empty} title="Nobody consumes from this queue.">${queue.messages_ready > 0 ? "Its messages wait until an application calls basic.consume or basic.get." : "Messages will wait here until somebody does."}</${Empty}>`}</${Card}>
    <${Card} title="Bindings" aside=${html`<button type="button" onClick=${() => ask_for({ title: `Bind ${name}`, verb: "Bind", fields: bindFields({ toQueue: true }), submit: (values) => ask("POST", `bindings/${part(vhost)}/e/${part(values.source)}/q/${part(name)}`, { routing_key: values.routing_key, arguments: table_of(values.arguments) }).then(() => { tell("Bound."); refresh(); }) })}><${Icon} name="plus" />Bind</button>`}><${Bindings} url=${`queues/${at_}/bindings`} vhost=${vhost} hides="destination" none="Only the default exchange routes to it, by its name." /></${Card}>
    <${Messages} queue=${queue} />`}`;
}

/** When the queue is empty at the rate of the last seconds. */
function drains(queue, now) {
  const [into, out] = [now("publish"), now("ack")];
  if (into === undefined || out === undefined || !(queue.messages > 100)) return "";
  if (out <= into) return out < into * 0.9 ? "it grows" : "";
  return `empty in about ${duration((queue.messages / (out - into)) * 1000)}`;
}

/** What a confirm of this queue means now, in words. */
function Guarantee({ queue }) {
  const own = queue.leveret_guarantee ?? queue.guarantee;
  let kind = "good", words, more = "";
  if (own && typeof own === "object") {
    kind = own.level ?? (own.in_sync === undefined || own.in_sync >= (own.copies ?? 1) ? "good" : own.in_sync > (own.copies ?? 1) / 2 ? "warn" : "bad");
    words = own.words ?? own.text;
  }
  const members = queue.members?.length ?? 1, online = queue.online?.length ?? members;
  if (queue.state === "down" || queue.state === "minority" || (queue.members && online <= members / 2)) {
    kind = "bad";
    words = queue.state === "down" && members === 1 ? "It is unavailable: its partition is damaged." : `${online} of ${plural(members, "copy", "copies")}: no majority, so nothing goes in or out.`;
    more = members === 1 ? "Run “leveret repair” on the data folder, or bring a copy of it." : "Start the missing nodes again with their own data folders.";
  } else if (!words) {
    const isSynced = queue.durable !== false;
    if (!isSynced) { kind = "warn"; words = "In the memory of one node: a restart takes its messages."; more = "Declare it durable to keep them."; }
    else if (online < members) { kind = "warn"; words = `${online} of ${members} copies synced to disk.`; more = "A majority is there, so it goes on. Bring the missing node back before another one goes."; }
    else if (members === 1) { words = "1 of 1 copy synced to disk before a confirm."; more = "It survives crashes and power cuts of this node, not the loss of its disk. Three nodes keep three copies."; }
    else { words = `${online} of ${members} copies synced to disk.`; more = `A confirm means that a majority has it on disk; ${plural(Math.ceil(members / 2) - 1, "node")} may fail without a loss.`; }
  }
  const risk = queue.leveret_value_at_risk_cap !== undefined && html` <span>Value at risk: <b>${count(queue.leveret_value_at_risk)}</b> of at most ${count(queue.leveret_value_at_risk_cap)} (confirmed, not yet synced).</span>`;
  return html`<div class="guarantee ${kind}"><${Icon} name=${kind === "good" ? "check" : "alert"} size=${22} /><p><b>${words}</b> ${more}${risk}</p></div>`;
}

/** How the backlog lies in memory and on disk, as far as the broker says. */
function Backlog({ queue }) {
  const memory = queue.message_bytes_ram, disk = queue.message_bytes_persistent ?? queue.leveret_disk_bytes;
  const facts = [
    ["Messages", html`<b>${count(queue.messages)}</b>`],
    ["Delayed", queue.messages_delayed ? count(queue.messages_delayed) : undefined],
    ["Their bodies", queue.message_bytes !== undefined && bytes(queue.message_bytes)],
    ["In memory", queue.messages_ram !== undefined ? `${count(queue.messages_ram)}${memory !== undefined ? ` (${bytes(memory)})` : ""}` : memory !== undefined && bytes(memory)],
    ["On disk", queue.messages_persistent !== undefined ? `${count(queue.messages_persistent)}${disk !== undefined ? ` (${bytes(disk)})` : ""}` : disk !== undefined && bytes(disk)],
    ["Memory of the queue", queue.memory !== undefined && bytes(queue.memory)],
    ["Oldest message", queue.head_message_timestamp && new Date(queue.head_message_timestamp * 1000).toLocaleString()],
    ["Idle since", queue.idle_since],
    ["Leader", queue.leader || queue.node],
  ];
  return html`<${Facts} of=${facts} />${queue.message_bytes === undefined && html`<p class="faint">${queue.durable === false ? "Its messages are in the memory of its node." : "Bodies are on disk; memory holds some ten bytes for each message, however long the queue is."}</p>`}`;
}

/** Each member's place in the log. */
function Members({ queue }) {
  const isReplicated = queue.type === "quorum";
  const { data } = usePoll(isReplicated ? `queues/quorum/${path(queue.vhost, queue.name)}/status` : null, { every: 10 });
  if (!isReplicated || !Array.isArray(data) || data.length === 0) return null;
  const indexOf = (member) => member["Log Index"] ?? member["Last Log Index"] ?? member.last_log_index;
  const indexes = data.map(indexOf).filter((index) => typeof index === "number");
  const head = Math.max(0, ...indexes);
  return html`<${Card} title=${`Members (${data.length})`}><div class="table-box"><table><thead><tr><th scope="col">Node</th><th scope="col">Is</th>${indexes.length > 0 && html`<th scope="col" class="number">Log index</th><th scope="col" class="number">Behind</th>`}<th scope="col" class="number">Term</th></tr></thead>
    <tbody>${data.map((member) => { const name = member["Node Name"] ?? member.node ?? member.name, state = member["Raft State"] ?? member.state, index = indexOf(member); return html`<tr key=${name}><td class="name" data-label="Node"><a href=${href("nodes", name)}>${name}</a></td><td data-label="Is"><${Badge} kind=${state === "leader" ? "accent" : /follower/.test(state) ? "good" : "bad"}>${state}</${Badge}></td>${indexes.length > 0 && html`<td class="number" data-label="Log index">${count(index)}</td><td class="number" data-label="Behind"><${Figure} n=${typeof index === "number" ? head - index : undefined} /></td>`}<td class="number" data-label="Term">${count(member.Term ?? member.term)}</td></tr>`; })}</tbody></table></div></${Card}>`;
}

function Actions({ queue }) {
  const { vhost, name } = queue;
  const url = path(vhost, name);
  const purge = () => confirm({ title: `Purge ${name}?`, verb: "Purge", typed: queue.messages_ready > 0 ? name : undefined,
    body: html`<p><b>${plural(queue.messages_ready ?? 0, "ready message is", "ready messages are")} lost for good.</b> What consumers hold (${count(queue.messages_unacknowledged ?? 0)}) stays.</p>`,
    doing: async () => { await ask("DELETE", `queues/${url}/contents`); tell(`${name} is purged.`); refresh(); } });
  const remove = () => confirm({ title: `Delete ${name}?`, verb: "Delete", typed: queue.messages > 0 || queue.consumers > 0 ? name : undefined,
    body: html`<p>${queue.messages > 0 ? html`<b>${plural(queue.messages, "message is", "messages are")} lost for good.</b> ` : "It is empty. "}${queue.consumers > 0 ? html`<b>${plural(queue.consumers, "consumer is", "consumers are")} cancelled.</b> ` : ""}Its bindings go too: publishers may find no route.</p>`,
    doing: async () => { await ask("DELETE", `queues/${url}`); tell(`${name} is deleted.`); go("queues"); } });
  return html`<div class="actions">
    <button type="button" onClick=${() => ask_for({ title: `Publish to ${name}`, verb: "Publish", wide: true, fields: publishFields({ hasKey: false }), submit: (values) => publishTo(vhost, "amq.default", name, values).then(refresh) })}><${Icon} name="send" />Publish</button>
    <button type="button" onClick=${() => moveMessages(queue)} disabled=${!queue.messages_ready} title=${queue.messages_ready ? "Move its messages to another queue" : "There is nothing to move"}><${Icon} name="move" />Move</button>
    <${Menu} label="More" className="to-left">
      <button type="button" disabled=${!queue.messages_ready} onClick=${purge}><${Icon} name="purge" />Purge …</button>
      <button type="button" class="danger-text" onClick=${remove}><${Icon} name="trash" />Delete …</button></${Menu}></div>`;
}

/** Moves what is ready to another queue, a part at a time; a message is taken out when it is in the other one. */
function moveMessages(queue) {
  const { vhost, name } = queue;
  ask_for({
    title: `Move messages of ${name}`, verb: "Move",
    note: "Each is published to the other queue, and leaves this one when that queue has confirmed it: nothing is lost, and if the node fails in between one message may be in both.",
    fields: [{ name: "to", label: "To the queue", isNeeded: true }, { name: "count", label: "How many", kind: "number", min: 1, value: String(queue.messages_ready), isNeeded: true }],
    submit: async ({ to, count: most }) => {
      let moved = 0;
      const wanted = Math.round(Number(most));
      if (!(wanted > 0)) throw new Error("How many is a whole number from 1 on.");
      await get(`queues/${path(vhost, to)}?columns=name`).catch((failure) => { throw failure.status === 404 ? new Error(`There is no queue ${to} in ${vhost}.`) : failure; });
      while (moved < wanted) {
        const answer = await ask("POST", `leveret/queues/${path(vhost, name)}/move`, { to, count: Math.min(wanted - moved, 1000) });
        moved += answer.moved;
        if (answer.moved === 0) break;
      }
      tell(`${plural(moved, "message")} moved to ${to}.`);
      refresh();
    },
  });
}
