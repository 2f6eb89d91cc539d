// Exchanges: all of them, and one with where its messages go.
import { html, useMemo, useStore } from "../lib.js";
import { ask, part, path, refresh, usePoll } from "../api.js";
import { go, href, place } from "../router.js";
import { rate, short } from "../format.js";
import { Chart, rateNow, samplesQuery, useTimeline } from "../chart.js";
import { DataTable } from "../table.js";
import { Icon } from "../icons.js";
import { Arguments, Badge, Card, Empty, Facts, Figure, Menu, Wrong, ask_for, confirm, table_of, tell } from "../ui.js";
import { Bindings, bindFields } from "./bindings.js";
import { Tile } from "./overview.js";
import { useSpan } from "./span.js";
import { VhostFilter, useDoing, useVhosts } from "./queues.js";
import { publishFields, publishTo } from "./messages.js";

export const shownName = (name) => name || "(AMQP default)";
const inPath = (name) => name || "amq.default";

const COLUMNS = [
  { key: "name", label: "Name", isFixed: true, className: "name", cell: (one) => html`<a href=${href("exchanges", one.vhost, inPath(one.name))}>${shownName(one.name)}</a>` },
  { key: "vhost", label: "Virtual host", cell: (one) => one.vhost },
  { key: "type", label: "Type", cell: (one) => html`<span class="type">${one.type}</span>` },
  { key: "marks", label: "Features", sort: false, cell: (one) => html`<span class="marks">${one.durable === false && html`<${Badge}>transient</${Badge}>`}${one.auto_delete && html`<${Badge}>auto-delete</${Badge}>`}${one.internal && html`<${Badge} title="Only other exchanges publish to it">internal</${Badge}>`}${one.arguments?.["alternate-exchange"] && html`<${Badge} title="Where unroutable messages go">alternate</${Badge}>`}${one.policy && html`<span class="badge policy" title="Policy">${one.policy}</span>`}</span>` },
  { key: "in", label: "In", title: "Published to it, per second", sort: "message_stats.publish_in_details.rate", isNumber: true, cell: (one) => html`<${Figure} n=${one.message_stats?.publish_in_details?.rate} as=${rate} />` },
  { key: "out", label: "Out", title: "Routed to queues, per second", sort: "message_stats.publish_out_details.rate", isNumber: true, cell: (one) => html`<${Figure} n=${one.message_stats?.publish_out_details?.rate} as=${rate} />` },
];

export function declareExchange(vhosts, vhost, types) {
  ask_for({
    title: "Declare an exchange", verb: "Declare", wide: true,
    fields: [
      { name: "name", label: "Name", isNeeded: true },
      { name: "vhost", label: "Virtual host", kind: "choice", value: vhost ?? vhosts[0] ?? "/", options: vhosts.map((name) => [name]) },
      { name: "type", label: "Type", kind: "choice", value: "topic", options: (types?.length ? types : ["direct", "fanout", "topic", "headers"]).map((name) => [name]) },
      { name: "durable", label: "Durable: outlives a restart", kind: "check", value: true },
      { name: "auto_delete", label: "Auto-delete: goes with its last binding", kind: "check" },
      { name: "internal", label: "Internal: only other exchanges publish to it", kind: "check" },
      { name: "arguments", label: "Arguments", kind: "table", suggest: ["alternate-exchange"], help: "alternate-exchange: where messages go that find no queue" },
    ],
    submit: async ({ name, vhost: of, arguments: pairs, ...rest }) => {
      await ask("PUT", `exchanges/${path(of, name)}`, { ...rest, arguments: table_of(pairs) });
      tell(`Exchange ${name} is declared.`);
      go("exchanges", of, name);
    },
  });
}

export function Exchanges() {
  const vhosts = useVhosts();
  const { query } = useStore(place);
  const vhost = query.vhost;
  const overview = usePoll("overview?columns=exchange_types", { every: 300 });
  const types = overview.data?.exchange_types?.map((one) => one.name);
  const declare = () => declareExchange(vhosts, vhost, types);
  useDoing("declare", declare, vhosts.length > 0);
  const columns = useMemo(() => COLUMNS.filter((column) => column.key !== "vhost" || (vhosts.length > 1 && !vhost)), [vhosts.length, vhost]);
  return html`<div class="page-head"><h1>Exchanges</h1><div class="actions"><${VhostFilter} vhosts=${vhosts} /><button type="button" class="primary" onClick=${declare}><${Icon} name="plus" />Declare an exchange</button></div></div>
    <${DataTable} id="exchanges" url=${vhost ? `exchanges/${part(vhost)}` : "exchanges"} query="columns=name,vhost,type,durable,auto_delete,internal,arguments,policy,message_stats.publish_in_details.rate,message_stats.publish_out_details.rate" columns=${columns} rowKey=${(one) => `${one.vhost}/${one.name}`} noun="exchanges" natural=${vhost ? "name" : "vhost"} first="name" placeholder="Filter exchanges by name" />`;
}

const RATES = ["publish_in", "publish_out"];

