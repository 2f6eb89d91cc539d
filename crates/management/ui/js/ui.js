// The small parts that every page is made of.
import { html, render, store, useEffect, useId, useRef, useState, useStore } from "./lib.js";
import { count, percent, plain, NONE } from "./format.js";
import { Icon } from "./icons.js";

/** What was done or not done, told at the edge for a while and to screen readers at once. */
const toasts = store([]);
let toastNumber = 0;
export function tell(text, kind = "good") {
  const own = { number: (toastNumber += 1), text, kind };
  toasts.set([...toasts.get(), own].slice(-4));
  setTimeout(() => dismiss(own), kind === "bad" ? 12000 : 5000);
}
const dismiss = (own) => toasts.set(toasts.get().filter((one) => one !== own));

export function Toasts() {
  const all = useStore(toasts);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${all.map((one) => html`<div key=${one.number} class="toast ${one.kind}">
      <${Icon} name=${one.kind === "bad" ? "alert" : "check"} /><span>${one.text}</span>
      <button type="button" class="plain" aria-label="Dismiss" onClick=${() => dismiss(one)}><${Icon} name="close" size=${14} /></button>
    </div>`)}
  </div>`;
}

/** Does something, and tells how it went. What comes back says whether it was done. */
export async function attempt(doing, done) {
  try {
    const value = await doing();
    if (done) tell(typeof done === "function" ? done(value) : done);
    return true;
  } catch (failure) {
    if (failure.name !== "AbortError") tell(failure.message, "bad");
    return false;
  }
}

/** A window in front of the page. Escape, a click beside it and another address close it. */
export function Dialog({ title, onClose, children, wide }) {
  const ref = useRef();
  const id = useId();
  const leave = useRef();
  leave.current = onClose;
  useEffect(() => {
    const box = ref.current;
    const before = document.activeElement;
    const gone = () => leave.current();
    addEventListener("hashchange", gone);
    box.showModal();
    (box.querySelector("[autofocus]") ?? box.querySelector("input:not([type=hidden]),textarea,select"))?.focus();
    return () => {
      removeEventListener("hashchange", gone);
      if (box.open) box.close();
      if (before?.isConnected) before.focus?.();
    };
  }, []);
  return html`<dialog ref=${ref} class=${wide ? "wide" : ""} aria-labelledby=${id}
    onCancel=${(event) => { event.preventDefault(); onClose(); }}
    onMouseDown=${(event) => { if (event.target === ref.current) onClose(); }}>
    <div class="dialog-body">
      <header><h2 id=${id}>${title}</h2><button type="button" class="plain" aria-label="Close" onClick=${onClose}><${Icon} name="close" /></button></header>
      ${children}
    </div>
  </dialog>`;
}

/** A window that is not part of a page: it is there until `close` is called. */
export function open(draw) {
  const host = document.createElement("div");
  document.body.append(host);
  const close = () => { render(null, host); host.remove(); };
  render(draw(close), host);
  return close;
}

/**
 * Asks before something is lost. `typed` is a word that has to be typed first; `doing` does it
 * while the window is still there and tells what went wrong in it.
 */
export function confirm({ title, body, verb, typed, doing, isSafe = false }) {
  open((close) => html`<${Confirm} ...${{ title, body, verb, typed, doing, isSafe, close }} />`);
}

function Confirm({ title, body, verb, typed, doing, isSafe, close }) {
  const [text, setText] = useState("");
  const [failure, setFailure] = useState();
  const [isBusy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await doing();
      close();
    } catch (error) {
      setFailure(error.message);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} onClose=${close}>
    <form onSubmit=${submit}>
      <div class="prose">${body}</div>
      ${typed && html`<label class="field"><span>Type <b class="mono">${typed}</b> to go on</span>
        <input class="mono" autocomplete="off" spellcheck=${false} autofocus value=${text} onInput=${(event) => setText(event.target.value)} /></label>`}
      ${failure && html`<p class="error" role="alert">${failure}</p>`}
      <footer><button type="button" onClick=${close} autofocus=${!typed}>Cancel</button>
        <button class=${isSafe ? "primary" : "danger"} disabled=${isBusy || (typed && text !== typed)}>${isBusy ? "Working …" : verb}</button></footer>
    </form>
  </${Dialog}>`;
}

/** A window with a form. `submit` gets what was filled in. */
export function ask_for({ title, fields, verb, submit, wide, note }) {
  open((close) => html`<${FormDialog} ...${{ title, fields, verb, submit, wide, note, close }} />`);
}

function FormDialog({ title, fields, verb, submit, wide, note, close }) {
  return html`<${Dialog} title=${title} onClose=${close} wide=${wide}>
    ${note && html`<p class="faint">${note}</p>`}
    <${Form} fields=${fields} verb=${verb} onCancel=${close} submit=${async (values) => { await submit(values); close(); }} />
  </${Dialog}>`;
}

/**
 * A form out of descriptions: { name, label, kind, value, follows, options, help, isNeeded, when }.
 * Kinds: text, password, number, area, choice, check, table (names and values), names (a list).
 * What `follows` says of the other values is a field's own until somebody fills it in.
 */
