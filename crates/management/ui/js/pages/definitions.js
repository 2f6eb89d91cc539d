// Definitions: everything that is declared as one JSON file, out and in; RabbitMQ's own files too.
import { html, store, useState, useStore } from "../lib.js";
import { ask, get, me, part, refresh, useRights } from "../api.js";
import { bytes, count, singular } from "../format.js";
import { Icon } from "../icons.js";
import { Card, Dialog, Empty, Wrong, confirm, open, tell } from "../ui.js";
import { useVhosts } from "./queues.js";

const PARTS = [["vhosts", "virtual hosts"], ["users", "users"], ["permissions", "rights"], ["topic_permissions", "rights by routing key", "right by routing key"], ["queues", "queues"], ["exchanges", "exchanges"], ["bindings", "bindings"], ["policies", "policies"], ["parameters", "parameters"], ["global_parameters", "global parameters"]];

const Counts = ({ of }) => html`<ul class="arguments">${PARTS.filter(([key]) => of[key]?.length).map(([key, many, one]) => html`<li key=${key}><b>${count(of[key].length)}</b> <span class="faint">${of[key].length === 1 ? one ?? singular(many) : many}</span></li>`)}</ul>`;

/** What the last import came to and who asked for it, until he closes it: also when it ended his session. */
const report = store(undefined);
const close = () => report.set(undefined);

const Report = ({ of }) => html`<p><b class="good">Imported.</b></p>${[["left_out", "Left out, as this broker has nothing like it:"], ["different", "There already, and different; it stays as it was:"]].map(([key, words]) => of[key]?.length > 0 && html`<p>${words}</p><ul class="plain-list">${of[key].map((line) => html`<li>${typeof line === "string" ? line : JSON.stringify(line)}</li>`)}</ul>`)}`;

/** Whether a file has another password for who imports it: his session ends with that. */
async function replacesOwn({ users }) {
  const { name } = me.get();
  const own = Array.isArray(users) && users.findLast((user) => user?.name === name);
  if (!own) return false;
  const now = await get(`users/${part(name)}`).catch(() => undefined);
  return own.password !== undefined || own.password_hash !== now?.password_hash;
}

export function Definitions() {
  const can = useRights();
  const vhosts = useVhosts();
  const [vhost, setVhost] = useState("");
  const [failure, setFailure] = useState();
  const [file, setFile] = useState();
  const [into, setInto] = useState("");
  const last = useStore(report);
  const user = useStore(me);
  const told = last && last.by === user?.name ? last.told : undefined;
  const [isOver, setOver] = useState(false);
  if (!can.administrates) return html`<h1>Definitions</h1><${Empty} title="Definitions hold password hashes, so only administrators see them." />`;
  const save = async () => {
    setFailure(undefined);
    try {
      const all = await get(vhost ? `definitions/${part(vhost)}` : "definitions");
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([JSON.stringify(all, null, 2)], { type: "application/json" }));
      link.download = `leveret-${vhost ? `${vhost.replace(/[^\w.-]+/g, "_")}-` : ""}definitions-${new Date().toISOString().slice(0, 10)}.json`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    } catch (error) { setFailure(error); }
  };
  const take = async (chosen) => {
    setFailure(undefined);
    if (!chosen) return;
    try {
      const text = await chosen.text();
      const value = JSON.parse(text);
      if (!PARTS.some(([key]) => Array.isArray(value[key]))) throw new Error();
      setFile({ name: chosen.name, size: chosen.size, text, value });
    } catch {
      setFile(undefined);
      setFailure(new Error(`${chosen.name} is no file of definitions: it should be JSON as “Export” here, or RabbitMQ, writes it.`));
    }
  };
  const load = async () => {
    const isOwn = !into && (await replacesOwn(file.value));
    confirm({
      title: "Import these definitions?", verb: "Import", isSafe: true,
      body: html`<p>From ${file.name}:</p><${Counts} of=${file.value} /><p>What is there already and the same stays; queues and messages are never deleted. <b>Users and policies of the same names are replaced.</b>${into ? html` Everything goes into <b>${into}</b>.` : ""}</p>${isOwn && html`<p class="warn"><b>Your own user is replaced: you will have to log in again</b>, with the password that the file has for ${me.get().name}.</p>`}`,
      doing: async () => {
        const by = me.get().name;
        const answer = (await ask("POST", into ? `definitions/${part(into)}` : "definitions", file.text)) ?? {};
        report.set({ by, told: answer });
        setFile(undefined);
        tell("The definitions are in force.");
        // The login comes over the page, and this over the login.
        if (isOwn) open((shut) => html`<${Dialog} title="The import is done" wide onClose=${shut}><div class="prose"><${Report} of=${answer} /><p>Your own user was replaced. <b>Log in again</b>; this is on the page of definitions still.</p></div><footer class="dialog-end"><button type="button" class="primary" autofocus onClick=${shut}>Close</button></footer></${Dialog}>`);
        refresh();
      },
    });
  };
  return html`<div class="page-head"><h1>Definitions</h1></div><p class="faint">Everything that is declared, without messages: for copies, for moving, and for another cluster. RabbitMQ's files of 3.x and 4.x are taken too.</p>
    <${Wrong} failure=${failure} />
    <div class="halves"><${Card} title="Export"><label class="field"><span>Of</span><select value=${vhost} onChange=${(event) => setVhost(event.target.value)}><option value="">the whole broker</option>${vhosts.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
      <p class="faint">Passwords are in it as hashes only. Keep it like a secret all the same.</p><button type="button" class="primary" onClick=${save}><${Icon} name="down" />Export</button></${Card}>
    <${Card} title="Import"><label class="drop ${isOver ? "is-over" : ""}" onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${(event) => { event.preventDefault(); setOver(false); take(event.dataTransfer.files[0]); }}>
        <${Icon} name="up" size=${22} /><span>${file ? html`<b>${file.name}</b>, ${bytes(file.size)}` : "Choose a file, or drop it here"}</span><input type="file" accept=".json,application/json" onChange=${(event) => take(event.target.files[0])} /></label>
      ${file && html`<${Counts} of=${file.value} /><label class="field"><span>Into</span><select value=${into} onChange=${(event) => setInto(event.target.value)}><option value="">the virtual hosts that it names</option>${vhosts.map((name) => html`<option value=${name}>${name}</option>`)}</select></label><button type="button" class="primary" onClick=${load}><${Icon} name="up" />Import …</button>`}
      ${told && html`<div role="status"><${Report} of=${told} /><p><button type="button" onClick=${close}>Close</button></p></div>`}</${Card}></div>`;
}
