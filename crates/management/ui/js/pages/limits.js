// Limits: how many connections, channels and queues a virtual host or a user may have.
import { html } from "../lib.js";
import { ask, part, path, refresh, usePoll, useRights } from "../api.js";
import { href } from "../router.js";
import { count, list } from "../format.js";
import { Icon } from "../icons.js";
import { DataTable } from "../table.js";
import { Card, Empty, Facts, Wrong, ask_for, tell } from "../ui.js";

const KINDS = { vhost: [["max-connections", "Connections"], ["max-queues", "Queues"]], user: [["max-connections", "Connections"], ["max-channels", "Channels"]] };

const change = (kind, name, value) => ask_for({
  title: `Limits of ${name}`, verb: "Save", note: "An empty field is no limit. What is there already stays, even if it is more.",
  fields: KINDS[kind].map(([limit, label]) => ({ name: limit, label, kind: "number", min: 0, value: value?.[limit] === undefined ? "" : String(value[limit]) })),
  submit: async (values) => {
    for (const [limit] of KINDS[kind]) {
      const [text, had] = [values[limit], value?.[limit]];
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
  return html`<${Card} title="Limits" aside=${can.administrates && html`<button type="button" onClick=${() => change(kind, name, value)}>Change</button>`}><${Wrong} failure=${failure} /><${Facts} of=${KINDS[kind].map(([limit, label]) => [label, value[limit] === undefined ? html`<span class="faint">no limit</span>` : html`at most <b>${count(value[limit])}</b>`])} /></${Card}>`;
}

function Part({ kind, title, none }) {
  const can = useRights();
  const { data, failure } = usePoll(`${kind}-limits`);
  const names = usePoll(can.administrates || kind === "vhost" ? `${kind}s?columns=name` : null, { every: 60 });
  const add = () => ask_for({ title: `Limit a ${kind === "vhost" ? "virtual host" : "user"}`, verb: "Go on", fields: [{ name: "name", label: "Which", kind: "choice", options: (names.data ?? []).map((one) => [one.name]) }], submit: async ({ name }) => { setTimeout(() => change(kind, name, data?.find((one) => one[kind] === name)?.value)); } });
  const columns = [{ key: kind, label: kind === "vhost" ? "Virtual host" : "User", className: "name", cell: (one) => html`<a href=${href(`${kind}s`, one[kind])}>${one[kind]}</a>` }, ...KINDS[kind].map(([limit, label]) => ({ key: limit, sort: `value.${limit}`, label, isNumber: true, cell: (one) => (one.value[limit] === undefined ? html`<span class="faint">no limit</span>` : count(one.value[limit])) })), ...(can.administrates ? [{ key: "do", label: html`<span class="unseen">Change</span>`, sort: false, isNumber: true, cell: (one) => html`<button type="button" class="plain" onClick=${() => change(kind, one[kind], one.value)}>Change</button>` }] : [])];
  return html`<${Card} title=${title} aside=${can.administrates && html`<button type="button" onClick=${add}><${Icon} name="plus" />Set a limit</button>`}><${Wrong} failure=${failure} /><${DataTable} id=${`${kind}-limits`} small rows=${data} columns=${columns} rowKey=${(one) => one[kind]} search=${(one) => [one[kind]]} natural=${kind} noun="limits" empty=${html`<${Empty} title=${none}>A limit keeps one team's mistake from using up what all need: ${list(KINDS[kind].map(([, label]) => label.toLowerCase()))}.</${Empty}>`} /></${Card}>`;
}

export const Limits = () => html`<div class="page-head"><h1>Limits</h1></div><${Part} kind="vhost" title="Virtual hosts" none="No virtual host is limited." /><${Part} kind="user" title="Users" none="No user is limited." />`;
