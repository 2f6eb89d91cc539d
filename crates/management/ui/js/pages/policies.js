// Policies: settings of queues and exchanges by their names; an operator's overrule.
import { html } from "../lib.js";
import { ask, path, refresh, usePoll, useRights } from "../api.js";
import { DataTable } from "../table.js";
import { Icon } from "../icons.js";
import { Arguments, Empty, Wrong, ask_for, confirm, pairs_of, table_of, tell } from "../ui.js";
import { useDoing, useVhosts } from "./queues.js";

const KEYS = ["message-ttl", "expires", "max-length", "max-length-bytes", "overflow", "dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy", "delivery-limit", "alternate-exchange", "durability", "target-group-size", "queue-leader-locator", "delayed-retry-type", "delayed-retry-min", "delayed-retry-max", "message-deduplication", "deduplication-window-ms"];
const OPERATOR_KEYS = ["message-ttl", "expires", "max-length", "max-length-bytes", "overflow", "delivery-limit", "target-group-size", "durability"];

function set(kind, vhosts, one) {
  const isOperator = kind === "operator-policies";
  ask_for({
    title: one ? `Change ${one.name}` : isOperator ? "Add an operator policy" : "Add a policy", verb: one ? "Save" : "Add", wide: true,
    note: isOperator ? "It limits what policies and arguments say: the smaller number counts." : "Of several that match, the one of the highest priority counts. Where a queue's own argument sets the same, of two numbers the smaller one counts (of target-group-size the larger), and of anything else the argument.",
    fields: [
      ...(one ? [] : [{ name: "name", label: "Name", isNeeded: true }, { name: "vhost", label: "Virtual host", kind: "choice", options: vhosts.map((name) => [name]) }]),
      { name: "pattern", label: "Names that match", value: one?.pattern ?? "", isNeeded: true, placeholder: "^orders\\.", help: "A regular expression" },
      { name: "apply", label: "Applies to", kind: "choice", value: one?.["apply-to"] ?? (isOperator ? "queues" : "all"), options: [...(isOperator ? [] : [["all", "queues and exchanges"], ["exchanges"]]), ["queues"], ["quorum_queues", "quorum queues"], ["classic_queues", "classic queues"]] },
      { name: "priority", label: "Priority", kind: "number", value: String(one?.priority ?? 0) },
      { name: "definition", label: "Settings", kind: "table", suggest: isOperator ? OPERATOR_KEYS : KEYS, value: pairs_of(one?.definition), help: "Such as message-ttl = 60000" },
    ],
    submit: async (values) => {
      const definition = table_of(values.definition);
      if (Object.keys(definition).length === 0) throw new Error("Say at least one setting, such as message-ttl.");
      await ask("PUT", `${kind}/${path(one?.vhost ?? values.vhost, one?.name ?? values.name)}`, { pattern: values.pattern, "apply-to": values.apply, priority: Number(values.priority), definition });
      tell("The policy is in force.");
      refresh();
    },
  });
}

function Part({ kind, title, note, canChange, vhosts }) {
  const poll = usePoll(kind);
  const isOperator = kind === "operator-policies";
  const remove = (one) => confirm({ title: `Delete the policy ${one.name}?`, verb: "Delete", body: html`<p>What matches <b class="mono">${one.pattern}</b> goes on without it at once: messages may live longer or shorter, queues may grow or be cut.</p>`, doing: async () => { await ask("DELETE", `${kind}/${path(one.vhost, one.name)}`); refresh(); } });
  const columns = [
    { key: "name", label: "Name", className: "name", isFixed: true, cell: (one) => html`<b>${one.name}</b>` },
    ...(vhosts.length > 1 ? [{ key: "vhost", label: "Virtual host", cell: (one) => one.vhost }] : []),
    { key: "pattern", label: "Names that match", className: "mono", cell: (one) => one.pattern },
    { key: "apply-to", label: "Applies to", cell: (one) => one["apply-to"].replace("_", " ") },
    { key: "definition", label: "Settings", sort: false, cell: (one) => html`<${Arguments} of=${one.definition} />` },
    { key: "priority", label: "Priority", isNumber: true, cell: (one) => one.priority },
    ...(canChange ? [{ key: "do", label: html`<span class="unseen">Change</span>`, sort: false, isNumber: true, cell: (one) => html`<button type="button" class="plain" onClick=${() => set(kind, vhosts, one)}>Change</button><button type="button" class="plain" aria-label="Delete ${one.name}" title="Delete" onClick=${() => remove(one)}><${Icon} name="trash" size=${16} /></button>` }] : []),
  ];
  return html`<div class="page-head">${isOperator ? html`<h2>${title}</h2>` : html`<h1>${title}</h1>`}${canChange && html`<div class="actions"><button type="button" class=${isOperator ? "" : "primary"} onClick=${() => set(kind, vhosts)}><${Icon} name="plus" />${isOperator ? "Add an operator policy" : "Add a policy"}</button></div>`}</div><p class="faint">${note}</p>
    <${Wrong} failure=${poll.failure} /><${DataTable} id=${kind} small=${isOperator} rows=${poll.data} columns=${columns} rowKey=${(one) => `${one.vhost}/${one.name}`} search=${(one) => [one.name, one.pattern]} noun="policies" placeholder="Filter policies by name or pattern" empty=${html`<${Empty} title=${isOperator ? "No operator policy." : "No policy yet."}>${isOperator ? "One keeps queues within bounds, whatever applications ask for." : "One gives many queues a setting at once, without declaring them anew: a time to live, a length, a dead letter exchange."}</${Empty}>`} />`;
}

export function Policies() {
  const can = useRights();
  const vhosts = useVhosts();
  useDoing("add", () => set("policies", vhosts), can.sets_policies && vhosts.length > 0);
  return html`<${Part} kind="policies" title="Policies" note="Settings of queues and exchanges by their names." canChange=${can.sets_policies} vhosts=${vhosts} />
    <${Part} kind="operator-policies" title="Operator policies" note="They overrule policies and arguments; only administrators change them." canChange=${can.administrates} vhosts=${vhosts} />`;
}
