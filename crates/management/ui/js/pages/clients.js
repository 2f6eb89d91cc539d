// Who is connected, and what for: connections, channels, consumers.
import { html, useStore } from "../lib.js";
import { ask, me, part, refresh, usePoll, useRights } from "../api.js";
import { go, href, place } from "../router.js";
import { ago, byteRate, bytes, count, moment, plural, rate } from "../format.js";
import { Chart, samplesQuery, useTimeline } from "../chart.js";
import { DataTable } from "../table.js";
import { Icon } from "../icons.js";
import { Arguments, Badge, Card, Empty, Facts, Figure, Wrong, ask_for, confirm, tell } from "../ui.js";
import { VhostFilter, useVhosts } from "./queues.js";
import { useSpan } from "./span.js";

/** The list's path, in one virtual host where one is chosen, and what chooses it. */
function useVhostOf(all, within) {
  const vhosts = useVhosts();
  const { query } = useStore(place);
  return [query.vhost ? within(part(query.vhost)) : all, html`<div class="actions"><${VhostFilter} vhosts=${vhosts} /></div>`];
}

/** What went through over time; `lines` are fields with their words and colours. */
function OverTime({ id, title, stats, lines, words, at, span, choice }) {
  const line = useTimeline(id, stats, lines.map(([field]) => field), true, at, span[0]);
  return html`<div class="page-head minor"><h2>Over time</h2>${choice}</div><${Chart} title=${title} times=${line.times} words=${words} series=${lines.filter(([field]) => line.of[field]).map(([field, label, hue]) => ({ label, hue, points: line.of[field] }))} />`;
}

const State = ({ of }) => html`<${Badge} kind=${of === "running" ? "good" : /block/.test(of) ? "bad" : of === "flow" || of === "idle" ? "warn" : ""}>${of ?? "–"}</${Badge}>`;
/** What a client calls itself, and what it is. */
const product = (one) => [one.client_properties?.product, one.client_properties?.version].filter(Boolean).join(" ");
const given = (one) => one.user_provided_name || one.client_properties?.connection_name;

const CONNECTIONS = [
  { key: "name", label: "Name", sort: "user_provided_name", isFixed: true, className: "name", cell: (one) => html`<a href=${href("connections", one.name)}>${given(one) || one.name}</a>${given(one) && html`<small>${one.peer_host}:${one.peer_port}</small>`}` },
  { key: "user", label: "User", cell: (one) => one.user },
  { key: "vhost", className: "not-phone", label: "Virtual host", cell: (one) => one.vhost },
  { key: "state", label: "State", cell: (one) => html`<${State} of=${one.state} />` },
  { key: "ssl", className: "not-phone", label: "TLS", cell: (one) => (one.ssl ? "yes" : html`<span class="faint">no</span>`) },
  { key: "client", label: "Client", sort: "client_properties.product", className: "only-broad", cell: (one) => product(one) || html`<span class="faint">–</span>` },
  { key: "channels", label: "Channels", isNumber: true, cell: (one) => html`<${Figure} n=${one.channels} />` },
  { key: "recv", label: "From client", sort: "recv_oct_details.rate", isNumber: true, cell: (one) => html`<${Figure} n=${one.recv_oct_details?.rate ?? one.recv_oct} as=${one.recv_oct_details ? byteRate : bytes} />` },
  { key: "send", label: "To client", sort: "send_oct_details.rate", isNumber: true, cell: (one) => html`<${Figure} n=${one.send_oct_details?.rate ?? one.send_oct} as=${one.send_oct_details ? byteRate : bytes} />` },
  { key: "connected_at", className: "not-phone", label: "Since", isNumber: true, cell: (one) => html`<span title=${moment(one.connected_at)}>${ago(one.connected_at)}</span>` },
  { key: "node", label: "Node", isOptional: true, cell: (one) => one.node },
];

