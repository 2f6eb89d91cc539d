// The page as a whole: who is logged in, the frame around each page, keys that work everywhere.
import { html, render, store, useEffect, useErrorBoundary, useState, useStore } from "./lib.js";
import { contact, logout, me, pace, refresh, resume, rights, useRights, usePoll } from "./api.js";
import { go, href, place } from "./router.js";
import { Icon, Logo } from "./icons.js";
import { Dialog, Menu, Toasts, attempt, open } from "./ui.js";
import { themeChanged } from "./chart.js";
import { openPalette } from "./palette.js";
import { alarmsOf } from "./alarms.js";
import { ago } from "./format.js";
import { Login } from "./login.js";
import { cluster } from "./cluster.js";
import { Overview } from "./pages/overview.js";
import { Nodes, Node } from "./pages/nodes.js";
import { Queues } from "./pages/queues.js";
import { Queue } from "./pages/queue.js";
import { Exchanges, Exchange } from "./pages/exchanges.js";
import { Connections, Connection, Channels, Channel, Consumers } from "./pages/clients.js";
import { Topology } from "./pages/topology.js";
import { Vhosts, Vhost } from "./pages/vhosts.js";
import { Users, User } from "./pages/users.js";
import { Policies } from "./pages/policies.js";
import { Limits } from "./pages/limits.js";
import { Definitions } from "./pages/definitions.js";
import { Reference } from "./pages/reference.js";
import { Cluster } from "./pages/parameters.js";
import { Flags } from "./pages/flags.js";
import { Waiting } from "./pages/waiting.js";

/** Every page: its address, its words, who sees it in the list, what draws it, and what draws one of its things. */
const PAGES = [
  { at: "", name: "Overview", icon: "overview", key: "o", draw: Overview },
  { at: "nodes", name: "Nodes", icon: "nodes", key: "n", draw: Nodes, one: Node, if: (can) => can.monitors },
  { at: "queues", name: "Queues", icon: "queues", key: "q", draw: Queues, one: Queue, group: "Messages" },
  { at: "exchanges", name: "Exchanges", icon: "exchanges", key: "e", draw: Exchanges, one: Exchange, group: "Messages" },
  { at: "topology", name: "Topology", icon: "topology", key: "t", draw: Topology, group: "Messages" },
  { at: "connections", name: "Connections", icon: "connections", key: "c", draw: Connections, one: Connection, group: "Clients" },
  { at: "channels", name: "Channels", icon: "channels", key: "h", draw: Channels, one: Channel, group: "Clients" },
  { at: "consumers", name: "Consumers", icon: "consumers", key: "s", draw: Consumers, group: "Clients" },
  { at: "waiting", name: "What waits", icon: "waiting", key: "w", draw: Waiting, group: "Clients", if: (can) => can.monitors },
  { at: "vhosts", name: "Virtual hosts", icon: "vhosts", key: "v", draw: Vhosts, one: Vhost, group: "Settings" },
  { at: "policies", name: "Policies", icon: "policies", key: "p", draw: Policies, group: "Settings" },
  { at: "users", name: "Users", icon: "users", key: "u", draw: Users, one: User, group: "Settings", if: (can) => can.administrates },
  { at: "limits", name: "Limits", icon: "limits", key: "l", draw: Limits, group: "Settings" },
  { at: "definitions", name: "Definitions", icon: "definitions", key: "d", draw: Definitions, group: "Settings", if: (can) => can.administrates },
  { at: "cluster-name", name: "Cluster", icon: "cluster", key: "m", draw: Cluster, group: "Settings", if: (can) => can.sets_policies },
  { at: "feature-flags", name: "Feature flags", icon: "flags", key: "f", draw: Flags, group: "Settings", if: (can) => can.administrates },
  { at: "api", name: "HTTP API", icon: "settings", key: "a", draw: Reference, group: "Settings" },
];

const isMenuOpen = store(false);

function setTheme(word) {
  try {
    if (word) localStorage.setItem("leveret.theme", word);
    else localStorage.removeItem("leveret.theme");
  } catch { /* It holds until the page is closed. */ }
  if (word) document.documentElement.dataset.theme = word;
  else delete document.documentElement.dataset.theme;
  themeChanged();
}
const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const flipTheme = () => setTheme(isDark() ? "light" : "dark");

