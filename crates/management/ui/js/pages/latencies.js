// How long each stage of a message's road takes, as percentiles over the last minute.
import { html, useStore } from "../lib.js";
import { cluster } from "../cluster.js";
import { useOffer, usePoll, useRights } from "../api.js";
import { count, micros } from "../format.js";
import { Card } from "../ui.js";

/** The stages in the order of the road. */
const STAGES = [["route", "Finding its queues"], ["queue", "Waiting for the queue's turn"], ["write", "Writing to the log"], ["sync", "Syncing to disk"], ["replicate", "Copies on other nodes"], ["confirm", "Publish to confirm, in all"], ["deliver", "Delivering"]];

export function Latencies() {
  const can = useRights();
  const { nodes } = useStore(cluster);
  const isThere = useOffer("leveret/latencies");
  const { data } = usePoll(can.monitors && isThere ? "leveret/latencies" : null, { every: 5 });
  // Of a node that is alone no copies are waited for.
  const known = STAGES.filter(([name]) => data?.stages?.[name] && (name !== "replicate" || nodes?.length > 1 || data.stages[name].count > 0)).map(([name, words]) => ({ name, words, ...data.stages[name] }));
  if (known.length === 0) return null;
  // What nothing went through lately is left out, unless that is so of all of it.
  const measured = known.some((stage) => stage.count > 0) ? known.filter((stage) => stage.count > 0) : known;
  const most = Math.max(1, ...known.map((stage) => stage.p99_us ?? 0));
  const cell = (value, strong) => (value === undefined || value === null ? html`<span class="faint">–</span>` : strong ? html`<b>${micros(value)}</b>` : micros(value));
  return html`<${Card} title="How long a message takes" aside=${html`<span class="faint">last minute${nodes?.length > 1 ? `, as ${data.node} measured it` : ""}</span>`}><div class="table-box"><table class="latencies"><thead><tr><th scope="col">Stage</th><th scope="col" class="number">half within</th><th scope="col" class="number">99 % within</th><th scope="col" class="number only-wide">99.9 % within</th><th scope="col" class="number only-wide">counted</th><td class="only-wide"></td></tr></thead>
    <tbody>${measured.map((stage) => html`<tr key=${stage.name}><th scope="row">${stage.words}</th><td class="number">${cell(stage.count ? stage.p50_us : null)}</td><td class="number">${cell(stage.count ? stage.p99_us : null, true)}</td><td class="number only-wide">${cell(stage.count ? stage.p999_us : null)}</td><td class="number only-wide faint">${count(stage.count)}</td>
      <td class="only-wide bar-cell">${stage.count > 0 && html`<i class="bar" style=${{ width: `${(100 * (stage.p99_us ?? 0)) / most}%` }} /><i class="bar half" style=${{ width: `${(100 * (stage.p50_us ?? 0)) / most}%` }} />`}</td></tr>`)}</tbody></table></div></${Card}>`;
}
