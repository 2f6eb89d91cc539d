// How far back charts look: chosen once for all pages.
import { html, useState, remember, remembered } from "../lib.js";
import { SPANS } from "../chart.js";
import { Choice } from "../ui.js";

/** Chooses how far back is looked; remembered for all pages. */
export function useSpan() {
  const [place, setPlace] = useState(() => Math.min(remembered("span", 1), SPANS.length - 1));
  const choose = (at) => { setPlace(at); remember("span", at); };
  return [SPANS[place], html`<${Choice} label="How far back" value=${place} options=${SPANS.map(([, , words], at) => [at, words])} onChange=${choose} />`];
}
