// Users: who may log in, and what each may do where.
import { html } from "../lib.js";
import { ask, me, part, path, refresh, usePoll, useRights } from "../api.js";
import { go, href } from "../router.js";
import { DataTable } from "../table.js";
import { Icon } from "../icons.js";
import { Badge, Card, Empty, Facts, Menu, Wrong, ask_for, confirm, tell } from "../ui.js";
import { useDoing, useVhosts } from "./queues.js";
import { LimitsOf } from "./limits.js";

const TAGS = [["administrator", "everything"], ["monitoring", "sees all"], ["policymaker", "sets policies"], ["management", "sees their own"]];
const tagsOf = (user) => (Array.isArray(user.tags) ? user.tags : String(user.tags ?? "").split(",").filter(Boolean));

const Tags = ({ user }) => (tagsOf(user).length === 0 ? html`<span class="faint">none: may not open this page</span>` : tagsOf(user).map((tag) => html`<${Badge} key=${tag} kind=${tag === "administrator" ? "accent" : ""}>${tag}</${Badge}>`));
const login = (user) => (user.password_hash ? "password" : html`<span class="faint">no password: by certificate or token</span>`);

const columnsOf = (rightless) => [
  { key: "name", label: "Name", isFixed: true, className: "name", cell: (user) => html`<a href=${href("users", user.name)}>${user.name}</a>${rightless.has(user.name) && html` <${Badge} kind="warn" title="Applications that log in so are refused every virtual host">no rights</${Badge}>`}` },
  { key: "tags", label: "Tags", sort: false, cell: (user) => html`<${Tags} user=${user} />` },
  { key: "login", label: "Logs in with", sort: false, cell: login },
  { key: "limits", label: "Limits", sort: false, cell: (user) => Object.entries(user.limits ?? {}).map(([name, value]) => html`<${Badge} key=${name}>${name} ${value}</${Badge}>`) },
];

const fields = (user) => [
  { name: "password", label: user ? "New password" : "Password", kind: "password", isNeeded: !user, help: user ? "Left empty, it stays as it is." : undefined, when: (values) => !values.has_none },
  { name: "has_none", label: "No password: logs in by certificate or token alone", kind: "check", value: Boolean(user && !user.password_hash) },
  { name: "tags", label: "Tags", value: user ? tagsOf(user).join(", ") : "management", suggest: TAGS.map(([tag]) => tag), help: TAGS.map(([tag, does]) => `${tag}: ${does}`).join("; ") },
];

/** A password that is not said again is told by its hash. */
const bodyOf = ({ password, has_none: hasNone, tags }, user) => ({ tags, ...(hasNone ? { password_hash: "" } : password ? { password } : user ? { password_hash: user.password_hash ?? "", ...(user.password_hash ? { hashing_algorithm: user.hashing_algorithm } : {}) } : {}) });

function add(vhosts) {
  ask_for({
    title: "Add a user", verb: "Add",
    fields: [{ name: "name", label: "Name", isNeeded: true }, ...fields(), { name: "vhost", label: "May do everything in", kind: "choice", value: "", options: [["", "no virtual host yet"], ...vhosts.map((name) => [name])], help: "Applications need rights in a virtual host. Narrower ones are given on the user's page." }],
    submit: async ({ name, vhost, ...values }) => {
      await ask("PUT", `users/${part(name)}`, bodyOf(values));
      if (vhost) await ask("PUT", `permissions/${path(vhost, name)}`, { configure: ".*", write: ".*", read: ".*" });
      tell(vhost ? `User ${name} is there and may do everything in ${vhost}.` : `User ${name} is there, without rights in any virtual host yet.`);
      go("users", name);
    },
  });
}

export function Users() {
  const can = useRights();
  const vhosts = useVhosts();
  const { data: rightless } = usePoll(can.administrates ? "users/without-permissions?columns=name" : null, { every: 30 });
  useDoing("add", () => add(vhosts), vhosts.length > 0);
  if (!can.administrates) return html`<h1>Users</h1><${Empty} title="Users are shown to administrators." />`;
  return html`<div class="page-head"><h1>Users</h1><div class="actions"><button type="button" class="primary" onClick=${() => add(vhosts)}><${Icon} name="plus" />Add a user</button></div></div>
    <${DataTable} id="users" url="users" columns=${columnsOf(new Set((rightless ?? []).map((one) => one.name)))} rowKey=${(user) => user.name} noun="users" placeholder="Filter users by name" />`;
}

