// What holds for the cluster as a whole: its name, and global parameters, which are kept by name.
import { html } from "../lib.js";
import { ask, part, refresh, usePoll, useRights } from "../api.js";
import { Icon } from "../icons.js";
import { DataTable } from "../table.js";
import { Card, Copy, Empty, Facts, Wrong, ask_for, confirm, tell } from "../ui.js";
import { useDoing } from "./queues.js";

const NAME = "cluster_name", NUMBER = "internal_cluster_id";

const rename = (now) => ask_for({
  title: "Change the cluster's name?", verb: "Change it",
  note: "Clients are told the new one when they connect next. Metrics carry it in rabbitmq_cluster from now on, so dashboards and alerts that name the old one find nothing. Queues and messages stay as they are.",
  fields: [{ name: "name", label: "Name", value: now, isNeeded: true }],
  submit: async ({ name }) => { await ask("PUT", "cluster-name", { name }); tell(`The cluster is called ${name}.`); refresh(); },
});

/** What was typed as a value. Errors: it is no JSON. */
function json_of(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("The value is no JSON. A text has to be in double quotes.");
  }
}

const set = (known, one) => ask_for({
  title: one ? `Change ${one.name}` : "Set a global parameter", verb: one ? "Save" : "Set",
  fields: [...(one ? [] : [{ name: "name", label: "Name", isNeeded: true, suggest: ["cluster_tags"] }]),
    { name: "value", label: "Value", kind: "area", rows: 6, value: one ? JSON.stringify(one.value, null, 2) : "", help: "JSON: a text in double quotes, a number, true or false, a list in [ ], an object in { }" }],
  submit: async ({ name, value }) => {
    if (!one && known.some((other) => other.name === name)) throw new Error(`${name} is there already. Change it in the list.`);
    await ask("PUT", `global-parameters/${part(one?.name ?? name)}`, { value: json_of(value) });
    tell("The parameter is set.");
    refresh();
  },
});

const remove = (one) => confirm({
  title: `Delete the global parameter ${one.name}?`, verb: "Delete",
  body: html`<p>${one.name === NAME ? "The cluster is called as its first node again." : "Its value is lost for good, and programs that read it find nothing."}</p><pre>${JSON.stringify(one.value, null, 2)}</pre>`,
  doing: async () => { await ask("DELETE", `global-parameters/${part(one.name)}`); tell(`${one.name} is deleted.`); refresh(); },
});

export function Cluster() {
  const can = useRights();
  const { data: named, failure } = usePoll("cluster-name");
  const poll = usePoll(can.sets_policies ? "global-parameters" : null);
  const known = poll.data ?? [];
  useDoing("rename", () => rename(named.name), can.administrates && named !== undefined);
  useDoing("set", () => set(known), can.sets_policies && poll.data !== undefined);
  const number = known.find((one) => one.name === NUMBER)?.value;
  const may = (one) => one.name !== NUMBER && (one.name !== NAME || can.administrates);
  const columns = [
    { key: "name", label: "Name", className: "name key-name", isFixed: true, cell: (one) => html`<span class="mono">${one.name}</span>` },
    { key: "value", label: "Value", sort: false, className: "mono whole", cell: (one) => JSON.stringify(one.value) },
    { key: "do", label: html`<span class="unseen">Change</span>`, sort: false, isNumber: true, cell: (one) => (may(one) ? html`<button type="button" class="plain" aria-label="Change ${one.name}" onClick=${() => set(known, one)}>Change</button><button type="button" class="plain" aria-label="Delete ${one.name}" title="Delete" onClick=${() => remove(one)}><${Icon} name="trash" size=${16} /></button>` : html`<span class="faint">stays</span>`) },
  ];
  return html`<div class="page-head"><h1>Cluster</h1></div><${Wrong} failure=${failure} />
    <${Card} title="Its name" aside=${can.administrates && named && html`<button type="button" onClick=${() => rename(named.name)}>Change the name …</button>`}>
      <${Facts} of=${[["Name", named && html`<b>${named.name}</b>`], ["Number", number && html`<code>${number}</code> <${Copy} text=${number} />`]]} />
      ${number && html`<p class="faint">The name may change. The number never does, and tells this cluster from all others in metrics.</p>`}</${Card}>
    ${can.sets_policies && html`<${Card} title="Global parameters" aside=${html`<button type="button" onClick=${() => set(known)}><${Icon} name="plus" />Set a parameter</button>`}>
      <p class="faint">Values of any kind that programs keep here by name. They are on disk and in definitions. The broker itself reads <code>cluster_name</code> and <code>cluster_tags</code>.</p><${Wrong} failure=${poll.failure} />
      <${DataTable} id="global-parameters" small rows=${poll.data} columns=${columns} rowKey=${(one) => one.name} natural="name" noun="parameters" empty=${html`<${Empty} title="There is no global parameter." />`} />
      <p class="faint">Parameters of virtual hosts are their <a href="#/limits">limits</a> and <a href="#/policies">operator policies</a>.</p></${Card}>`}`;
}
