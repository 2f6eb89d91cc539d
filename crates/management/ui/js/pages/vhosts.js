// Virtual hosts: a name space each, with its own queues, users' rights and limits.
import { html } from "../lib.js";
import { ask, part, refresh, usePoll, useRights } from "../api.js";
import { go, href } from "../router.js";
import { count, plural, rate } from "../format.js";
import { DataTable } from "../table.js";
import { Icon } from "../icons.js";
import { Badge, Card, Empty, Facts, Figure, Menu, Wrong, ask_for, confirm, tell } from "../ui.js";
import { useDoing } from "./queues.js";
import { Permissions, TopicPermissions } from "./users.js";
import { LimitsOf } from "./limits.js";

const COLUMNS = [
  { key: "name", label: "Name", isFixed: true, className: "name", cell: (one) => html`<a href=${href("vhosts", one.name)}>${one.name}</a>` },
  { key: "description", label: "Description", cell: (one) => one.description || html`<span class="faint">–</span>` },
  { key: "tags", label: "Tags", sort: false, cell: (one) => (one.tags ?? []).map((tag) => html`<${Badge} key=${tag}>${tag}</${Badge}>`) },
  { key: "default_queue_type", label: "Default type", cell: (one) => one.default_queue_type ?? "classic" },
  { key: "messages_ready", label: "Ready", isNumber: true, cell: (one) => html`<${Figure} n=${one.messages_ready} />` },
  { key: "messages_unacknowledged", label: "Unacked", isNumber: true, cell: (one) => html`<${Figure} n=${one.messages_unacknowledged} />` },
  { key: "messages", label: "Total", isNumber: true, cell: (one) => html`<${Figure} n=${one.messages} strong />` },
  { key: "in", label: "In", sort: "message_stats.publish_details.rate", isNumber: true, cell: (one) => html`<${Figure} n=${one.message_stats?.publish_details?.rate} as=${rate} />` },
  { key: "out", label: "Out", sort: "message_stats.deliver_get_details.rate", isNumber: true, cell: (one) => html`<${Figure} n=${one.message_stats?.deliver_get_details?.rate} as=${rate} />` },
];

const fields = (one) => [
  { name: "description", label: "Description", value: one?.description ?? "" },
  { name: "tags", label: "Tags", value: (one?.tags ?? []).join(", "), help: "Words with commas between them" },
  { name: "default_queue_type", label: "Queues without a type are", kind: "choice", value: one?.default_queue_type ?? "quorum", options: [["quorum", "quorum"], ["classic", "classic"]] },
];

const add = () => ask_for({ title: "Add a virtual host", verb: "Add", fields: [{ name: "name", label: "Name", isNeeded: true }, ...fields()], submit: async ({ name, ...rest }) => { await ask("PUT", `vhosts/${part(name)}`, rest); tell(`Virtual host ${name} is there; you may do everything in it.`); go("vhosts", name); } });

export function Vhosts() {
  const can = useRights();
  useDoing("add", add, can.administrates);
  return html`<div class="page-head"><h1>Virtual hosts</h1>${can.administrates && html`<div class="actions"><button type="button" class="primary" onClick=${add}><${Icon} name="plus" />Add a virtual host</button></div>`}</div>
    <${DataTable} id="vhosts" url="vhosts" columns=${COLUMNS} rowKey=${(one) => one.name} noun="virtual hosts" placeholder="Filter virtual hosts by name" empty=${html`<${Empty} title="No virtual host is yours to see.">An administrator can give you rights in one.</${Empty}>`} />`;
}

export function Vhost({ parts: [name] }) {
  const can = useRights();
  const { data: one, failure } = usePoll(`vhosts/${part(name)}`);
  const counts = usePoll(`queues/${part(name)}?page=1&page_size=1&columns=name`, { every: 30 });
  const edit = () => ask_for({ title: `Change ${name}`, verb: "Save", fields: fields(one), submit: async (values) => { await ask("PUT", `vhosts/${part(name)}`, values); tell("Saved."); refresh(); } });
  const remove = () => confirm({ title: `Delete the virtual host ${name}?`, verb: "Delete everything in it", typed: name, body: html`<p><b>Everything in it is lost for good</b>: ${plural(counts.data?.filtered_count ?? 0, "queue")}, ${plural(one.messages ?? 0, "message")}, its exchanges, bindings, policies and rights. Its connections are closed.</p><p><a href="#/definitions">Export its definitions</a> first if in doubt.</p>`, doing: async () => { await ask("DELETE", `vhosts/${part(name)}`); tell(`${name} is deleted.`); go("vhosts"); } });
  const trace = () => confirm({ title: one.tracing ? "End tracing?" : "Trace every message?", verb: one.tracing ? "End it" : "Trace", isSafe: true, body: html`<p>${one.tracing ? "amq.rabbitmq.trace gets no more copies." : "A copy of every message that goes in or out of this virtual host is published to amq.rabbitmq.trace, until you end it or the node starts again. It costs speed."}</p>`, doing: async () => { await ask("PUT", `vhosts/${part(name)}`, { tracing: !one.tracing }); refresh(); } });
  if (failure?.status === 404) return html`<nav class="crumbs" aria-label="Where this is"><a href="#/vhosts">Virtual hosts</a></nav><h1>${name}</h1><${Empty} title="There is no such virtual host."><a href="#/vhosts">All virtual hosts</a></${Empty}>`;
  return html`<nav class="crumbs" aria-label="Where this is"><a href="#/vhosts">Virtual hosts</a></nav><div class="page-head"><h1 class="mono-title">${name}</h1>
    ${one && can.administrates && html`<div class="actions"><button type="button" onClick=${edit}>Change</button><${Menu} label="More" className="to-left"><button type="button" onClick=${trace}>${one.tracing ? "End tracing …" : "Trace messages …"}</button><button type="button" class="danger-text" onClick=${remove}><${Icon} name="trash" />Delete …</button></${Menu}></div>`}</div>
    <${Wrong} failure=${failure} />
    ${one && html`<div class="halves"><${Card} title="What it is"><${Facts} of=${[["Description", one.description], ["Tags", (one.tags ?? []).join(", ")], ["Queues without a type are", one.default_queue_type], ["Tracing", one.tracing ? html`<${Badge} kind="warn">on</${Badge}>` : "off"], ["Ready", count(one.messages_ready)], ["Unacknowledged", count(one.messages_unacknowledged)]]} />
      <div class="chips"><a class="chip" href="${href("queues")}?vhost=${part(name)}"><b>${count(counts.data?.filtered_count)}</b> ${counts.data?.filtered_count === 1 ? "queue" : "queues"}</a><a class="chip" href="${href("exchanges")}?vhost=${part(name)}">exchanges</a><a class="chip" href="${href("topology")}?vhost=${part(name)}">topology</a></div></${Card}>
      <${LimitsOf} kind="vhost" name=${name} /></div>
    ${can.administrates && html`<${Permissions} vhost=${name} /><${TopicPermissions} vhost=${name} />`}`}`;
}