export function User({ parts: [name] }) {
  const own = me.get();
  const { data: user, failure } = usePoll(`users/${part(name)}`);
  const edit = () => ask_for({ title: `Change ${name}`, verb: "Save", fields: fields(user), submit: async (values) => { await ask("PUT", `users/${part(name)}`, bodyOf(values, user)); tell("Saved."); refresh(); } });
  const remove = () => confirm({ title: `Delete the user ${name}?`, verb: "Delete", typed: name, body: html`<p>${name === own.name ? html`<b>This is you: you are logged out at once.</b> ` : ""}The user's connections are closed, and their rights are gone.</p>`, doing: async () => { await ask("DELETE", `users/${part(name)}`); tell(`${name} is deleted.`); if (name === own.name) me.set(null); else go("users"); } });
  const kick = () => confirm({ title: `Close all connections of ${name}?`, verb: "Close them", body: html`<p>Clients are told and may connect again at once.</p>`, doing: async () => { await ask("DELETE", `connections/username/${part(name)}`, undefined, { headers: { "x-reason": "Closed by an operator" } }); tell("Closed."); } });
  if (failure?.status === 404) return html`<nav class="crumbs" aria-label="Where this is"><a href="#/users">Users</a></nav><h1>${name}</h1><${Empty} title="There is no such user."><a href="#/users">All users</a></${Empty}>`;
  return html`<nav class="crumbs" aria-label="Where this is"><a href="#/users">Users</a></nav><div class="page-head"><h1 class="mono-title">${name}</h1>${user && html`<div class="actions"><button type="button" onClick=${edit}>Change</button><${Menu} label="More" className="to-left"><button type="button" onClick=${kick}><${Icon} name="close" />Close connections …</button><button type="button" class="danger-text" onClick=${remove}><${Icon} name="trash" />Delete …</button></${Menu}></div>`}</div>
    <${Wrong} failure=${failure} />
    ${user && html`<div class="halves"><${Card} title="Who it is"><${Facts} of=${[["Tags", html`<${Tags} user=${user} />`], ["Logs in with", login(user)], ["Hash", user.hashing_algorithm?.replace(/^.*_password_hashing_/, "")]]} /></${Card}><${LimitsOf} kind="user" name=${name} /></div>
    <${Permissions} user=${name} /><${TopicPermissions} user=${name} />`}`;
}

const patternHelp = "Regular expressions of names: .* is everything, ^$ nothing.";