const closeNow = (one, then) => ask_for({
  title: "Close this connection?", verb: "Close it", note: html`${given(one) ?? one.name} is told and may connect again at once. What it holds unacknowledged goes back to its queues.`,
  fields: [{ name: "reason", label: "Reason, which the client is told", value: "Closed by an operator" }],
  submit: async ({ reason }) => { await ask("DELETE", `connections/${part(one.name)}`, undefined, { headers: { "x-reason": reason.replace(/[^\x20-\x7e]/g, "?") } }); tell("The connection is closed."); (then ?? refresh)(); },
});

export function Connections() {
  const can = useRights();
  const [url, filter] = useVhostOf("connections", (vhost) => `vhosts/${vhost}/connections`);
  const selection = [{ label: "Close", icon: "close", kind: "danger", run: (all, done) => confirm({ title: `Close ${plural(all.length, "connection")}?`, verb: "Close", body: html`<p>Clients are told and may connect again at once. What they hold unacknowledged goes back to its queues.</p>`, doing: async () => { for (const one of all) await ask("DELETE", `connections/${part(one.name)}`, undefined, { headers: { "x-reason": "Closed by an operator" } }).catch((failure) => { if (failure.status !== 404) throw failure; }); done(); refresh(); } }) }];
  return html`<div class="page-head"><h1>Connections</h1>${filter}</div><${DataTable} id="connections" url=${url} natural="" first="user_provided_name" columns=${CONNECTIONS} rowKey=${(one) => one.name} noun="connections" placeholder="Filter connections by name" selection=${selection}
    empty=${html`<${Empty} title=${can.monitors ? "Nobody is connected." : "No connection of yours."}>Point an AMQP 0-9-1 client at this broker; any of RabbitMQ's will do.</${Empty}>`} />`;
}

export function Connection({ parts: [name] }) {
  const user = me.get();
  const can = useRights();
  const [span, choice] = useSpan();
  const { data: one, failure, at } = usePoll(`connections/${part(name)}?${samplesQuery(span)}`);
  const gone = failure?.status === 404;
  return html`<nav class="crumbs" aria-label="Where this is"><a href="#/connections">Connections</a></nav><div class="page-head"><h1 class="mono-title">${(one && given(one)) ?? name} ${one && !gone && html`<${State} of=${one.state} />`}</h1>
    ${one && !gone && (can.administrates || one.user === user.name) && html`<div class="actions"><button type="button" class="danger-text" onClick=${() => closeNow(one, () => go("connections"))}><${Icon} name="close" />Close …</button></div>`}</div>
    ${gone ? html`<${Empty} title="It is closed.">Its client went, or an operator closed it. <a href="#/connections">All connections</a></${Empty}>` : html`<${Wrong} failure=${failure} />`}
    ${one && !gone && html`<div class="halves"><${Card} title="What it is"><${Facts} of=${[["Name", one.name], ["User", one.user], ["Virtual host", one.vhost], ["Node", one.node], ["Protocol", one.protocol], ["TLS", one.ssl ? `${one.ssl_protocol ?? "yes"} ${one.ssl_cipher ?? ""}` : "no"], ["Login", one.auth_mechanism], ["Connected", html`<span title=${moment(one.connected_at)}>${ago(one.connected_at)}</span>`], ["Heartbeat", one.timeout ? `${one.timeout} s` : "none"], ["Largest frame", one.frame_max && bytes(one.frame_max)], ["From the client", bytes(one.recv_oct)], ["To the client", bytes(one.send_oct)]]} /></${Card}>
      <${Card} title="What its client says"><${Arguments} of=${Object.fromEntries(Object.entries(one.client_properties ?? {}).filter(([, value]) => typeof value !== "object"))} />${one.client_properties?.capabilities && html`<p class="faint">Can: ${Object.entries(one.client_properties.capabilities).filter(([, on]) => on).map(([word]) => word).join(", ")}</p>`}</${Card}></div>
    <${OverTime} id="connection ${name}" title="Bytes" stats=${one} lines=${[["recv_oct", "From the client", "--publish"], ["send_oct", "To the client", "--deliver"]]} words=${byteRate} at=${at} span=${span} choice=${choice} />
    <${Card} title="Channels"><${DataTable} id="connection-channels" small url=${`connections/${part(name)}/channels`} columns=${CHANNELS.filter((column) => !["user", "vhost"].includes(column.key))} rowKey=${(channel) => channel.name} natural="number" noun="channels" empty=${html`<${Empty} title="It has no channel open." />`} /></${Card}>`}`;
}

