// A node leaves its cluster: what that does is said first, whether it can be is asked, and how far it is is shown until it is gone.
//
// Invariant: what cannot be done is refused before any client is closed. Where it stops in the middle, the node is as it was before, or
// in maintenance mode, and the same goes on from there.
import { html, useEffect, useState } from "../lib.js";
import { ask, get, part, refresh } from "../api.js";
import { cluster } from "../cluster.js";
import { go } from "../router.js";
import { list, plural } from "../format.js";
import { Icon } from "../icons.js";
import { Dialog, open, tell } from "../ui.js";

/** How long partitions without a leader, leaders that move and a process that ends are waited for, in milliseconds. */
const LED_WITHIN = 10_000, HANDED_OVER_WITHIN = 60_000, ENDS_WITHIN = 60_000, LOOK_EVERY = 300;
const wait = () => new Promise((resolve) => setTimeout(resolve, LOOK_EVERY));

/** Asks again while the node says that it cannot be done yet. */
async function settled(asks) {
  const until = Date.now() + LED_WITHIN;
  for (;;) {
    try {
      return await asks();
    } catch (failure) {
      if (failure.status !== 503 || Date.now() > until) throw failure;
      await wait();
    }
  }
}

const isOwn = (node) => cluster.get().overview?.node === node;
const isMember = async (node) => (await get("nodes?columns=name&disable_stats=true")).some((one) => one.name === node);

/** It is no member any more, or its own page hears nothing of it. */
async function isGone(node) {
  try {
    return isOwn(node) ? (await get("whoami"), false) : !(await isMember(node));
  } catch (failure) {
    if (failure.status !== 0 && failure.status !== 503) throw failure;
    return isOwn(node);
  }
}

async function untilGone(node, within) {
  const until = Date.now() + within;
  while (!(await isGone(node))) {
    if (Date.now() > until) return false;
    await wait();
  }
  return true;
}

/** Takes it out. `tells` hears which step is under way, and what there is to say of it. */
async function takeOut(node, tells) {
  const url = `leveret/nodes/${part(node)}/leave`, maintenance = `nodes/${part(node)}/maintenance`;
  const { being_drained: wasDrained } = await get(`nodes/${part(node)}?columns=being_drained`);
  await settled(() => get(url));
  tells(0, "");
  await ask("PUT", maintenance);
  try {
    // However long copies take: who looks sees how many are left.
    for (;;) {
      const { waiting } = await ask("POST", `leveret/nodes/${part(node)}/give-away`, {});
      if (waiting.length === 0) break;
      const away = [...new Set(waiting.flatMap((one) => one.late ?? []).filter((one) => ["unreachable", "damaged"].includes(one.state)).map((one) => one.node))];
      tells(1, `${plural(waiting.length, "partition")} to copy to another node${away.length > 0 ? `; waits for ${list(away)}: bring ${away.length === 1 ? "it" : "them"} back, or have ${away.length === 1 ? "it" : "them"} forgotten` : ""}`);
      await wait();
    }
    const until = Date.now() + HANDED_OVER_WITHIN;
    for (;;) {
      const { partitions } = await get("leveret/cluster?columns=partitions");
      const left = partitions.filter((one) => one.leader === node && one.of !== 1).length;
      if (left === 0) break;
      if (Date.now() > until) throw new Error(`${node} still leads ${plural(left, "partition")}: no other node has all that is in them.`);
      tells(1, `${plural(left, "partition")} to go`);
      await wait();
    }
    tells(2, "");
    try {
      await settled(() => ask("POST", url));
    } catch (failure) {
      // It may have ended before its answer was here, and be no member when it was asked again.
      if (![0, 404, 503].includes(failure.status) || !(await untilGone(node, LED_WITHIN))) throw failure;
    }
  } catch (failure) {
    if (!wasDrained) await ask("DELETE", maintenance).catch(() => {});
    throw failure;
  }
  tells(3, "");
  if (!(await untilGone(node, ENDS_WITHIN))) throw new Error(`The cluster has forgotten ${node}, and its process has not ended. Stop it.`);
}

const STEPS = [
  ["Its clients are disconnected", "those that know another node go there."],
  ["What it leads is handed over", "to nodes that have all of it."],
  ["The others forget it", "no majority counts it, and other nodes take the places of its copies."],
  ["Its process ends", "its data folder is of no more use. To come back it joins anew, with an empty one."],
];

function Leave({ node, others, close }) {
  const [typed, setTyped] = useState("");
  const [objection, setObjection] = useState();
  const [mayLeave, setMayLeave] = useState(false);
  // Before the first step it is -1, after the last one 4.
  const [[at, note], setAt] = useState([-1, ""]);
  const [failure, setFailure] = useState();
  const [isBusy, setBusy] = useState(false);
  const isDone = at === STEPS.length;
  useEffect(() => { settled(() => get(`leveret/nodes/${part(node)}/leave`)).then(() => setMayLeave(true), (refused) => setObjection(refused.message)); }, []);
  const begin = async (event) => {
    event.preventDefault();
    setBusy(true);
    setFailure(undefined);
    const own = isOwn(node);
    try {
      await takeOut(node, (step, said) => setAt([step, said]));
      setAt([STEPS.length, ""]);
      if (!own) {
        tell(`${node} has left the cluster.`);
        refresh();
        go("nodes");
        close();
      }
    } catch (error) {
      setFailure(error.message);
      setAt([-1, ""]);
      refresh();
    }
    setBusy(false);
  };
  const mark = (step) => (step < at ? html`<${Icon} name="check" />` : step === at ? html`<${Icon} name="waiting" />` : html`<i class="dot" />`);
  return html`<${Dialog} title=${isDone ? `${node} has left` : `Have ${node} leave the cluster?`} onClose=${isBusy ? () => {} : close}><form onSubmit=${begin}>
    <div role="status"><ol class="marked">${STEPS.map(([what, more], step) => html`<li key=${what} class=${step < at ? "is-done" : step === at ? "is-now" : ""}>${mark(step)}<span><b>${what}</b>${step === at && note ? html` <span class="faint">(${note})</span>` : ""}: ${more}</span></li>`)}</ol></div>
    ${isDone ? html`<p>This page came from that node, and nothing answers here any more. Open the page of ${list(others)}.</p>`
      : html`<div class="prose"><p>No message is lost: it is refused where the others could not do without this node.${isOwn(node) ? html` <b>This page is that node's, and ends with it.</b>` : ""}</p></div>
    ${objection && html`<p class="error" role="alert">${objection}</p>`}${failure && html`<p class="error" role="alert">${failure}</p>`}
    ${!objection && !isBusy && html`<label class="field"><span>Type <b class="mono">${node}</b> to go on</span><input class="mono" autocomplete="off" spellcheck=${false} autofocus value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>`}
    ${isBusy && html`<p class="faint">Keep this page open until it is done.</p>`}
    <footer><button type="button" disabled=${isBusy} onClick=${close}>${objection ? "Close" : "Cancel"}</button>${!objection && html`<button class="danger" disabled=${isBusy || !mayLeave || typed !== node}>${isBusy ? "Working …" : "Leave the cluster"}</button>`}</footer>`}
  </form></${Dialog}>`;
}

/** `others` are the names of the nodes that stay. */
export const showLeave = (node, others) => open((close) => html`<${Leave} node=${node} others=${others} close=${close} />`);
