// The command palette: Ctrl-K anywhere. Pages, things that are declared, and things to do, by a few
// letters of their names.
import { html, useEffect, useId, useMemo, useRef, useState } from "./lib.js";
import { get, me, part, rights } from "./api.js";
import { go } from "./router.js";
import { cluster } from "./cluster.js";
import { plural } from "./format.js";
import { Icon } from "./icons.js";
import { Dialog, open } from "./ui.js";

const FOUND_MAX = 7;

let isOpen = false;
export function openPalette(commands) {
  if (isOpen) return;
  isOpen = true;
  open((close) => html`<${Palette} commands=${commands} close=${() => { isOpen = false; close(); }} />`);
}

/** How well letters fit a text; 0 is not at all. */
function fits(text, typed) {
  if (!typed) return 1;
  const own = text.toLowerCase(), letters = typed.toLowerCase();
  const at = own.indexOf(letters);
  if (at === 0) return 100;
  if (at > 0) return /[\s./_-]/.test(own[at - 1]) ? 80 : 60;
  let from = 0;
  for (const letter of letters.replace(/\s/g, "")) {
    from = own.indexOf(letter, from) + 1;
    if (from === 0) return 0;
  }
  return 10;
}

function Palette({ commands, close }) {
  const [typed, setTyped] = useState("");
  const [found, setFound] = useState([]);
  const [at, setAt] = useState(0);
  const id = useId();
  const list = useRef();
  useEffect(() => {
    if (typed.trim().length < 1) { setFound([]); return undefined; }
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      const query = `page=1&page_size=${FOUND_MAX}&name=${part(typed.trim())}`;
      const look = async (url, make) => {
        try {
          const answer = await get(url, { signal: controller.signal });
          const items = (Array.isArray(answer) ? answer.filter((one) => one.name.toLowerCase().includes(typed.trim().toLowerCase())) : answer.items).slice(0, FOUND_MAX);
          return items.map(make);
        } catch { return []; }
      };
      const administrates = rights(me.get()).administrates;
      const nodes = (cluster.get().nodes ?? []).filter((one) => one.name.toLowerCase().includes(typed.trim().toLowerCase()));
      const all = await Promise.all([
        look(`queues?${query}&columns=name,vhost,messages`, (one) => ({ label: one.name, hint: `${one.vhost === "/" ? "" : `${one.vhost} · `}queue · ${plural(one.messages ?? 0, "message")}`, icon: "queues", run: () => go("queues", one.vhost, one.name) })),
        look(`exchanges?${query}&columns=name,vhost,type`, (one) => ({ label: one.name || "(AMQP default)", hint: `${one.vhost === "/" ? "" : `${one.vhost} · `}${one.type} exchange`, icon: "exchanges", run: () => go("exchanges", one.vhost, one.name || "amq.default") })),
        look(`vhosts?${query}&columns=name`, (one) => ({ label: one.name, hint: "virtual host", icon: "vhosts", run: () => go("vhosts", one.name) })),
        administrates ? look(`users?${query}&columns=name`, (one) => ({ label: one.name, hint: "user", icon: "users", run: () => go("users", one.name) })) : [],
        nodes.slice(0, FOUND_MAX).map((one) => ({ label: one.name, hint: one.running === false ? "node, does not run" : "node", icon: "nodes", run: () => go("nodes", one.name) })),
      ]);
      if (!controller.signal.aborted) setFound(all.flat());
    }, 120);
    return () => { clearTimeout(timer); controller.abort(); };
  }, [typed]);
  const shown = useMemo(() => {
    const own = commands.map((command) => [fits(command.label + (command.also ? ` ${command.also}` : ""), typed.trim()), command]).filter(([rank]) => rank > 0);
    own.sort((a, b) => b[0] - a[0]);
    const strong = own.filter(([rank]) => rank >= 80).map(([, command]) => command), weak = own.filter(([rank]) => rank < 80).map(([, command]) => command);
    return typed.trim() ? [...strong, ...found, ...(found.length + strong.length < 8 ? weak : [])] : commands;
  }, [typed, found, commands]);
  useEffect(() => setAt(0), [typed]);
  const run = (command) => { close(); command.run(); };
  const onKeyDown = (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 };
    if (steps[event.key]) { event.preventDefault(); setAt((was) => Math.max(0, Math.min(shown.length - 1, was + steps[event.key]))); }
    if (event.key === "Enter" && shown[at]) { event.preventDefault(); run(shown[at]); }
  };
  useEffect(() => list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }), [at, shown]);
  return html`<${Dialog} title="Go to or do" onClose=${close} wide><div class="palette">
    <div class="search big"><${Icon} name="search" /><input autofocus role="combobox" aria-expanded="true" aria-controls="${id}-list" aria-activedescendant=${shown[at] ? `${id}-${at}` : undefined} aria-label="Search pages, queues, exchanges, users and commands"
      placeholder="Search queues, exchanges, pages, commands …" spellcheck=${false} autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} onKeyDown=${onKeyDown} /></div>
    <ul class="palette-list" role="listbox" id="${id}-list" aria-label="Results" ref=${list}>${shown.map((command, index) => html`<li key=${`${command.icon}${command.label}${command.hint ?? ""}`} id="${id}-${index}" role="option" aria-selected=${index === at}
      onPointerMove=${() => setAt(index)} onClick=${() => run(command)}><${Icon} name=${command.icon} /><span class="palette-label">${command.label}</span><span class="faint">${command.hint ?? ""}</span></li>`)}</ul>
    ${shown.length === 0 && html`<p class="empty">Nothing is called “${typed}”.</p>`}
    <p class="palette-keys faint only-wide"><kbd>↑</kbd> <kbd>↓</kbd> choose <kbd>Enter</kbd> go <kbd>Esc</kbd> close</p></div></${Dialog}>`;
}
