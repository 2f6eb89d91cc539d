// How long each stage of a message takes, as percentiles over the last minute; shown where the
// broker measures it.
import { html } from "../lib.js";
import { usePoll, useRights } from "../api.js";
import { micros } from "../format.js";
import { Card } from "../ui.js";

const WORDS = { route: "routing", queue: "waiting for the queue's turn", write: "writing to the log", sync: "syncing to disk", replicate: "copies on other nodes", confirm: "publish to confirm, in all", deliver: "delivering" };

export function Latencies() {
  const can = useRights();
  const { data } = usePoll(can.monitors ? "leveret/latencies" : null, { every: 10 });
  const stages = data?.stages ?? (Array.isArray(data) ? data : undefined);
  if (!stages?.length) return null;
  const most = Math.max(1, ...stages.map((stage) => stage.p99_us ?? 0));
  return html`<${Card} title="How long a message takes" aside=${html`<span class="faint">last minute</span>`}><table class="latencies"><thead><tr><th scope="col">Stage</th><th scope="col" class="number">half within</th><th scope="col" class="number">99 % within</th><th scope="col" class="number only-wide">99.9 % within</th><th class="only-wide" aria-hidden="true"></th></tr></thead>
    <tbody>${stages.map((stage) => html`<tr key=${stage.name}><th scope="row">${WORDS[stage.name] ?? stage.name}</th><td class="number">${micros(stage.p50_us)}</td><td class="number"><b>${micros(stage.p99_us)}</b></td><td class="number only-wide">${micros(stage.p999_us)}</td>
      <td class="only-wide bar-cell" aria-hidden="true"><i class="bar" style=${{ width: `${(100 * (stage.p99_us ?? 0)) / most}%` }} /><i class="bar half" style=${{ width: `${(100 * (stage.p50_us ?? 0)) / most}%` }} /></td></tr>`)}</tbody></table></${Card}>`;
}
