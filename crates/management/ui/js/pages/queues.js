// All queues: which there are, what waits in them, how fast they go.
import { html, useEffect, useMemo, useStore } from "../lib.js";
import { ask, part, path, refresh, usePoll } from "../api.js";
import { go, href, place, setQuery } from "../router.js";
import { bytes, count, plural, rate } from "../format.js";
import { Icon } from "../icons.js";
import { DataTable } from "../table.js";
import { Badge, Empty, Figure, ask_for, confirm, table_of, tell } from "../ui.js";

/** Queue arguments with what they are for; the names are completed as they are typed. */
export const ARGUMENTS = ["x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-delivery-limit", "x-single-active-consumer", "x-max-priority", "x-quorum-initial-group-size", "x-message-deduplication", "x-durability", "x-queue-leader-locator", "x-dedicated-partition"];

/** Short marks for what a queue is. */
export function Marks({ queue }) {
  const marks = [];
  if (queue.durable === false) marks.push(["transient", "It does not outlive a restart"]);
  if (queue.auto_delete) marks.push(["auto-delete", "It goes with its last consumer"]);
  if (queue.exclusive) marks.push(["exclusive", "It belongs to one connection"]);
  const has = (name) => queue.arguments?.[name] ?? queue.effective_policy_definition?.[name.slice(2)];
  if (has("x-message-ttl") !== undefined) marks.push(["ttl", `Messages live ${count(has("x-message-ttl"))} ms`]);
  if (has("x-max-length") !== undefined || has("x-max-length-bytes") !== undefined) marks.push(["limit", "Its length is limited"]);
  if (has("x-dead-letter-exchange") !== undefined) marks.push(["dlx", `Dead letters go to ${has("x-dead-letter-exchange") || "the default exchange"}`]);
  if (has("x-single-active-consumer")) marks.push(["sac", "One consumer at a time"]);
  if (has("x-max-priority")) marks.push(["prio", `Priorities up to ${has("x-max-priority")}`]);
  return html`<span class="marks">${marks.map(([word, title]) => html`<${Badge} key=${word} title=${title}>${word}</${Badge}>`)}${queue.policy && html`<a class="badge policy" href="#/policies?name=${encodeURIComponent(queue.policy)}" title="Policy">${queue.policy}</a>`}</span>`;
}

/** How many copies there are now, as a mark. */
export function Copies({ queue }) {
  if (queue.state && queue.state !== "running" && queue.state !== "idle" && queue.state !== "flow") return html`<${Badge} kind="bad">${queue.state}</${Badge}>`;
  if (!queue.members) return html`<span class="faint">1 copy</span>`;
  const [online, all] = [queue.online?.length ?? 0, queue.members.length];
  const kind = online === all ? "good" : online > all / 2 ? "warn" : "bad";
  return html`<span class="copies ${kind}" title="${online} of ${all} members are there${queue.leader ? `; ${queue.leader} leads` : ""}"><i class="dot ${kind}" />${online} of ${all}</span>`;
}

