// Limits: how many connections, channels and queues a virtual host or a user may have.
import { html } from "../lib.js";
import { ask, part, path, refresh, usePoll, useRights } from "../api.js";
import { href } from "../router.js";
import { count, list } from "../format.js";
import { Icon } from "../icons.js";
import { DataTable } from "../table.js";
import { Card, Empty, Facts, Wrong, ask_for, tell } from "../ui.js";

const KINDS = { vhost: [["max-connections", "Connections"], ["max-queues", "Queues"]], user: [["max-connections", "Connections"], ["max-channels", "Channels"]] };

/** Asks for the limits of one of them; of several, which one too. `limits` are those that there are by name. */
const change = (kind, names, limits) => ask_for({
  title: names.length === 1 ? `Limits of ${names[0]}` : `Limit a ${kind === "vhost" ? "virtual host" : "user"}`, verb: "Save", note: "An empty field is no limit. What is there already stays, even if it is more.",
  fields: [...(names.length > 1 ? [{ name: "name", label: "Which", kind: "choice", options: names.map((one) => [one]) }] : []), ...KINDS[kind].map(([limit, label]) => ({ name: limit, label, kind: "number", min: 0, follows: ({ name = names[0] }) => String(limits(name)?.[limit] ?? "") }))],
  submit: async ({ name = names[0], ...values }) => {
    for (const [limit] of KINDS[kind]) {
      const [text, had] = [values[limit], limits(name)?.[limit]];
      if (text === "" && had !== undefined) await ask("DELETE", `${kind}-limits/${path(name, limit)}`);
      else if (text !== "" && Number(text) !== had) await ask("PUT", `${kind}-limits/${path(name, limit)}`, { value: Math.round(Number(text)) });
    }
    tell("Saved.");
    refresh();
  },
});

/** Those of one virtual host or user. */
export function LimitsOf({ kind, name }) {
  const can = useRights();
  const { data, failure } = usePoll(`${kind}-limits/${part(name)}`);
  const value = data?.[0]?.value ?? {};
  return html`<${Card} title="Limits" aside=${can.administrates && html`<button type="button" onClick=${() => change(kind, [name], () => value)}>Change</button>`}><${Wrong} failure=${failure} /><${Facts} of=${KINDS[kind].map(([limit, label]) => [label, value[limit] === undefined ? html`<span class="faint">no limit</span>` : html`at most <b>${count(value[limit])}</b>`])} /></${Card}>`;
}

function Part({ kind, title, none }) {
  const can = useRights();
  const { data, failure } = usePoll(`${kind}-limits`);
  const names = usePoll(can.administrates || kind === "vhost" ? `${kind}s?columns=name` : null, { every: 60 });
  const add = () => change(kind, names.data.map((one) => one.name), (name) => data?.find((one) => one[kind] === name)?.value);
  const columns = [{ key: kind, label: kind === "vhost" ? "Virtual host" : "User", className: "name", cell: (one) => html`<a href=${href(`${kind}s`, one[kind])}>${one[kind]}</a>` }, ...KINDS[kind].map(([limit, label]) => ({ key: limit, sort: `value.${limit}`, label, isNumber: true, cell: (one) => (one.value[limit] === undefined ? html`<span class="faint">no limit</span>` : count(one.value[limit])) })), ...(can.administrates ? [{ key: "do", label: html`<span class="unseen">Change</span>`, sort: false, isNumber: true, cell: (one) => html`<button type="button" class="plain" onClick=${() => change(kind, [one[kind]], () => one.value)}>Change</button>` }] : [])];
  return html`<${Card} title=${title} aside=${can.administrates && html`<button type="button" disabled=${!names.data?.length} onClick=${add}><${Icon} name="plus" />Set a limit</button>`}><${Wrong} failure=${failure} /><${DataTable} id=${`${kind}-limits`} small rows=${data} columns=${columns} rowKey=${(one) => one[kind]} search=${(one) => [one[kind]]} natural=${kind} noun="limits" empty=${html`<${Empty} title=${none}>A limit keeps one team's mistake from using up what all need: ${list(KINDS[kind].map(([, label]) => label.toLowerCase()))}.</${Empty}>`} /></${Card}>`;
}

export const Limits = () => html`<div class="page-head"><h1>Limits</h1></div><${Part} kind="vhost" title="Virtual hosts" none="No virtual host is limited." /><${Part} kind="user" title="Users" none="No user is limited." />`;