const channelLabel = (one) => { const at = /\((\d+)\)$/.exec(one.name)?.[1]; return html`${one.name.replace(/ -> .*$/, "")} <span class="faint">(${at})</span>`; };
const CHANNELS = [
  { key: "name", label: "Channel", isFixed: true, className: "name peer", cell: (one) => html`<a href=${href("channels", one.name)}>${channelLabel(one)}</a>` },
  { key: "user", label: "User", className: "only-broad", cell: (one) => one.user },
  { key: "vhost", label: "Virtual host", isOptional: true, cell: (one) => one.vhost },
  { key: "mode", label: "Mode", sort: false, cell: (one) => html`${one.confirm && html`<${Badge} title="Publishes are confirmed">confirms</${Badge}>`}${one.transactional && html`<${Badge}>transactional</${Badge}>`}` },
  { key: "state", label: "State", cell: (one) => html`<${State} of=${one.state} />` },
  { key: "consumer_count", label: "Consumers", isNumber: true, cell: (one) => html`<${Figure} n=${one.consumer_count} />` },
  { key: "prefetch_count", label: "Prefetch", isNumber: true, cell: (one) => (one.prefetch_count ? count(one.prefetch_count) : html`<span class="faint">∞</span>`) },
  { key: "messages_unacknowledged", label: "Unacked", isNumber: true, cell: (one) => html`<${Figure} n=${one.messages_unacknowledged} />` },
  { key: "messages_unconfirmed", label: "Unconfirmed", isNumber: true, cell: (one) => html`<${Figure} n=${one.messages_unconfirmed} />` },
  { key: "publish", label: "Published", sort: "message_stats.publish_details.rate", isNumber: true, cell: (one) => html`<${Figure} n=${one.message_stats?.publish_details?.rate} as=${rate} />` },
  { key: "deliver", label: "Delivered", sort: "message_stats.deliver_get_details.rate", isNumber: true, cell: (one) => html`<${Figure} n=${one.message_stats?.deliver_get_details?.rate} as=${rate} />` },
  { key: "ack", label: "Acked", sort: "message_stats.ack_details.rate", isNumber: true, cell: (one) => html`<${Figure} n=${one.message_stats?.ack_details?.rate} as=${rate} />` },
];

export function Channels() {
  const [url, filter] = useVhostOf("channels", (vhost) => `vhosts/${vhost}/channels`);
  return html`<div class="page-head"><h1>Channels</h1>${filter}</div><${DataTable} id="channels" url=${url} natural="" columns=${CHANNELS} rowKey=${(one) => one.name} noun="channels" placeholder="Filter channels by name" empty=${html`<${Empty} title="No channel is open.">Clients open them on their connections to publish and consume.</${Empty}>`} />`;
}