/** Rights of one user, or in one virtual host. */
export function Permissions({ user, vhost }) {
  const vhosts = useVhosts();
  const url = user ? `users/${part(user)}/permissions` : `vhosts/${part(vhost)}/permissions`;
  const poll = usePoll(url);
  const set = (one) => ask_for({
    title: one ? "Change rights" : "Give rights", verb: one ? "Save" : "Give", note: patternHelp,
    fields: [...(one ? [] : [user ? { name: "vhost", label: "Virtual host", kind: "choice", options: vhosts.map((name) => [name]) } : { name: "user", label: "User", isNeeded: true }]),
      { name: "configure", label: "Configure: declare and delete", value: one?.configure ?? ".*" }, { name: "write", label: "Write: publish and bind", value: one?.write ?? ".*" }, { name: "read", label: "Read: consume and get", value: one?.read ?? ".*" }],
    submit: async (values) => { await ask("PUT", `permissions/${path(one?.vhost ?? values.vhost ?? vhost, one?.user ?? values.user ?? user)}`, { configure: values.configure, write: values.write, read: values.read }); tell("Saved."); refresh(); },
  });
  const remove = (one) => confirm({ title: "Take the rights away?", verb: "Take them", body: html`<p><b>${one.user}</b> may no longer use <b>${one.vhost}</b>; operations of open connections are refused from now on.</p>`, doing: () => ask("DELETE", `permissions/${path(one.vhost, one.user)}`).then(refresh) });
  const columns = [
    user ? { key: "vhost", label: "Virtual host", cell: (one) => html`<a href=${href("vhosts", one.vhost)}>${one.vhost}</a>` } : { key: "user", label: "User", cell: (one) => html`<a href=${href("users", one.user)}>${one.user}</a>` },
    ...["configure", "write", "read"].map((word) => ({ key: word, label: word[0].toUpperCase() + word.slice(1), className: "mono", cell: (one) => one[word] || html`<span class="faint">nothing</span>` })),
    { key: "do", label: html`<span class="unseen">Change</span>`, sort: false, isNumber: true, cell: (one) => html`<button type="button" class="plain" onClick=${() => set(one)}>Change</button><button type="button" class="plain" title="Take away" aria-label="Take away" onClick=${() => remove(one)}><${Icon} name="trash" size=${16} /></button>` },
  ];
  return html`<${Card} title="Rights" aside=${html`<button type="button" onClick=${() => set()}><${Icon} name="plus" />Give rights</button>`}><${Wrong} failure=${poll.failure} /><${DataTable} id="permissions" small rows=${poll.data} columns=${columns} rowKey=${(one) => `${one.user}@${one.vhost}`} search=${(one) => [one.user, one.vhost]} natural=${user ? "vhost" : "user"} noun="rights" empty=${html`<${Empty} title=${user ? "This user may use no virtual host." : "Nobody may use this virtual host."}>Give rights, or applications are refused.</${Empty}>`} /></${Card}>`;
}

export function TopicPermissions({ user, vhost }) {
  const vhosts = useVhosts();
  const url = user ? `users/${part(user)}/topic-permissions` : `vhosts/${part(vhost)}/topic-permissions`;
  const poll = usePoll(url);
  const set = () => ask_for({ title: "Limit routing keys", verb: "Save", note: "For one topic exchange: which routing keys may be published, and which may be bound. Without an entry all may.",
    fields: [user ? { name: "vhost", label: "Virtual host", kind: "choice", options: vhosts.map((name) => [name]) } : { name: "user", label: "User", isNeeded: true }, { name: "exchange", label: "Exchange", isNeeded: true, value: "amq.topic" }, { name: "write", label: "Write: keys published", value: ".*" }, { name: "read", label: "Read: keys bound", value: ".*" }],
    submit: async (values) => { await ask("PUT", `topic-permissions/${path(values.vhost ?? vhost, values.user ?? user)}`, { exchange: values.exchange, write: values.write, read: values.read }); tell("Saved."); refresh(); } });
  const remove = (one) => confirm({ title: "Lift the limit?", verb: "Lift it", body: html`<p><b>${one.user}</b> may use every routing key of <b>${one.exchange}</b>.</p>`, doing: () => ask("DELETE", `topic-permissions/${path(one.vhost, one.user)}/${part(one.exchange || "amq.default")}`).then(refresh) });
  const columns = [user ? { key: "vhost", label: "Virtual host", cell: (one) => one.vhost } : { key: "user", label: "User", cell: (one) => one.user }, { key: "exchange", label: "Exchange", cell: (one) => one.exchange }, { key: "write", label: "Write", className: "mono", cell: (one) => one.write }, { key: "read", label: "Read", className: "mono", cell: (one) => one.read }, { key: "do", label: html`<span class="unseen">Lift</span>`, sort: false, isNumber: true, cell: (one) => html`<button type="button" class="plain" aria-label="Lift" onClick=${() => remove(one)}><${Icon} name="trash" size=${16} /></button>` }];
  return html`<${Card} title="Rights by routing key" aside=${html`<button type="button" onClick=${set}><${Icon} name="plus" />Limit keys</button>`}>${poll.data?.length ? html`<${DataTable} id="topic-permissions" small rows=${poll.data} columns=${columns} rowKey=${(one) => `${one.user}@${one.vhost}/${one.exchange}`} search=${(one) => [one.exchange, one.user]} natural="exchange" noun="limits" />` : html`<p class="faint">None: topics are not limited.</p>`}</${Card}>`;
}