export function Exchange({ parts: [vhost, name] }) {
  const url = path(vhost, name);
  const isDefault = name === "amq.default";
  const [span, spanChoice] = useSpan();
  const { data: exchange, failure, at } = usePoll(`exchanges/${url}?${samplesQuery(span)}`);
  const stats = exchange?.message_stats;
  const rates = useTimeline(`exchange ${url}`, stats, RATES, true, at, span[0]);
  if (failure?.status === 404 && !exchange) return html`<nav class="crumbs" aria-label="Where this is"><a href="#/exchanges">Exchanges</a></nav><h1>${name}</h1><${Empty} title="There is no such exchange.">It may have been deleted. <a href="#/exchanges">All exchanges</a></${Empty}>`;
  const isOurs = isDefault || name.startsWith("amq.");
  const remove = () => confirm({ title: `Delete ${name}?`, verb: "Delete", typed: name, body: html`<p>Its bindings go too. <b>Who publishes to it is disconnected from its channel with 404</b>; what is in queues stays.</p>`, doing: async () => { await ask("DELETE", `exchanges/${url}`); tell(`${name} is deleted.`); go("exchanges"); } });
  return html`<nav class="crumbs" aria-label="Where this is"><a href="#/exchanges">Exchanges</a>${vhost !== "/" && html`<a href="${href("exchanges")}?vhost=${part(vhost)}">${vhost}</a>`}</nav>
    <div class="page-head"><h1 class="mono-title">${isDefault ? "(AMQP default)" : name} ${exchange && html`<span class="type">${exchange.type}</span>`}</h1>
      ${exchange && html`<div class="actions"><button type="button" disabled=${exchange.internal} title=${exchange.internal ? "Only other exchanges publish to an internal one" : undefined} onClick=${() => ask_for({ title: `Publish to ${shownName(exchange.name)}`, verb: "Publish", wide: true, fields: publishFields({ hasKey: true }), submit: (values) => publishTo(vhost, name, "", values).then(refresh) })}><${Icon} name="send" />Publish</button>
        ${!isOurs && html`<${Menu} label="More" className="to-left"><button type="button" class="danger-text" onClick=${remove}><${Icon} name="trash" />Delete …</button></${Menu}>`}</div>`}</div>
    <${Wrong} failure=${failure} />
    ${exchange && html`${isDefault && html`<p class="faint">It routes to the queue whose name is the routing key. Every queue is bound to it, and nothing else can be.</p>`}
    ${stats && html`<div class="tiles"><${Tile} label="Published to it" value=${rate(rateNow(stats, "publish_in", rates))} hue="--publish" points=${rates.of.publish_in} more=${stats.publish_in !== undefined && `${short(stats.publish_in)} in all`} /><${Tile} label="Routed to queues" value=${rate(rateNow(stats, "publish_out", rates))} hue="--deliver" points=${rates.of.publish_out} more=${stats.publish_out !== undefined && `${short(stats.publish_out)} in all`} /></div>
    <div class="page-head minor"><h2>Over time</h2>${spanChoice}</div>
    <${Chart} title="Rates" times=${rates.times} words=${rate} series=${[["publish_in", "Published to it", "--publish"], ["publish_out", "Routed to queues", "--deliver"]].filter(([field]) => rates.of[field]).map(([field, label, hue]) => ({ label, hue, points: rates.of[field] }))} />`}
    <div class="halves"><${Card} title="How it is declared"><${Facts} of=${[["Type", exchange.type], ["Durable", exchange.durable ? "yes" : "no"], ["Auto-delete", exchange.auto_delete ? "yes" : "no"], ["Internal", exchange.internal ? "yes" : "no"], ["Policy", exchange.policy], ["Arguments", html`<${Arguments} of=${exchange.arguments} />`]]} /></${Card}>
      ${(exchange.incoming?.length > 0 || exchange.outgoing?.length > 0) && html`<${Flow} exchange=${exchange} />`}</div>
    ${!isDefault && html`<${Card} title="Where its messages go" aside=${html`<button type="button" onClick=${() => ask_for({ title: `Bind from ${name}`, verb: "Bind", fields: bindFields({ toQueue: false }), submit: (values) => ask("POST", `bindings/${part(vhost)}/e/${part(name)}/${values.kind}/${part(values.destination)}`, { routing_key: values.routing_key, arguments: table_of(values.arguments) }).then(() => { tell("Bound."); refresh(); }) })}><${Icon} name="plus" />Bind</button>`}><${Bindings} url=${`exchanges/${url}/bindings/source`} vhost=${vhost} hides="source" none="What is published to it goes nowhere: bind a queue to it." /></${Card}>
    <${Card} title="Where they come from, besides publishers"><${Bindings} url=${`exchanges/${url}/bindings/destination`} vhost=${vhost} hides="destination" none="No other exchange feeds it." /></${Card}>`}`}`;
}

/** Who publishes to it and which queues get it, where the broker counts that. */
const Flow = ({ exchange }) => html`<${Card} title="Who publishes, who gets">
  ${exchange.incoming?.length > 0 && html`<h3>From</h3><ol class="ranking">${exchange.incoming.slice(0, 8).map((one) => html`<li key=${one.channel_details?.name}><a href=${href("channels", one.channel_details?.name ?? "")}>${one.channel_details?.name}</a><span class="ranking-end">${rate(one.stats?.publish_details?.rate)}</span></li>`)}</ol>`}
  ${exchange.outgoing?.length > 0 && html`<h3>To</h3><ol class="ranking">${exchange.outgoing.slice(0, 8).map((one) => html`<li key=${one.queue?.name}><a href=${href("queues", one.queue?.vhost ?? "/", one.queue?.name ?? "")}>${one.queue?.name}</a><span class="ranking-end">${rate(one.stats?.publish_details?.rate)}</span></li>`)}</ol>`}</${Card}>`;
