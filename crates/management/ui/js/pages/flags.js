// Feature flags, and what is deprecated: as RabbitMQ names both, for tools that ask for them.
import { html } from "../lib.js";
import { usePoll, useRights } from "../api.js";
import { DataTable } from "../table.js";
import { Badge, Card, Empty, Wrong } from "../ui.js";

const FLAGS = [
  { key: "name", label: "Name", className: "name", isFixed: true, cell: (one) => html`<span class="mono">${one.name}</span>` },
  { key: "state", label: "State", cell: (one) => html`<${Badge} kind=${one.state === "enabled" ? "good" : "warn"}>${one.state}</${Badge}>` },
  { key: "desc", label: "What it means", className: "whole", cell: (one) => one.desc },
];

const DEPRECATED = (used) => [
  FLAGS[0],
  { key: "state", label: "Here", cell: (one) => (one.state === "permitted" ? html`<${Badge} kind="good">there</${Badge}>` : html`<${Badge}>not there</${Badge}>`) },
  { key: "used", label: "In use", sort: false, cell: (one) => (used.has(one.name) ? html`<${Badge} kind="warn">in use</${Badge}>` : html`<span class="faint">no</span>`) },
  { key: "deprecation_phase", label: "In RabbitMQ", cell: (one) => one.deprecation_phase.replaceAll("_", " ") },
];

export function Flags() {
  const can = useRights();
  const flags = usePoll(can.administrates ? "feature-flags" : null, { every: 60 });
  const deprecated = usePoll(can.administrates ? "deprecated-features" : null, { every: 60 });
  const used = usePoll(can.administrates ? "deprecated-features/used" : null, { every: 60 });
  if (!can.administrates) return html`<h1>Feature flags</h1><${Empty} title="Feature flags are shown to administrators." />`;
  const names = new Set((used.data ?? []).map((one) => one.name));
  return html`<div class="page-head"><h1>Feature flags</h1></div>
    <p class="faint">RabbitMQ's flags whose meaning holds here. Each is enabled for good, so nothing has to be done about them after an update.</p>
    <${Wrong} failure=${flags.failure ?? deprecated.failure} />
    <${Card} title="Flags"><${DataTable} id="flags" small rows=${flags.data} columns=${FLAGS} rowKey=${(one) => one.name} natural="name" noun="flags" /></${Card}>
    <${Card} title="Deprecated in RabbitMQ" aside=${html`<span class="faint">what an application should not begin to use</span>`}><${DataTable} id="deprecated" small rows=${deprecated.data} columns=${DEPRECATED(names)} rowKey=${(one) => one.name} natural="name" noun="features" /></${Card}>`;
}
