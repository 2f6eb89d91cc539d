// What a node is configured to be and who said so, and how many logged in on it.
import { html, useStore } from "../lib.js";
import { ask, part, refresh, usePoll, useRights } from "../api.js";
import { cluster } from "../cluster.js";
import { count, plain } from "../format.js";
import { DataTable } from "../table.js";
import { Badge, Card, Facts, Wrong, confirm } from "../ui.js";

const COLUMNS = [
  { key: "name", label: "Setting", isFixed: true, className: "name key-name", cell: (one) => html`<span class="mono">${one.name}</span>` },
  { key: "value", label: "Value", className: "mono whole", cell: (one) => plain(one.value) },
  { key: "origin", label: "Said by", cell: (one) => (one.origin === "default" ? html`<span class="faint">default</span>` : html`<${Badge} kind="accent">${one.origin}</${Badge}>`) },
];

/** A node tells its own settings alone. */
export function Settings({ node }) {
  const can = useRights();
  const { overview } = useStore(cluster);
  const isOwn = overview?.node === node;
  const { data, failure } = usePoll(can.administrates && isOwn ? "leveret/settings" : null, { every: 300 });
  if (!can.administrates || !overview) return null;
  // What somebody said stands first.
  const rows = data && [...data].sort((one, other) => (one.origin === "default") - (other.origin === "default"));
  return html`<${Card} title="Settings">${isOwn ? html`<${Wrong} failure=${failure} /><${DataTable} id="settings" small rows=${rows} columns=${COLUMNS} rowKey=${(one) => one.name} search=${(one) => [one.name, one.value, one.origin]} natural="name" noun="settings" placeholder="Filter settings" />`
    : html`<p class="faint">${node} tells its settings on its own page: open that node's address. This page is of ${overview.node}.</p>`}</${Card}>`;
}

const PROTOCOLS = { amqp091: "AMQP", http: "HTTP" };

/** How often somebody logged in on a node since it started. */
export function Logins({ node }) {
  const { data, failure } = usePoll(`auth/attempts/${part(node)}`, { every: 10 });
  const again = () => confirm({ title: "Count logins from zero again?", verb: "Count anew", isSafe: true, body: html`<p>What was counted on <b>${node}</b> until now is forgotten, in metrics too.</p>`, doing: () => ask("DELETE", `auth/attempts/${part(node)}`).then(refresh) });
  return html`<${Card} title="Logins" aside=${data?.length > 0 && html`<button type="button" class="plain" onClick=${again}>Count anew …</button>`}><${Wrong} failure=${failure} />
    ${data && (data.length === 0 ? html`<p class="faint">Nobody has tried to log in.</p>` : html`<${Facts} of=${data.map((one) => [PROTOCOLS[one.protocol] ?? one.protocol, html`<b>${count(one.auth_attempts_succeeded)}</b> let in, <b class=${one.auth_attempts_failed > 0 ? "warn" : ""}>${count(one.auth_attempts_failed)}</b> refused`])} />`)}</${Card}>`;
}
