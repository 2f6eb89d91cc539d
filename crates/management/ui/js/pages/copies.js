// Where quorum queues have their copies: one more or one fewer for a queue, all or none on a node.
import { html } from "../lib.js";
import { ask, part, path, refresh } from "../api.js";
import { plural } from "../format.js";
import { Dialog, ask_for, confirm, open, tell } from "../ui.js";

/** RabbitMQ's words for why it is not done, in those of people. */
const WHY = { last_node: "It is the only copy.", already_a_member: "It has a copy there already.", not_a_member: "It has no copy there.", node_not_running: "That node does not run.", "Node is not a cluster member": "That node is no member of the cluster." };
const why = (failure) => { throw WHY[failure.reason] ? new Error(WHY[failure.reason]) : failure; };

/** Queues share partitions, and those of the same partition come along. */
function tellWhich(rows, one) {
  const along = rows.filter((row) => row.name !== one.name || row.vhost !== one.vhost).length;
  return along > 0 ? ` ${plural(along, "queue")} of the same partition came along.` : "";
}

export const addCopy = (queue, nodes) => ask_for({
  title: `Give ${queue.name} one more copy`, verb: "Add the copy",
  note: "Queues share partitions: the others in its partition get a copy there too. The new copy has a vote once it has caught up.",
  fields: [{ name: "node", label: "On the node", kind: "choice", options: nodes.map((name) => [name]) }],
  submit: async ({ node }) => {
    const rows = await ask("POST", `queues/quorum/${path(queue.vhost, queue.name)}/replicas/add`, { node }).catch(why);
    tell(`${queue.name} gets a copy on ${node}.${tellWhich(rows, queue)}`);
    refresh();
  },
});

export const takeCopy = (queue, node, copies) => confirm({
  title: `Take the copy on ${node} away?`, verb: "Take it away",
  body: html`<p><b>${queue.name} has ${plural(copies - 1, "copy", "copies")} afterwards</b>, and fewer nodes may fail without a loss. Messages stay; the copy goes once the others have decided so.</p>`,
  doing: async () => { await ask("DELETE", `queues/quorum/${path(queue.vhost, queue.name)}/replicas/delete`, { node }).catch(why); tell(`The copy on ${node} goes.`); refresh(); },
});

/** What became of each queue: how many are done, and a window with those that are not. */
function tellAll(rows, done) {
  const wrong = rows.filter((row) => row.result.startsWith("error"));
  const right = rows.length - wrong.length;
  if (rows.length === 0) tell("Nothing had to be done.");
  else if (right > 0) tell(`${plural(right, "queue")}: ${done}.`);
  refresh();
  if (wrong.length > 0) setTimeout(() => open((close) => html`<${Dialog} title=${`${plural(wrong.length, "queue")} stayed as ${wrong.length === 1 ? "it was" : "they were"}`} onClose=${close}>
    <ul class="plain-list">${wrong.slice(0, 50).map((row) => html`<li key=${row.vhost + row.name}><b class="mono">${row.name}</b> ${row.vhost !== "/" && html`<span class="faint">${row.vhost}</span>`}: ${WHY[row.result.replace("error: ", "")] ?? row.result.replace("error: ", "")}</li>`)}</ul>
    ${wrong.length > 50 && html`<p class="faint">And ${wrong.length - 50} more.</p>`}<footer class="dialog-end"><button type="button" onClick=${close}>Close</button></footer></${Dialog}>`));
}

export const shrink = (node) => confirm({
  title: `Take all copies of quorum queues off ${node}?`, verb: "Take them off", typed: node,
  body: html`<p><b>Each of these queues has one copy fewer afterwards</b>, so fewer nodes may fail without a loss. Messages stay: a queue that has no other copy keeps it, and so does one whose other copies have no majority now.</p><p>To scrap the node let it leave the cluster instead: then other nodes take the places of its copies.</p>`,
  doing: async () => tellAll(await ask("DELETE", `queues/quorum/replicas/on/${part(node)}/shrink`).catch(why), `no copy on ${node} any more`),
});

export const grow = (node) => ask_for({
  title: `Give ${node} copies of quorum queues`, verb: "Give it copies",
  note: "Queues that have one there stay as they are. Others of the same partition come along. Each new copy is sent all that is in the queue.",
  fields: [
    { name: "strategy", label: "Which queues", kind: "choice", options: [["all", "all that match"], ["even", "those with an even number of copies"]] },
    { name: "queue_pattern", label: "Names that match", value: ".*", isNeeded: true, help: "A regular expression" },
    { name: "vhost_pattern", label: "In virtual hosts that match", value: ".*", isNeeded: true },
  ],
  submit: async (values) => tellAll((await ask("POST", `queues/quorum/replicas/on/${part(node)}/grow`, values).catch(why)) ?? [], `a copy on ${node}`),
});
