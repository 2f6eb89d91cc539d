// One queue: what it promises now, what is in it, who fills and empties it, and what can be done.
import { html, useStore } from "../lib.js";
import { ask, get, part, path, refresh, useOffer, usePoll, useRights } from "../api.js";
import { go, href } from "../router.js";
import { bytes, count, duration, list, plural, rate, short } from "../format.js";
import { Chart, rateNow, samplesQuery, useTimeline } from "../chart.js";
import { DataTable } from "../table.js";
import { Icon } from "../icons.js";
import { Arguments, Badge, Card, Empty, Facts, Figure, Menu, Wrong, ask_for, confirm, table_of, tell } from "../ui.js";
import { cluster } from "../cluster.js";
import { Tile, again, isWith, waits } from "./overview.js";
import { useSpan } from "./span.js";
import { ConsumerColumns } from "./clients.js";
import { Marks } from "./queues.js";
import { Bindings, bindFields } from "./bindings.js";
import { addCopy, takeCopy } from "./copies.js";
import { Messages, publishFields, publishTo } from "./messages.js";

const RATES = ["publish", "deliver_get", "ack", "redeliver"];
const LENGTHS = ["messages_ready", "messages_unacknowledged"];
/** Entries of the log that a copy lacks which does not just keep step. */
const FAR_BEHIND = 1000;

