// Everything at a glance: is it well, how fast, how much waits, who serves it.
import { html, useStore } from "../lib.js";
import { ask, part, refresh, usePoll, useRights } from "../api.js";
import { href } from "../router.js";
import { count, duration, plural, rate, short, singular, NONE } from "../format.js";
import { Chart, Spark, rateNow, samplesQuery, useTimeline } from "../chart.js";
import { Icon } from "../icons.js";
import { Card, Empty, Facts, Figure, Wrong, attempt } from "../ui.js";
import { Alarms, alarmsOf } from "../alarms.js";
import { cluster } from "../cluster.js";
import { useSpan } from "./span.js";
import { NodeRow } from "./nodes.js";
import { Latencies } from "./latencies.js";

const RATES = ["publish", "confirm", "deliver_get", "ack", "redeliver", "return_unroutable", "drop_unroutable"];
const LENGTHS = ["messages_ready", "messages_unacknowledged", "messages"];

export function Overview() {
  const can = useRights();
  const [span, spanChoice] = useSpan();
  const { nodes } = useStore(cluster);
  const { data, failure, at } = usePoll(`overview?${samplesQuery(span)}`);
  const stats = data?.message_stats, totals = data?.queue_totals;
  const rates = useTimeline("overview", stats, RATES, true, at, span[0]);
  const lengths = useTimeline("overview", totals, LENGTHS, false, at, span[0]);
  const now = (field) => rateNow(stats, field, rates);
  // What a node counted it counted since its start, and takes with it.
  const missing = data?.leveret_missing_nodes ?? [];
  const inAll = missing.length > 0 ? `in all, without ${missing.join(", ")}` : nodes?.length > 1 ? "since each node's start" : "in all";
  const wrong = alarmsOf(nodes, data);
  const release = (node) => attempt(() => ask("DELETE", `nodes/${part(node)}/publishers/hold`), "Publishers go on.").then(refresh);
  const series = (line, of) => of.filter(([field]) => line.of[field]).map(([field, label, hue]) => ({ label, hue, points: line.of[field] }));
  return html`<div class="page-head"><h1>Overview</h1>${spanChoice}</div>
    <${Wrong} failure=${failure} />
    <${Alarms} of=${wrong} onRelease=${can.administrates ? release : undefined} />
    ${data && wrong.length === 0 && html`<${AllWell} data=${data} nodes=${nodes} />`}
    <div class="tiles">
      <${Tile} label="Published" value=${rate(now("publish"))} points=${rates.of.publish} hue="--publish" more=${stats && `${short(stats.publish)} ${inAll}`} />
      <${Tile} label="Delivered" value=${rate(now("deliver_get"))} points=${rates.of.deliver_get} hue="--deliver" more=${stats && `${short(stats.deliver_get)} ${inAll}${again(stats)}`} />
      <${Tile} label="Acknowledged" value=${rate(now("ack"))} points=${rates.of.ack} hue="--ack" more=${stats && `${short(stats.ack)} ${inAll}`} />
      <${Tile} label="Ready" value=${count(totals?.messages_ready)} points=${lengths.of.messages_ready} hue="--ready" more=${waits(totals?.messages_ready)} />
      <${Tile} label="Unacknowledged" value=${count(totals?.messages_unacknowledged)} points=${lengths.of.messages_unacknowledged} hue="--unacked" more=${isWith(totals?.messages_unacknowledged)} />
    </div>
    ${data && html`<div class="counts">${[["connections", "connections"], ["channels", "channels"], ["exchanges", "exchanges"], ["queues", "queues"], ["consumers", "consumers"]].map(([name, icon]) => html`<a class="count" href=${href(name)} key=${name}><${Icon} name=${icon} size=${20} /><b>${count(data.object_totals?.[name])}</b><span>${data.object_totals?.[name] === 1 ? singular(name) : name}</span></a>`)}</div>`}
    ${data && !stats && html`<p class="faint">Rates of the whole broker are shown to users with the tag <code>monitoring</code>.</p>`}
    <div class="charts">
      ${stats && html`<${Chart} title="Message rates" times=${rates.times} words=${rate} series=${series(rates, [["publish", "Published", "--publish"], ["confirm", "Confirmed", "--confirm"], ["deliver_get", "Delivered", "--deliver"], ["ack", "Acknowledged", "--ack"], ["redeliver", "Redelivered", "--redeliver"], ["return_unroutable", "Returned", "--unroutable"], ["drop_unroutable", "Dropped: no route", "--bad"]].filter(([field]) => !["redeliver", "return_unroutable", "drop_unroutable"].includes(field) || stats[field] > 0))} />`}
      <${Chart} title="Messages in queues" times=${lengths.times} words=${short} series=${series(lengths, [["messages_ready", "Ready", "--ready"], ["messages_unacknowledged", "Unacknowledged", "--unacked"]])} />
    </div>
    <${Latencies} />
    ${can.monitors && nodes && html`<${Card} title="Nodes" aside=${html`<a href="#/nodes">All about them</a>`}><div class="node-rows">${nodes.map((node) => html`<${NodeRow} key=${node.name} node=${node} />`)}</div></${Card}>`}
    <div class="halves"><${Busy} title="Longest queues" sort="messages" cell=${(queue) => html`<${Figure} n=${queue.messages} strong />`} words=${(queue) => (queue.messages === 1 ? "message" : "messages")} has=${(queue) => queue.messages > 0} none="No message waits anywhere." />
      <${Busy} title="Busiest queues" sort="message_stats.publish_details.rate" cell=${(queue) => rate(queue.message_stats?.publish_details?.rate)} words=${() => "published"} has=${(queue) => queue.message_stats?.publish_details?.rate > 0} none="Nothing was published to a queue in the last seconds." /></div>
    <div class="halves">${data?.churn_rates && html`<${Churn} of=${data.churn_rates} at=${at} age=${span[0]} inAll=${inAll} />`}
    ${data && html`<${Card} title="Ports">${data.listeners?.length ? html`<div class="chips">${data.listeners.map((one) => html`<span class="chip" key=${`${one.node}${one.protocol}${one.port}${one.ip_address}`}><b>${one.protocol}</b> ${one.ip_address?.includes(":") ? `[${one.ip_address}]` : one.ip_address}:${one.port}${nodes?.length > 1 ? html` <span class="faint">${one.node}</span>` : ""}</span>`)}</div>` : html`<p class="faint">Which ports are open is shown to users with the tag <code>monitoring</code>.</p>`}</${Card}>`}</div>`;
}