const COLUMNS = [
  { key: "name", label: "Name", isFixed: true, className: "name", cell: (queue) => html`<a href=${href("queues", queue.vhost, queue.name)}>${queue.name || "(no name)"}</a>` },
  { key: "vhost", label: "Virtual host", isOptional: true, cell: (queue) => queue.vhost },
  { key: "type", label: "Type", cell: (queue) => html`<span class="type ${queue.type}">${queue.type}</span>` },
  { key: "marks", label: "Features", sort: false, className: "only-broad", cell: (queue) => html`<${Marks} queue=${queue} />` },
  { key: "state", label: "Copies", sort: "state", cell: (queue) => html`<${Copies} queue=${queue} />` },
  { key: "messages_ready", className: "not-phone", label: "Ready", isNumber: true, cell: (queue) => html`<${Figure} n=${queue.messages_ready} />` },
  { key: "messages_unacknowledged", className: "not-phone", label: "Unacked", isNumber: true, cell: (queue) => html`<${Figure} n=${queue.messages_unacknowledged} />` },
  { key: "messages", label: "Total", isNumber: true, cell: (queue) => html`<${Figure} n=${queue.messages} strong />` },
  { key: "publish", label: "In", title: "Published to it, per second", sort: "message_stats.publish_details.rate", isNumber: true, cell: (queue) => html`<${Figure} n=${queue.message_stats?.publish_details?.rate} as=${rate} />` },
  { key: "deliver", label: "Out", title: "Delivered and got, per second", sort: "message_stats.deliver_get_details.rate", isNumber: true, cell: (queue) => html`<${Figure} n=${queue.message_stats?.deliver_get_details?.rate} as=${rate} />` },
  { key: "ack", className: "not-phone", label: "Acked", sort: "message_stats.ack_details.rate", isNumber: true, cell: (queue) => html`<${Figure} n=${queue.message_stats?.ack_details?.rate} as=${rate} />` },
  { key: "consumers", label: "Consumers", isNumber: true, cell: (queue) => html`<${Figure} n=${queue.consumers} />` },
  { key: "node", label: "Leader", isOptional: true, cell: (queue) => queue.leader || queue.node },
  { key: "message_bytes", label: "Bytes", isOptional: true, isNumber: true, cell: (queue) => html`<${Figure} n=${queue.message_bytes} as=${bytes} />` },
];
const ASKED = "name,vhost,type,state,durable,auto_delete,exclusive,arguments,policy,effective_policy_definition,members,online,leader,node,messages,messages_ready,messages_unacknowledged,message_bytes,consumers,message_stats.publish_details.rate,message_stats.deliver_get_details.rate,message_stats.ack_details.rate";

/** The virtual hosts' names, for forms and filters. */
export const useVhosts = () => useDefaultTypes()[0];

/** The virtual hosts' names, and of each the type of queues that are declared without one. */
function useDefaultTypes() {
  const { data } = usePoll("vhosts?columns=name,default_queue_type", { every: 60 });
  return useMemo(() => [data?.map((one) => one.name) ?? [], new Map(data?.map((one) => [one.name, one.default_queue_type]))], [data]);
}

/** Chooses one virtual host of several, where there are several. */
export function VhostFilter({ vhosts }) {
  const { query } = useStore(place);
  if (vhosts.length < 2) return null;
  return html`<label class="vhost-filter"><span class="unseen">Virtual host</span><select value=${query.vhost ?? ""} onChange=${(event) => setQuery({ vhost: event.target.value || undefined, page: undefined })}>
    <option value="" selected=${!query.vhost}>All virtual hosts</option>${vhosts.map((name) => html`<option value=${name} selected=${query.vhost === name}>${name}</option>`)}</select></label>`;
}

/** Opens a form when the address says so (`?do=...`), as the command palette does. */
export function useDoing(word, doing, isReady = true) {
  const { query } = useStore(place);
  useEffect(() => {
    if (query.do !== word || !isReady) return;
    setQuery({ do: undefined });
    doing();
  }, [query.do, isReady]);
}

function declareQueue(vhosts, types, vhost) {
  ask_for({
    title: "Declare a queue", verb: "Declare", wide: true,
    fields: [
      { name: "name", label: "Name", isNeeded: true },
      { name: "vhost", label: "Virtual host", kind: "choice", value: vhost ?? vhosts[0] ?? "/", options: vhosts.map((name) => [name]) },
      { name: "type", label: "Type", kind: "choice", follows: (values) => types.get(values.vhost) ?? "classic", options: [["quorum", "quorum: a copy on several nodes"], ["classic", "classic"]], help: "What is published to a quorum queue, or to a durable classic one, is on disk when it is confirmed." },
      { name: "durable", label: "Durable: outlives a restart", kind: "check", value: true, when: (values) => values.type === "classic" },
      { name: "auto_delete", label: "Auto-delete: goes with its last consumer", kind: "check", when: (values) => values.type === "classic" },
      { name: "arguments", label: "Arguments", kind: "table", suggest: ARGUMENTS, help: "Such as x-message-ttl = 60000 or x-dead-letter-exchange = retry" },
    ],
    submit: async (values) => {
      const isQuorum = values.type === "quorum";
      await ask("PUT", `queues/${path(values.vhost, values.name)}`, { durable: isQuorum || values.durable, auto_delete: !isQuorum && values.auto_delete, arguments: { "x-queue-type": values.type, ...table_of(values.arguments) } });
      tell(`Queue ${values.name} is declared.`);
      go("queues", values.vhost, values.name);
    },
  });
}

