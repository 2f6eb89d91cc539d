// What is wrong, and what to do about it. One list for the overview and the mark in the head.
import { html } from "./lib.js";
import { bytes, plural } from "./format.js";
import { Icon } from "./icons.js";

/** Everything that an operator should know of, the worst first: { kind, title, todo, place }. */
export function alarmsOf(nodes, overview) {
  const all = [];
  for (const node of nodes ?? []) {
    const of = nodes.length > 1 ? ` on ${node.name}` : "";
    if (node.running === false) {
      all.push({ kind: "bad", title: `${node.name} does not run.`, todo: "What is on a majority of its members goes on without it. Start it again with its own data folder; it catches up by itself." });
      continue;
    }
    if (node.disk_free_alarm) all.push({ kind: "bad", title: `The disk is nearly full${of}: publishers are blocked.`, todo: `${bytes(node.disk_free)} are free and ${bytes(node.disk_free_limit)} have to be. Consumers go on: let them drain the queues, purge what nobody needs, or make room on the disk.` });
    if (node.mem_alarm) all.push({ kind: "bad", title: `Memory is short${of}: publishers are blocked.`, todo: "Let consumers drain transient queues, or raise the limit. Durable queues keep their messages on disk and are not the cause." });
    if (node.leveret_publishers_held) all.push({ kind: "warn", title: `An operator holds all publishers${of}.`, todo: "Consumers go on and drain the queues. Let publishers go on when that is done.", release: node.name });
    if (node.being_drained) all.push({ kind: "warn", title: `${node.name} is in maintenance mode: it serves no clients.`, todo: "End it on the node's page when the work is done; a node that starts again is out of it." });
    if (node.partitions?.length > 0) all.push({ kind: "bad", title: `${node.name} does not see ${node.partitions.join(", ")}.`, todo: "Look at the network between them. The side with the majority goes on." });
    if (node.leveret_messages_set_aside > 0) all.push({ kind: "warn", title: `${plural(node.leveret_messages_set_aside, "message was", "messages were")} set aside${of}: their bytes are damaged on the disk.`, todo: "The disk wants a look (SMART, the system's log). Copies of replicated queues on other nodes are whole." });
    const near = (used, most) => most > 0 && used / most > 0.9;
    if (near(node.fd_used, node.fd_total)) all.push({ kind: "warn", title: `File descriptors run out${of}.`, todo: "Raise the limit (ulimit -n, LimitNOFILE= of the service), or close connections that nobody needs." });
    if (near(node.sockets_used, node.sockets_total)) all.push({ kind: "warn", title: `Connections run out${of}.`, todo: "Raise connections_max, or look for an application that opens connections and does not close them." });
  }
  if (overview?.leveret_quarantined > 0) all.push({ kind: "bad", title: `${plural(overview.leveret_quarantined, "partition is", "partitions are")} damaged.`, todo: "Their queues are down until `leveret repair` or a copy makes them whole." });
  return all.sort((one, other) => (other.kind === "bad") - (one.kind === "bad"));
}

export const Alarms = ({ of, onRelease }) => of.map((alarm) => html`<div class="banner ${alarm.kind}" role=${alarm.kind === "bad" ? "alert" : "status"} key=${alarm.title}><${Icon} name="alert" />
  <div><b>${alarm.title}</b> ${alarm.todo}</div>${alarm.release && onRelease && html`<button type="button" onClick=${() => onRelease(alarm.release)}>Let publishers go on</button>`}</div>`);