export function Form({ fields, verb, submit, onCancel, isInline }) {
  const initial = () => Object.fromEntries(fields.filter((field) => !field.follows).map((field) => [field.name, field.value ?? blank(field)]));
  const [said, setValues] = useState(initial);
  const values = { ...Object.fromEntries(fields.filter((field) => field.follows).map((field) => [field.name, field.follows(said)])), ...said };
  const [failure, setFailure] = useState();
  const [isBusy, setBusy] = useState(false);
  const set = (name, value) => setValues((was) => ({ ...was, [name]: value }));
  const onSubmit = async (event) => {
    event.preventDefault();
    setFailure(undefined);
    setBusy(true);
    try {
      await submit(values, () => setValues(initial()));
    } catch (error) {
      setFailure(error.message);
    }
    setBusy(false);
  };
  const shown = fields.filter((field) => !field.when || field.when(values));
  return html`<form class=${isInline ? "inline-form" : ""} onSubmit=${onSubmit}>
    <div class="fields">${shown.map((field) => html`<${Field} key=${field.name} field=${field} value=${values[field.name]} onChange=${(value) => set(field.name, value)} />`)}</div>
    ${failure && html`<p class="error" role="alert">${failure}</p>`}
    <footer>${onCancel && html`<button type="button" onClick=${onCancel}>Cancel</button>`}
      <button class="primary" disabled=${isBusy}>${isBusy ? "Working …" : verb}</button></footer>
  </form>`;
}

const blank = (field) => ({ check: false, table: [], choice: field.options?.[0]?.[0] ?? "" })[field.kind] ?? "";

function Field({ field, value, onChange }) {
  const id = useId();
  const help = field.help && html`<small id="${id}-help">${field.help}</small>`;
  const common = { id, "aria-describedby": field.help ? `${id}-help` : undefined, required: field.isNeeded, autocomplete: "off" };
  const typed = (event) => onChange(event.target.value);
  switch (field.kind) {
    case "check":
      return html`<div class="field check"><input type="checkbox" ...${common} required=${false} checked=${value} onChange=${(event) => onChange(event.target.checked)} /><label for=${id}>${field.label}</label>${help}</div>`;
    case "choice":
      return html`<div class="field"><label for=${id}>${field.label}</label><select ...${common} value=${value} onChange=${typed}>
        ${field.options.map(([word, label]) => html`<option value=${word} selected=${word === value}>${label ?? word}</option>`)}</select>${help}</div>`;
    case "area":
      return html`<div class="field broad"><label for=${id}>${field.label}</label><textarea ...${common} rows=${field.rows ?? 4} spellcheck=${false} value=${value} onInput=${typed} />${help}</div>`;
    case "table":
      return html`<${Pairs} id=${id} field=${field} value=${value} onChange=${onChange} help=${help} />`;
    default:
      return html`<div class="field"><label for=${id}>${field.label}${field.isNeeded ? html`<span class="needed" aria-hidden="true"> *</span>` : ""}</label>
        <input ...${common} autocomplete=${field.kind === "password" ? "new-password" : "off"} type=${field.kind ?? "text"} min=${field.min} max=${field.max} step=${field.kind === "number" ? "any" : undefined}
        list=${field.suggest ? `${id}-list` : undefined} placeholder=${field.placeholder} spellcheck=${false} value=${value} onInput=${typed} />
        ${field.suggest && html`<datalist id="${id}-list">${field.suggest.map((word) => html`<option value=${word} />`)}</datalist>`}${help}</div>`;
  }
}

/** Names and values, as arguments and headers have them; what looks like a number is one. */
function Pairs({ id, field, value, onChange, help }) {
  const rows = [...value, ["", ""]];
  const set = (at, pair) => onChange(rows.map((row, index) => (index === at ? pair : row)).filter(([name, text]) => name || text));
  return html`<fieldset class="field broad pairs"><legend>${field.label}</legend>
    ${rows.map(([name, text], at) => html`<div class="pair" key=${at}>
      <input aria-label="Name" placeholder="name" list=${field.suggest ? `${id}-names` : undefined} spellcheck=${false} value=${name} onInput=${(event) => set(at, [event.target.value, text])} />
      <input aria-label="Value" placeholder="value" spellcheck=${false} value=${text} onInput=${(event) => set(at, [name, event.target.value])} /></div>`)}
    ${field.suggest && html`<datalist id="${id}-names">${field.suggest.map((word) => html`<option value=${word} />`)}</datalist>`}
    ${help}</fieldset>`;
}