export function Channel({ parts: [name] }) {
  const [span, choice] = useSpan();
  const { data: one, failure, at } = usePoll(`channels/${part(name)}?${samplesQuery(span)}`);
  const gone = failure?.status === 404;
  return html`<nav class="crumbs" aria-label="Where this is"><a href="#/channels">Channels</a>${one && html`<a href=${href("connections", one.connection_details.name)}>${one.connection_details.name}</a>`}</nav><div class="page-head"><h1 class="mono-title">${name}</h1></div>
    ${gone ? html`<${Empty} title="It is closed."><a href="#/channels">All channels</a></${Empty}>` : html`<${Wrong} failure=${failure} />`}
    ${one && !gone && html`<div class="halves"><${Card} title="What it is"><${Facts} of=${[["State", html`<${State} of=${one.state} />`], ["User", one.user], ["Virtual host", one.vhost], ["Node", one.node], ["Mode", one.confirm ? "publishes are confirmed" : one.transactional ? "transactional" : "neither confirms nor transactions"], ["Prefetch", one.prefetch_count ? count(one.prefetch_count) : "no limit"], ["Prefetch of the channel", one.global_prefetch_count ? count(one.global_prefetch_count) : "no limit"]]} /></${Card}>
      <${Card} title="What waits"><${Facts} of=${[["Unacknowledged", html`<b>${count(one.messages_unacknowledged)}</b> with its client`], ["Unconfirmed", html`<b>${count(one.messages_unconfirmed)}</b> not confirmed yet`], ["Published", rate(one.message_stats?.publish_details?.rate)], ["Delivered", rate(one.message_stats?.deliver_get_details?.rate)], ["Acknowledged", rate(one.message_stats?.ack_details?.rate)], ["Redelivered", rate(one.message_stats?.redeliver_details?.rate)]]} /></${Card}></div>
    ${one.message_stats && html`<${OverTime} id="channel ${name}" title="Rates" stats=${one.message_stats} lines=${[["publish", "Published", "--publish"], ["confirm", "Confirmed", "--confirm"], ["deliver_get", "Delivered", "--deliver"], ["ack", "Acknowledged", "--ack"]]} words=${rate} at=${at} span=${span} choice=${choice} />`}
    <${Card} title="Consumers">${one.consumer_details?.length ? html`<${DataTable} id="channel-consumers" small rows=${one.consumer_details} columns=${ConsumerColumns.filter((column) => column.key !== "channel")} rowKey=${(consumer) => consumer.consumer_tag} natural="consumer_tag" search=${(consumer) => [consumer.consumer_tag, consumer.queue?.name]} noun="consumers" />` : html`<${Empty} title="It consumes nothing." />`}</${Card}>
    ${one.publishes?.length > 0 && html`<${Card} title="Publishes to"><ol class="ranking">${one.publishes.map((flow) => html`<li key=${flow.exchange.name}><a href=${href("exchanges", flow.exchange.vhost, flow.exchange.name || "amq.default")}>${flow.exchange.name || "(AMQP default)"}</a><span class="ranking-end">${rate(flow.stats?.publish_details?.rate)}</span></li>`)}</ol></${Card}>`}`}`;
}

export const ConsumerColumns = [
  { key: "queue", label: "Queue", sort: "queue.name", className: "name", cell: (one) => html`<a href=${href("queues", one.queue.vhost, one.queue.name)}>${one.queue.name}</a>` },
  { key: "consumer_tag", label: "Tag", className: "mono", cell: (one) => one.consumer_tag },
  { key: "channel", label: "Channel", sort: "channel_details.name", className: "peer", cell: (one) => html`<a href=${href("channels", one.channel_details?.name ?? "")}>${one.channel_details?.peer_host}:<wbr />${one.channel_details?.peer_port} <span class="faint">(${one.channel_details?.number})</span></a>` },
  { key: "user", label: "User", sort: "channel_details.user", cell: (one) => one.channel_details?.user },
  { key: "ack_required", label: "Acks", cell: (one) => (one.ack_required ? "manual" : html`<${Badge} kind="warn" title="What is delivered counts as done, even if the client dies with it">automatic</${Badge}>`) },
  { key: "active", label: "Active", cell: (one) => (one.active === false ? html`<span class="faint">waits its turn</span>` : "yes") },
  { key: "prefetch_count", label: "Prefetch", isNumber: true, cell: (one) => (one.prefetch_count ? count(one.prefetch_count) : html`<span class="faint">∞</span>`) },
];

export function Consumers() {
  const [url, filter] = useVhostOf("consumers", (vhost) => `consumers/${vhost}`);
  return html`<div class="page-head"><h1>Consumers</h1>${filter}</div><${DataTable} id="consumers" url=${url} columns=${ConsumerColumns} rowKey=${(one) => `${one.channel_details?.name} ${one.consumer_tag}`} search=${(one) => [one.queue.name, one.consumer_tag, one.channel_details?.name]} natural="" first="queue.name" noun="consumers" placeholder="Filter consumers by queue or tag" empty=${html`<${Empty} title="Nobody consumes.">Messages wait in their queues until an application calls basic.consume.</${Empty}>`} />`;
}