function commands() {
  const can = rights(me.get());
  return [
    ...PAGES.filter((page) => !page.if || page.if(can)).map((page) => ({ label: page.name, icon: page.icon, hint: `g ${page.key}`, run: () => go(...(page.at ? [page.at] : [])) })),
    { label: "Declare a queue", icon: "plus", also: "new add create", run: () => { location.hash = `${href("queues")}?do=declare`; } },
    { label: "Declare an exchange", icon: "plus", also: "new add create", run: () => { location.hash = `${href("exchanges")}?do=declare`; } },
    ...(can.administrates ? [{ label: "Add a user", icon: "plus", also: "new create", run: () => { location.hash = `${href("users")}?do=add`; } }, { label: "Add a virtual host", icon: "plus", also: "new create", run: () => { location.hash = `${href("vhosts")}?do=add`; } }] : []),
    ...(can.sets_policies ? [{ label: "Add a policy", icon: "plus", also: "new create", run: () => { location.hash = `${href("policies")}?do=add`; } }, { label: "Set a global parameter", icon: "plus", also: "new add", run: () => { location.hash = `${href("cluster-name")}?do=set`; } }] : []),
    ...(can.administrates ? [{ label: "Change the cluster's name", icon: "cluster", also: "rename", run: () => { location.hash = `${href("cluster-name")}?do=rename`; } }, { label: "Add a node", icon: "nodes", also: "join cluster", run: () => { location.hash = `${href("nodes")}?do=join`; } }] : []),
    { label: isDark() ? "Light theme" : "Dark theme", icon: isDark() ? "sun" : "moon", also: "switch colours appearance", hint: "t", run: flipTheme },
    { label: "Refresh now", icon: "refresh", hint: "r", run: refresh },
    { label: pace.get() ? "Pause refreshing" : "Go on refreshing", icon: pace.get() ? "pause" : "play", run: () => pace.set(pace.get() ? 0 : 5) },
    { label: "Keys", icon: "keyboard", hint: "?", also: "shortcuts keyboard help", run: showKeys },
    { label: "Log out", icon: "out", run: () => attempt(logout) },
  ];
}

function showKeys() {
  const keys = [["Ctrl K", "the command palette"], ["/", "filter this list, or the palette where there is none"], ["g, then a letter", "a page:"], ...PAGES.map((page) => [`g ${page.key}`, page.name]), ["r", "refresh now"], ["t", "light or dark"], ["?", "these keys"], ["Esc", "close"]];
  open((close) => html`<${Dialog} title="Keys" onClose=${close}><dl class="facts keys">${keys.map(([key, does]) => html`<div><dt>${key.split(" ").length < 3 ? key.split(" ").map((one) => html`<kbd>${one}</kbd> `) : key}</dt><dd>${does}</dd></div>`)}</dl></${Dialog}>`);
}

let isAfterG = 0;
addEventListener("keydown", (event) => {
  if (!me.get()) return;
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    openPalette(commands());
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest?.("input,textarea,select,[contenteditable]")) return;
  if (Date.now() - isAfterG < 1500) {
    isAfterG = 0;
    const page = PAGES.find((one) => one.key === event.key && (!one.if || one.if(rights(me.get()))));
    if (page) { event.preventDefault(); go(...(page.at ? [page.at] : [])); return; }
  }
  switch (event.key) {
    case "/": {
      event.preventDefault();
      const field = document.querySelector("[data-main-search]");
      if (field) { field.focus(); field.select(); } else openPalette(commands());
      break;
    }
    case "g": isAfterG = Date.now(); break;
    case "r": refresh(); break;
    case "t": flipTheme(); break;
    case "?": showKeys(); break;
    default:
  }
});

function Navigation({ at }) {
  const can = useRights();
  const shown = PAGES.filter((page) => !page.if || page.if(can));
  const isOpen = useStore(isMenuOpen);
  let group;
  return html`<nav class="side ${isOpen ? "is-open" : ""}" id="navigation" aria-label="Pages">
    <a class="brand" href="#/"><${Logo} />Leveret</a>
    <ul>${shown.map((page) => {
      const begins = page.group !== group;
      group = page.group;
      return html`${begins && page.group && html`<li class="side-group" aria-hidden="true">${page.group}</li>`}
        <li><a href=${page.at ? href(page.at) : "#/"} aria-current=${page.at === at ? "page" : undefined}><${Icon} name=${page.icon} />${page.name}</a></li>`;
    })}</ul></nav>`;
}

/** Whether what is seen is of this moment. */
function Live() {
  const seconds = useStore(pace);
  const { at, isLost } = useStore(contact);
  const [, tick] = useState(0);
  useEffect(() => { const timer = setInterval(() => tick((n) => n + 1), 1000); return () => clearInterval(timer); }, []);
  const kind = isLost ? "bad" : seconds === 0 ? "warn" : "good";
  const words = isLost ? `no answer since ${at ? ago(at).replace(" ago", "") : "the start"}` : seconds === 0 ? "paused" : "live";
  return html`<${Menu} className="live ${kind} to-left" title="How often figures are asked for: ${words}" label=${html`<i class="dot ${kind}" /><span class="only-wide">${words}</span>`}>
    ${[[1, "every second"], [5, "every 5 s"], [10, "every 10 s"], [30, "every 30 s"], [0, "paused"]].map(([n, label]) => html`<button type="button" aria-pressed=${n === seconds} class=${n === seconds ? "is-chosen" : ""} onClick=${() => pace.set(n)}>${label}</button>`)}
    <hr /><button type="button" onClick=${refresh}><${Icon} name="refresh" />now</button></${Menu}>`;
}