/** What so many messages do in a queue. */
export const waits = (n) => `${n === 1 ? "waits" : "wait"} for a consumer`;
export const isWith = (n) => `${n === 1 ? "is" : "are"} with a consumer`;

/** How many of the deliveries were not the first one of their message. */
export const again = (stats) => (stats?.redeliver > 0 ? `, ${short(stats.redeliver)} of them again` : "");

/** What comes and goes: many in a second is an application that does not keep its connections. */
function Churn({ of, at, age, inAll }) {
  const pairs = [["Connections", "connection_created", "connection_closed", "opened", "closed"], ["Channels", "channel_created", "channel_closed", "opened", "closed"], ["Queues", "queue_created", "queue_deleted", "made", "deleted"]].filter(([, first]) => of[first] !== undefined);
  const line = useTimeline("churn", of, pairs.flatMap(([, a, b]) => [a, b]), true, at, age);
  const told = (field, word) => html`<b>${rate(rateNow(of, field, line))}</b> ${word} <span class="faint">(${short(of[field])} ${inAll})</span>`;
  const isMuch = rateNow(of, "connection_created", line) > 20;
  return html`<${Card} title="Comings and goings"><${Facts} of=${pairs.map(([name, a, b, words, others]) => [name, html`${told(a, words)}, ${told(b, others)}`])} />${isMuch && html`<p class="warn">Some application opens connections very often. It should keep one and open channels on it.</p>`}</${Card}>`;
}

/** The sentence that most visitors come for. */
function AllWell({ data, nodes }) {
  const running = nodes?.filter((node) => node.running !== false);
  const uptime = running?.length ? Math.min(...running.map((node) => node.uptime ?? Infinity)) : undefined;
  const time = Number.isFinite(uptime) && duration(uptime);
  const run = nodes?.length === 1 ? (time ? `The node has run for ${time}` : "The node runs") : `All ${nodes?.length} nodes run${time ? `, the youngest for ${time}` : ""}`;
  return html`<p class="all-well"><i class="dot good" /><b>All is well.</b> ${nodes ? `${run}. ` : ""}No alarm is on; ${plural(data.object_totals?.queues, "queue")}, ${plural(data.queue_totals?.messages ?? 0, "message")}. <span class="faint">Leveret ${data.leveret_version ?? ""}${data.rabbitmq_version && data.leveret_version ? `, speaks as RabbitMQ ${data.rabbitmq_version}` : data.product_version ?? data.rabbitmq_version ?? ""}</span></p>`;
}

export const Tile = ({ label, value, points, hue, more, kind = "" }) => html`<div class="tile ${kind}"><h3><i style=${hue ? { background: `var(${hue})` } : undefined} />${label}</h3><p class="tile-value">${value ?? NONE}</p><p class="tile-more">${more ?? " "}</p>${points && html`<${Spark} points=${points} hue=${hue} label="${label} over time" />`}</div>`;

/** The first few queues by some measure. */
function Busy({ title, sort, cell, words, has, none }) {
  const { data, failure } = usePoll(`queues?page=1&page_size=6&sort=${sort}&sort_reverse=true&columns=name,vhost,messages,message_stats.publish_details.rate`, { every: 10 });
  const queues = data?.items?.filter(has);
  return html`<${Card} title=${title} aside=${html`<a href="#/queues?sort=${sort}&sort_reverse=true">All</a>`}><${Wrong} failure=${failure} />
    ${queues?.length ? html`<ol class="ranking">${queues.map((queue) => html`<li key=${queue.vhost + queue.name}><a href=${href("queues", queue.vhost, queue.name)}>${queue.name}</a>${queue.vhost !== "/" && html` <span class="faint">${queue.vhost}</span>`}<span class="ranking-end">${cell(queue)} <span class="faint">${words(queue)}</span></span></li>`)}</ol>` : queues && html`<${Empty} title=${none} />`}</${Card}>`;
}