/** What was typed as the values of a table: numbers, truths and JSON are taken as such. */
export function table_of(pairs) {
  return Object.fromEntries(pairs.filter(([name]) => name).map(([name, text]) => [name, value_of(text)]));
}
function value_of(text) {
  if (/^-?\d+(\.\d+)?$/.test(text) && Number.isSafeInteger(Math.trunc(Number(text)))) return Number(text);
  if (/^(true|false)$|^[[{"]/.test(text)) {
    try {
      return JSON.parse(text);
    } catch { /* It is a text then. */ }
  }
  return text;
}
export const pairs_of = (table) => Object.entries(table ?? {}).map(([name, value]) => [name, plain(value)]);

/** A card with a heading. */
export const Card = ({ title, aside, children, className = "" }) => html`<section class="card ${className}">
  ${(title || aside) && html`<header><h2>${title}</h2>${aside}</header>`}${children}</section>`;

/** What there is to see where there is nothing: what it means, and what to do next. */
export const Empty = ({ title, children }) => html`<div class="empty"><p class="empty-title">${title}</p>${children && html`<p>${children}</p>`}</div>`;

/** What went wrong, over what is still shown. */
export const Wrong = ({ failure, onAgain }) => failure && html`<div class="banner bad" role="alert"><${Icon} name="alert" /><div>${failure.message}</div>
  ${onAgain && html`<button type="button" onClick=${onAgain}>Try again</button>`}</div>`;

export const Badge = ({ kind = "", title, children }) => html`<span class="badge ${kind}" title=${title}>${children}</span>`;

/** A part of a whole as a bar with its words. */
export function Meter({ label, used, of, words, limitWords }) {
  const share = percent(used, of);
  const kind = share === undefined ? "" : share >= 90 ? "bad" : share >= 70 ? "warn" : "";
  return html`<div class="meter ${kind}"><div class="meter-words"><span>${label}</span><span><b>${words ?? count(used)}</b>${limitWords ? html` <span class="faint">${limitWords}</span>` : ""}</span></div>
    <div class="meter-bar" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(share ?? 0)}><i style=${{ width: `${share ?? 0}%` }} /></div></div>`;
}

/** Names and what they are, in two columns. */
export const Facts = ({ of }) => html`<dl class="facts">${of.filter((fact) => fact && ![undefined, null, false, ""].includes(fact[1])).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

const isTable = (value) => typeof value === "object" && value !== null && !Array.isArray(value) && Object.keys(value).length > 0;
const holdsTables = (value) => isTable(value) || (Array.isArray(value) && value.some(holdsTables));

/** A value of AMQP: tables within it are tables again, as x-death is a list of them. */
function Value({ of }) {
  if (isTable(of)) return html`<${Arguments} of=${of} />`;
  if (holdsTables(of)) return html`<ol class="values">${of.map((one, at) => html`<li key=${at}><${Value} of=${one} /></li>`)}</ol>`;
  return of === "" ? html`<span class="faint">(empty)</span>` : html`<b>${plain(of)}</b>`;
}

/** A table of AMQP arguments. */
export const Arguments = ({ of }) => {
  const entries = Object.entries(of ?? {});
  return entries.length === 0 ? html`<span class="faint">none</span>` : html`<ul class="arguments">${entries.map(([name, value]) => html`<li key=${name} class=${holdsTables(value) ? "is-nested" : ""}><span class="faint">${name}</span> <${Value} of=${value} /></li>`)}</ul>`;
};

/** A number, faint where it is nothing. */
export const Figure = ({ n, as = count, strong }) => html`<span class=${n ? (strong ? "figure strong" : "figure") : "figure faint"}>${n === undefined || n === null ? NONE : as(n)}</span>`;

/** A page that came without TLS from another machine has no clipboard. */
const copy = async (text) => {
  if (!navigator.clipboard) throw new Error("The browser lets only pages that came over TLS copy. Mark the text and copy it yourself.");
  await navigator.clipboard.writeText(text);
};

/** A button that copies a text. */
export const Copy = ({ text, label = "Copy" }) => html`<button type="button" class="plain" title=${label} aria-label=${label} onClick=${() => attempt(() => copy(text), "Copied.")}><${Icon} name="copy" size=${15} /></button>`;

/** Something to type in a shell. */
export const Command = ({ text }) => html`<div class="command"><code>${text}</code><${Copy} text=${text} label="Copy the command" /></div>`;

/** One of a few. */
export function Choice({ label, value, options, onChange }) {
  return html`<div class="choice" role="radiogroup" aria-label=${label}>${options.map(([word, name]) => html`<button type="button" role="radio" aria-checked=${word === value}
    class=${word === value ? "is-chosen" : ""} onClick=${() => onChange(word)}>${name}</button>`)}</div>`;
}

/** A button that opens a small list of things to do. */
export function Menu({ label, icon, children, className = "", title }) {
  const ref = useRef();
  useEffect(() => {
    const away = (event) => { if (ref.current?.open && (event.type === "keydown" ? event.key === "Escape" : !ref.current.contains(event.target))) { ref.current.open = false; if (event.type === "keydown") ref.current.querySelector("summary").focus(); } };
    addEventListener("pointerdown", away);
    addEventListener("keydown", away);
    return () => { removeEventListener("pointerdown", away); removeEventListener("keydown", away); };
  }, []);
  return html`<details class="menu ${className}" ref=${ref}><summary class="button" aria-label=${title} title=${title}>${icon && html`<${Icon} name=${icon} />`}${label && html`<span>${label}</span>`}</summary>
    <div class="menu-items" onClick=${(event) => { if (event.target.closest("button,a") && !event.target.closest("[data-stay]")) ref.current.open = false; }}>${children}</div></details>`;
}
