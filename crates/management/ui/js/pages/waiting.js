// What waits for what: requests without an answer, publishes without a confirm. The place to look at when something hangs.
import { html } from "../lib.js";
import { usePoll, useRights } from "../api.js";
import { href } from "../router.js";
import { duration } from "../format.js";
import { DataTable } from "../table.js";
import { Badge, Empty } from "../ui.js";

const FOR = { partition: "a queue's partition", topology: "the topology", confirms: "confirms", confirm: "a confirm", shards: "all threads of the node", body: "the rest of its body", bodies: "other long bodies" };

const COLUMNS = [
  { key: "method", label: "What", isFixed: true, className: "name", cell: (one) => one.method },
  { key: "waited_ms", label: "Waited", isNumber: true, cell: (one) => html`<b class=${one.waited_ms > 10_000 ? "bad" : ""}>${duration(one.waited_ms)}</b>` },
  { key: "waits_for", label: "Waits for", cell: (one) => html`${FOR[one.waits_for] ?? one.waits_for}${one.partitions?.length > 0 && html` <${Badge} title="Partitions">${one.partitions.join(", ")}</${Badge}>`}` },
  { key: "queue", label: "Queue", cell: (one) => (one.queue ? html`<a href=${href("queues", one.vhost ?? "/", one.queue)}>${one.queue}</a>` : html`<span class="faint">–</span>`) },
  { key: "connection", label: "Whose", cell: (one) => html`${one.channel === null ? one.connection : html`<a href=${href("connections", one.connection)}>${one.connection.replace(/ -> .*$/, "")}</a> <span class="faint">(${one.channel})</span>`} <span class="faint">${one.user}</span>` },
  { key: "node", label: "Node", className: "not-phone", cell: (one) => one.node },
];

export function Waiting() {
  const can = useRights();
  const { data } = usePoll(can.monitors ? "leveret/waiting" : null);
  if (!can.monitors) return html`<h1>What waits</h1><${Empty} title="What waits is shown to users with the tag “monitoring”." />`;
  // Requests of pages like this one come and go all the time.
  const rows = data?.filter((one) => one.channel !== null || one.waited_ms > 1000);
  return html`<div class="page-head"><h1>What waits</h1></div>
    <p class="faint">Requests without an answer, and publishes without a confirm for ten seconds or more, the longest first. What an alarm holds back is not here: <a href="#/connections">connections</a> that are held are “blocked”.</p>
    <${DataTable} id="waiting" rows=${rows} columns=${COLUMNS} rowKey=${(one) => `${one.node} ${one.connection} ${one.channel} ${one.method} ${one.queue}`} search=${(one) => [one.method, one.queue, one.connection, one.user]} natural="" noun="waiting" placeholder="Filter by method, queue or connection"
      empty=${html`<${Empty} title="Nothing waits.">Every request is answered and every publish is confirmed.</${Empty}>`} />`;
}