export function Queue({ parts: [vhost, name] }) {
  const at_ = path(vhost, name);
  const [span, spanChoice] = useSpan();
  const { data: queue, failure, at } = usePoll(`queues/${at_}?${samplesQuery(span)}`);
  const isPromised = useOffer("leveret/queues/{vhost}/{queue}");
  const { data: told } = usePoll(isPromised ? `leveret/queues/${at_}` : null);
  const { data: status } = usePoll(queue?.type === "quorum" ? `queues/quorum/${at_}/status` : null);
  const members = membersOf(status, told);
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
    ${queue && html`<${Guarantee} queue=${queue} told=${told} members=${members} />
    <div class="tiles">
      <${Tile} label="Ready" value=${count(queue.messages_ready)} hue="--ready" points=${lengths.of.messages_ready} more=${waits(queue.messages_ready)} />
      <${Tile} label="Unacknowledged" value=${count(queue.messages_unacknowledged)} hue="--unacked" points=${lengths.of.messages_unacknowledged} more=${isWith(queue.messages_unacknowledged)} />
      ${stats && html`<${Tile} label="Published" value=${rate(now("publish"))} hue="--publish" points=${rates.of.publish} more=${stats?.publish !== undefined && `${short(stats.publish)} in all`} />
      <${Tile} label="Delivered" value=${rate(now("deliver_get"))} hue="--deliver" points=${rates.of.deliver_get} more=${stats?.deliver_get !== undefined && `${short(stats.deliver_get)} in all${again(stats)}`} />
      <${Tile} label="Acknowledged" value=${rate(now("ack"))} hue="--ack" points=${rates.of.ack} more=${drains(queue, now)} />`}
      <${Tile} label="Consumers" value=${count(queue.consumers)} more=${queue.consumer_utilisation ? `busy to ${Math.round(queue.consumer_utilisation * 100)} %` : queue.consumers ? "" : "nobody takes messages out"} kind=${queue.messages_ready > 0 && !queue.consumers ? "warn" : ""} />
    </div>
    <div class="page-head minor"><h2>Over time</h2>${spanChoice}</div>
    <div class="charts">
      <${Chart} title="Messages" times=${lengths.times} words=${short} series=${series(lengths, [["messages_ready", "Ready", "--ready"], ["messages_unacknowledged", "Unacknowledged", "--unacked"]])} />
      ${stats && html`<${Chart} title="Rates" times=${rates.times} words=${rate} series=${series(rates, [["publish", "Published", "--publish"], ["deliver_get", "Delivered", "--deliver"], ["ack", "Acknowledged", "--ack"], ...(stats.redeliver > 0 ? [["redeliver", "Redelivered", "--redeliver"]] : [])])} />`}
    </div>
    <div class="halves">
      <${Card} title="Where its messages are"><${Backlog} queue=${queue} told=${told} /></${Card}>
      <${Card} title="How it is declared"><${Facts} of=${[["Arguments", html`<${Arguments} of=${queue.arguments} />`], ["Policy", queue.policy && html`<a href="#/policies?name=${part(queue.policy)}">${queue.policy}</a>`], ["Operator policy", queue.operator_policy], ["In force by policies", Object.keys(queue.effective_policy_definition ?? {}).length > 0 && html`<${Arguments} of=${queue.effective_policy_definition} />`], ["Durable", queue.durable ? "yes" : "no: it goes at a restart"], ["Virtual host", queue.vhost], ["Owner", queue.owner_pid_details?.name], ["Repeats dropped", queue.leveret_repeats_dropped !== undefined && count(queue.leveret_repeats_dropped)]]} /></${Card}>
    </div>
    ${(queue.incoming?.length > 0 || queue.deliveries?.length > 0) && html`<${Flow} queue=${queue} />`}
    <${Members} queue=${queue} told=${told} rows=${members} />
    <${Card} title=${`Consumers (${count(consumers?.length ?? queue.consumers)})`}>${consumers?.length ? html`<${DataTable} id="queue-consumers" small rows=${consumers} columns=${ConsumerColumns.filter((column) => column.key !== "queue")} rowKey=${(one) => `${one.channel_details?.name}${one.consumer_tag}`} search=${(one) => [one.consumer_tag, one.channel_details?.connection_name]} natural="consumer_tag" noun="consumers" />`
      : html`<${Empty} title="Nobody consumes from this queue.">${queue.messages_ready > 0 ? "Its messages wait until an application calls basic.consume or basic.get." : "Messages will wait here until somebody does."}</${Empty}>`}</${Card}>
    <${Card} title="Bindings" aside=${html`<button type="button" onClick=${() => ask_for({ title: `Bind ${name}`, verb: "Bind", fields: bindFields({ toQueue: true }), submit: (values) => ask("POST", `bindings/${part(vhost)}/e/${part(values.source)}/q/${part(name)}`, { routing_key: values.routing_key, arguments: table_of(values.arguments) }).then(() => { tell("Bound."); refresh(); }) })}><${Icon} name="plus" />Bind</button>`}><${Bindings} url=${`queues/${at_}/bindings`} vhost=${vhost} hides="destination" none="Only the default exchange routes to it, by its name." /></${Card}>
    <${Messages} queue=${queue} />`}`;
}

/** Which exchanges it gets messages from now, and which channels it gives them to. */
const Flow = ({ queue }) => html`<div class="halves">
  ${queue.incoming?.length > 0 && html`<${Card} title="Fed by"><ol class="ranking">${queue.incoming.slice(0, 8).map((one) => html`<li key=${one.exchange?.name}><a href=${href("exchanges", one.exchange?.vhost ?? queue.vhost, one.exchange?.name || "amq.default")}>${one.exchange?.name || "(AMQP default)"}</a><span class="ranking-end">${rate(one.stats?.publish_details?.rate)}</span></li>`)}</ol></${Card}>`}
  ${queue.deliveries?.length > 0 && html`<${Card} title="Emptied by"><ol class="ranking">${queue.deliveries.slice(0, 8).map((one) => html`<li key=${one.channel_details?.name}><a href=${href("channels", one.channel_details?.name ?? "")}>${one.channel_details?.name}</a><span class="ranking-end">${rate(one.stats?.deliver_get_details?.rate)}</span></li>`)}</ol></${Card}>`}</div>`;

/** When the queue is empty at the rate of the last seconds. */
function drains(queue, now) {
  const [into, out] = [now("publish"), now("ack")];
  if (into === undefined || out === undefined || !(queue.messages > 100)) return "";
  if (out <= into) return out < into * 0.9 ? "it grows" : "";
  return `empty in about ${duration((queue.messages / (out - into)) * 1000)}`;
}

/** What a confirm of this queue means now, in words: the broker's own where it tells them. */
function Guarantee({ queue, told, members: rows }) {
  const members = queue.members?.length ?? 1, online = queue.online?.length ?? members;
  const joining = queue.leveret_joining ?? [], voters = members - joining.length;
  const copies = told?.copies ?? members, inSync = told?.copies_in_sync ?? online;
  let kind = "good", words = told?.guarantee && `${told.guarantee[0].toUpperCase()}${told.guarantee.slice(1)}.`, more = "";
  if (queue.state === "down" || queue.state === "minority" || queue.state === "stopped" || (queue.members && online <= voters / 2)) {
    kind = "bad";
    if (!told || members > 1) words = queue.state === "down" && members === 1 ? "It is unavailable: its partition is damaged." : `${online} of ${plural(members, "copy", "copies")}: no majority, so nothing goes in or out.`;
    more = members === 1 ? "Run “leveret repair” on the data folder, or bring a copy of it." : "Start the missing nodes again with their own data folders.";
    const needed = rows.filter((row) => row.isNeeded && row.isAway).map((row) => row.node);
    if (needed.length > 0) {
      words = `No majority without ${list(needed)}, so nothing goes in or out.`;
      more = "Its copy was taken away, and the others had not decided so when it went. Start it again with its own data folder.";
    }
  } else if (queue.durable === false || told?.durability === "memory") {
    kind = "warn";
    words ??= "In the memory of one node: a restart takes its messages.";
    more = "Declare it durable to keep them.";
  } else if (inSync < copies || online < members) {
    kind = "warn";
    words ??= `${inSync} of ${copies} copies synced to disk.`;
    const late = (told?.members ?? []).filter((member) => member.in_sync === false && member.heard !== false && !member.leaving && typeof member.synced_index === "number");
    const most = Math.max(0, ...late.map((member) => told.committed_index - member.synced_index));
    // Who is asked in the middle of a batch has what the others have in a moment.
    if (online === members && late.length === copies - inSync && most < FAR_BEHIND) kind = "good";
    if (joining.length > 0) more = `${list(joining)} ${joining.length === 1 ? "has" : "have"} no vote before catching up: no other node must go until then.`;
    else more = online === members && late.length === copies - inSync ? `A majority is there, so it goes on. ${list(late.map((member) => member.node))} ${late.length === 1 ? "runs and is" : "run and are"} ${plural(most, "entry", "entries")} behind.` : "A majority is there, so it goes on. Bring the missing copy back before another one goes.";
  } else {
    words ??= copies === 1 ? "1 of 1 copy synced to disk before a confirm." : `${inSync} of ${copies} copies synced to disk.`;
    const level = told?.durability, isOfLeader = level === "leader-written" || (level === "leader-synced" && copies > 1);
    if (level === "written" || isOfLeader) { kind = "warn"; more = "A policy or an argument asked for that: quicker, and less safe."; }
    else if (copies === 1) more = "It survives crashes and power cuts of this node, not the loss of its disk. Three nodes keep three copies.";
    else more = `A confirm means that a majority has it on disk; ${plural(Math.ceil(copies / 2) - 1, "node")} may fail without a loss.`;
  }
  const [risk, cap] = [told?.value_at_risk ?? queue.leveret_value_at_risk, told?.value_at_risk_cap ?? queue.leveret_value_at_risk_cap];
  return html`<div class="guarantee ${kind}"><${Icon} name=${kind === "good" ? "check" : "alert"} size=${22} /><p><b>${words}</b> ${more}${typeof cap === "number" && html` <span>Value at risk: <b>${count(risk)}</b> of at most ${count(cap)} (confirmed, not yet synced).</span>`}</p></div>`;
}

/** How the backlog lies in memory and on disk, as far as the broker says. */
function Backlog({ queue, told }) {
  const memory = queue.message_bytes_ram, disk = queue.message_bytes_persistent ?? queue.leveret_disk_bytes;
  const facts = [
    ["Messages", html`<b>${count(queue.messages)}</b>`],
    ["Delayed", queue.messages_delayed ? count(queue.messages_delayed) : undefined],
    ["Their bodies", queue.message_bytes !== undefined && bytes(queue.message_bytes)],
    ["In memory", queue.messages_ram !== undefined ? `${count(queue.messages_ram)}${memory !== undefined ? ` (${bytes(memory)})` : ""}` : memory !== undefined && bytes(memory)],
    ["On disk", queue.messages_persistent !== undefined ? `${count(queue.messages_persistent)}${disk !== undefined ? ` (${bytes(disk)})` : ""}` : disk !== undefined && bytes(disk)],
    ["Taken on this disk", typeof told?.disk?.live_bytes === "number" && told.disk.live_bytes > 0 && bytes(told.disk.live_bytes)],
    ["Written for each byte published", typeof told?.disk?.amplification === "number" && html`${told.disk.amplification.toFixed(2)} <span class="faint">(${bytes(told.disk.written_bytes)})</span>`],
    ["Memory of the queue", queue.memory !== undefined && bytes(queue.memory)],
    ["Oldest message", queue.head_message_timestamp && new Date(queue.head_message_timestamp * 1000).toLocaleString()],
    ["Idle since", queue.idle_since],
    ["Leader", queue.leader || queue.node],
  ];
  return html`<${Facts} of=${facts} />${queue.message_bytes === undefined && html`<p class="faint">${queue.durable === false ? "Its messages are in the memory of its node." : "Bodies are on disk; memory holds some ten bytes for each message, however long the queue is."}</p>`}`;
}

/** Who has a copy, as the members say it themselves, or as the leader does. Behind them who is leaving, and still votes. */
function membersOf(status, told) {
  const number = (value) => (typeof value === "number" ? value : undefined);
  const fromStatus = (Array.isArray(status) ? status : []).map((member) => ({ node: member["Node Name"], state: member["Raft State"], synced: number(member["Last Written"] ?? member["Log Index"] ?? member["Last Log Index"]), term: number(member.Term), isLeaving: member.Membership === "leaving", isNeeded: member.leveret_vote_needed === true, isAway: /^no/.test(member["Raft State"]) }));
  const rows = fromStatus.length > 0 ? fromStatus : (told?.members ?? []).map((member) => ({ node: member.node, state: member.node === told.leader ? "leader" : member.heard === false ? "not heard" : "follower", synced: number(member.synced_index), term: told.term, isLeaving: member.leaving === true, isAway: member.heard === false }));
  for (const row of rows) row.synced ??= number(told?.members?.find((member) => member.node === row.node)?.synced_index);
  return rows;
}

/** Each member's place in the log, and a copy more or fewer. */
function Members({ queue, told, rows }) {
  const can = useRights();
  const { nodes } = useStore(cluster);
  if (rows.length === 0) return null;
  const head = Math.max(typeof told?.committed_index === "number" ? told.committed_index : 0, ...rows.filter((row) => row.state === "leader").map((row) => row.synced ?? 0));
  const hasPlaces = rows.some((row) => row.synced !== undefined);
  const copies = rows.filter((row) => !row.isLeaving).length;
  const mayChange = can.administrates && queue.type === "quorum" && nodes?.length > 1;
  const free = (nodes ?? []).filter((node) => node.running !== false && !rows.some((row) => row.node === node.name)).map((node) => node.name);
  const kind = (row) => (row.isLeaving ? "warn" : row.state === "leader" ? "accent" : /follower/.test(row.state) ? "good" : "bad");
  return html`<${Card} title=${`Members (${rows.length})`} aside=${html`<span class="actions"><span class="faint only-wide">who has a copy, and how far it is</span>${mayChange && html`<button type="button" disabled=${free.length === 0} title=${free.length === 0 ? "Every node that runs has one" : undefined} onClick=${() => addCopy(queue, free)}><${Icon} name="plus" />Add a copy</button>`}</span>`}>
    <div class="table-box"><table><thead><tr><th scope="col">Node</th><th scope="col">Is</th>${hasPlaces && html`<th scope="col" class="number">Synced up to</th><th scope="col" class="number">Behind</th>`}<th scope="col" class="number">Term</th>${mayChange && html`<td />`}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${`${row.node} ${row.isLeaving}`}><td class="name" data-label="Node"><a href=${href("nodes", row.node)}>${row.node}</a></td><td data-label="Is"><${Badge} kind=${kind(row)}>${row.isLeaving ? `leaving, ${row.state}` : row.state}</${Badge}></td>${hasPlaces && html`<td class="number" data-label="Synced up to">${count(row.synced)}</td><td class="number" data-label="Behind"><${Figure} n=${row.synced === undefined ? undefined : Math.max(0, head - row.synced)} /></td>`}<td class="number" data-label="Term">${count(row.term)}</td>
      ${mayChange && html`<td class="number">${!row.isLeaving && copies > 1 && html`<button type="button" class="plain" title="Take this copy away" aria-label="Take the copy on ${row.node} away" onClick=${() => takeCopy(queue, row.node, copies)}><${Icon} name="trash" size=${16} /></button>`}</td>`}</tr>`)}</tbody></table></div>
    ${rows.filter((row) => row.isLeaving).map((row) => html`<p key=${row.node} class="leaving"><b class="warn">${row.node} is leaving:</b> its copy was taken away, and it votes until the other members have all decided so.${row.isNeeded && html` <b class="bad">Its vote is needed</b>, as the others have no majority now: ${row.isAway ? "start it again with its own data folder" : "keep it running"} until more of them are back.`}</p>`)}</${Card}>`;
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