/** Does the same to several queues, one after another, and tells which failed. */
async function each(queues, doing) {
  const failed = [];
  for (const queue of queues) {
    try {
      await doing(queue);
    } catch (failure) {
      failed.push(`${queue.name}: ${failure.message}`);
    }
  }
  refresh();
  if (failed.length) throw new Error(`${failed.length} of ${queues.length} failed. ${failed.slice(0, 3).join(" ")}`);
}

export function Queues() {
  const [vhosts, types] = useDefaultTypes();
  const { query } = useStore(place);
  const vhost = query.vhost;
  const declare = () => declareQueue(vhosts, types, vhost);
  useDoing("declare", declare, vhosts.length > 0);
  const columns = useMemo(() => COLUMNS.map((column) => (column.key === "vhost" ? { ...column, isOptional: undefined } : column)).filter((column) => column.key !== "vhost" || (vhosts.length > 1 && !vhost)), [vhosts.length, vhost]);
  const sum = (queues, field) => queues.reduce((all, queue) => all + (queue[field] ?? 0), 0);
  const names = (queues) => html`<p class="mono names">${queues.slice(0, 8).map((queue) => queue.name).join(", ")}${queues.length > 8 ? ` and ${queues.length - 8} more` : ""}</p>`;
  const selection = [
    { label: "Purge", icon: "purge", run: (queues, done) => confirm({ title: `Purge ${plural(queues.length, "queue")}?`, body: html`${names(queues)}<p><b>${plural(sum(queues, "messages_ready"), "ready message is", "ready messages are")} lost for good.</b> What consumers hold stays.</p>`, verb: "Purge", typed: sum(queues, "messages_ready") > 0 ? "purge" : undefined, doing: () => each(queues, (queue) => ask("DELETE", `queues/${path(queue.vhost, queue.name)}/contents`)).then(done) }) },
    { label: "Delete", icon: "trash", kind: "danger", run: (queues, done) => confirm({ title: `Delete ${plural(queues.length, "queue")}?`, body: html`${names(queues)}<p><b>${plural(sum(queues, "messages"), "message is", "messages are")} lost for good</b>, and ${plural(sum(queues, "consumers"), "consumer is", "consumers are")} cancelled.</p>`, verb: "Delete", typed: "delete", doing: () => each(queues, (queue) => ask("DELETE", `queues/${path(queue.vhost, queue.name)}`)).then(done) }) },
  ];
  return html`<div class="page-head"><h1>Queues</h1><div class="actions"><${VhostFilter} vhosts=${vhosts} /><button type="button" class="primary" onClick=${declare}><${Icon} name="plus" />Declare a queue</button></div></div>
    <${DataTable} id="queues" url=${vhost ? `queues/${part(vhost)}` : "queues"} query=${`columns=${ASKED}`} columns=${columns} rowKey=${(queue) => `${queue.vhost}/${queue.name}`} noun="queues" placeholder="Filter queues by name" selection=${selection}
      empty=${html`<${Empty} title="There is no queue yet.">Applications declare theirs when they connect; or <button type="button" class="link" onClick=${declare}>declare one here</button>.</${Empty}>`} />`;
}