function Head() {
  const user = useStore(me);
  const can = useRights();
  const { nodes, overview } = useStore(cluster);
  const wrong = alarmsOf(nodes, overview);
  const worst = wrong.some((one) => one.kind === "bad") ? "bad" : "warn";
  const isOpen = useStore(isMenuOpen);
  return html`<header class="head">
    <button type="button" class="plain only-narrow" aria-label="Pages" aria-expanded=${isOpen} aria-controls="navigation" onClick=${() => isMenuOpen.set(!isOpen)}><${Icon} name=${isOpen ? "close" : "menu"} size=${22} /></button>
    <div class="head-name"><b title="The cluster's name">${overview?.cluster_name ?? ""}</b>${nodes?.length > 1 && html`<span class="faint only-wide"> ${nodes.filter((node) => node.running !== false).length} of ${nodes.length} nodes</span>`}</div>
    ${wrong.length > 0 && html`<a class="pill ${worst}" href="#/"><${Icon} name="alert" size=${15} />${wrong.length}<span class="only-wide">${wrong.length === 1 ? " alarm" : " alarms"}</span></a>`}
    <button type="button" class="head-search" onClick=${() => openPalette(commands())}><${Icon} name="search" /><span class="wide-words">Search or command</span> <kbd class="only-wide" aria-hidden="true">Ctrl K</kbd></button>
    <${Live} />
    <${Menu} icon="users" title="User ${user.name}" className="to-left">
      <p class="menu-note"><b>${user.name}</b><br /><span class="faint">${user.tags?.length ? user.tags.join(", ") : "no tags"}</span></p><hr />
      ${[["", "system", "System's theme"], ["light", "sun", "Light"], ["dark", "moon", "Dark"]].map(([word, icon, label]) => html`<button type="button" onClick=${() => setTheme(word)}><${Icon} name=${icon} />${label}</button>`)}<hr />
      <button type="button" onClick=${showKeys}><${Icon} name="keyboard" />Keys</button>
      <button type="button" onClick=${() => attempt(logout)}><${Icon} name="out" />Log out</button></${Menu}>
  </header>`;
}

/** Keeps what the head shows up to date, whatever page is open. */
function Watch() {
  const can = useRights();
  const overview = usePoll("overview?columns=cluster_name,node,leveret_version,product_name,product_version,rates_mode,object_totals,leveret_quarantined", { every: 10 });
  const nodes = usePoll(can.monitors ? "nodes" : null, { every: 10 });
  useEffect(() => cluster.set({ overview: overview.data ?? cluster.get().overview, nodes: nodes.data ?? cluster.get().nodes }), [overview.data, nodes.data]);
  return null;
}

function Body() {
  const { parts } = useStore(place);
  const [failure, forget] = useErrorBoundary((error) => console.error(error));
  const page = PAGES.find((one) => one.at === (parts[0] ?? ""));
  const isOne = parts.length > 1 && page?.one;
  const Draw = isOne ? page.one : page?.draw;
  const title = isOne ? parts.at(-1) : page?.name ?? "Not here";
  useEffect(() => {
    document.title = `${title} · Leveret`;
    isMenuOpen.set(false);
    forget();
    scrollTo(0, 0);
  }, [parts.join("/")]);
  if (failure) return html`<div class="banner bad" role="alert"><${Icon} name="alert" /><div><b>This page cannot be drawn.</b> ${String(failure.message)} Others still can; reloading may help.</div><button type="button" onClick=${() => location.reload()}>Reload</button></div>`;
  if (!Draw) return html`<div class="empty"><p class="empty-title">There is no such page.</p><p><a href="#/">To the overview</a></p></div>`;
  return html`<${Draw} key=${parts.join("/")} parts=${parts.slice(1)} />`;
}

function App() {
  const user = useStore(me);
  const { parts } = useStore(place);
  if (user === undefined) return html`<p class="boot" role="status">Asking the node who you are …</p>`;
  if (user === null) return html`<${Login} /><${Toasts} />`;
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector("main").focus(); }}>To the content</a>
    <${Watch} /><${Navigation} at=${parts[0] ?? ""} /><div class="scrim" onClick=${() => isMenuOpen.set(false)} />
    <div class="rest"><${Head} /><main id="main" tabindex="-1"><${Body} /></main></div><${Toasts} />`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
resume();
