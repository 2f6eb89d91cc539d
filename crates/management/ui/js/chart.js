// Charts over time, drawn by uPlot, and small ones without axes.
//
// What is drawn comes from the API's samples where it has them; where it has none, from what this
// page saw itself since it was opened.
import { html, store, useEffect, useLayoutEffect, useMemo, useRef, useState, useStore } from "./lib.js";
import { cluster } from "./cluster.js";
import { byteRate, bytes, clock, rate, rateOnAxis, short, NONE } from "./format.js";

/** Steps between the marks of an axis: those of bytes are powers of two; what is counted has none below one. */
const POWERS = Array.from({ length: 50 }, (_, at) => 2 ** at);
const steps = (first, last) => Array.from({ length: last - first }, (_, at) => [1, 2, 5].map((digit) => Number(`${digit}e${first + at}`))).flat();
const STEPS = new Map([[bytes, POWERS], [byteRate, POWERS], [short, steps(0, 16)], [rate, steps(-4, 16)]]);

/** Light or dark, whenever it changes: canvases have to be drawn anew. */
export const theme = store(0);
export const themeChanged = () => theme.set(theme.get() + 1);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);

const cssOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * A chart. `times` are seconds since 1970, ascending; `series` are { label, hue, points }, points
 * as many as times. `words` turns a value into a text.
 */
export function Chart({ title, times, series, words, height = 190, isStacked, aside }) {
  const host = useRef();
  const plot = useRef();
  const shades = useStore(theme);
  const [at, setAt] = useState(null);
  const [hidden, setHidden] = useState(() => new Set());
  const labels = series.map((one) => one.label).join("|");
  const data = [times, ...series.map((one) => one.points)];
  const latest = useRef();
  latest.current = { data, words };
  useLayoutEffect(() => {
    const box = host.current;
    const faint = cssOf("--faint"), line = cssOf("--line");
    const font = "11px system-ui, sans-serif";
    const shared = { stroke: faint, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
    const options = {
      width: Math.max(100, box.clientWidth), height, legend: { show: false }, padding: [8, 24, 0, 0],
      cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        { ...shared, grid: { show: false }, size: 26, space: 70, values: (_, ticks, __, ___, step) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString("en-GB", step < 60 ? { hour: "2-digit", minute: "2-digit", second: "2-digit" } : { hour: "2-digit", minute: "2-digit" })) },
        { ...shared, size: 56, space: 34, incrs: STEPS.get(words), values: (_, ticks, __, ___, step) => ticks.map((tick) => (words === rate ? rateOnAxis(tick, step) : latest.current.words(tick))) },
      ],
      series: [{}, ...series.map((one, index) => {
        const stroke = cssOf(one.hue);
        return { label: one.label, stroke, width: 1.8, points: { show: false }, spanGaps: false, show: !hidden.has(one.label),
          fill: index === 0 || isStacked ? (u) => { const g = u.ctx.createLinearGradient(0, 0, 0, u.bbox.height); g.addColorStop(0, `color-mix(in srgb, ${stroke} 22%, transparent)`); g.addColorStop(1, `color-mix(in srgb, ${stroke} 2%, transparent)`); return g; } : undefined };
      })],
      hooks: { setCursor: [(u) => setAt(u.cursor.idx ?? null)] },
    };
    const own = new globalThis.uPlot(options, latest.current.data, box);
    plot.current = own;
    const sized = new ResizeObserver(() => { if (box.clientWidth > 0) own.setSize({ width: box.clientWidth, height }); });
    sized.observe(box);
    return () => { sized.disconnect(); own.destroy(); plot.current = undefined; };
  }, [labels, shades, height, hidden]);
  useEffect(() => { plot.current?.setData(data); });
  const place = at !== null && at < times.length ? at : times.length - 1;
  const flip = (label) => setHidden((was) => { const next = new Set(was); if (!next.delete(label)) next.add(label); return next; });
  const told = series.map((one) => `${one.label} ${one.points[times.length - 1] === undefined ? "not known" : words(one.points[times.length - 1])}`).join(", ");
  return html`<figure class="chart card"><figcaption><h2>${title}</h2>${aside}<span class="chart-time faint">${at !== null && times[place] ? clock(times[place] * 1000) : ""}</span></figcaption>
    <div class="legend">${series.map((one) => html`<button type="button" key=${one.label} aria-pressed=${!hidden.has(one.label)} class=${hidden.has(one.label) ? "is-off" : ""} title="Show or hide" onClick=${() => flip(one.label)}>
      <i style=${{ background: `var(${one.hue})` }} />${one.label} <b>${place >= 0 && one.points[place] !== undefined && one.points[place] !== null ? words(one.points[place]) : NONE}</b></button>`)}</div>
    <div class="plot" ref=${host} role="img" aria-label="${title}: ${told}" style=${{ height: `${height}px` }}>
      ${times.length < 2 && html`<p class="plot-empty faint">The line begins with the next figures, in a few seconds.</p>`}</div></figure>`;
}

/** A line without axes. */
export function Spark({ points, hue, label }) {
  const known = points.filter((point) => typeof point === "number");
  if (known.length < 2) return html`<svg class="spark" viewBox="0 0 100 28" preserveAspectRatio="none" aria-hidden="true" />`;
  const high = Math.max(...known, 1e-9);
  const spots = points.map((point, at) => (typeof point === "number" ? `${((100 * at) / (points.length - 1)).toFixed(1)},${(26 - (24 * point) / high).toFixed(1)}` : null)).filter(Boolean);
  const [first, last] = [spots[0].split(",")[0], spots.at(-1).split(",")[0]];
  return html`<svg class="spark" viewBox="0 0 100 28" preserveAspectRatio="none" role="img" aria-label=${label}>
    <polygon points="${first},28 ${spots.join(" ")} ${last},28" style=${{ fill: `var(${hue})`, opacity: 0.13 }} />
    <polyline points=${spots.join(" ")} style=${{ stroke: `var(${hue})` }} /></svg>`;
}

/** How far back is looked, and how far apart samples are: [seconds, seconds, words]. */
export const SPANS = [[60, 5, "1 min"], [600, 5, "10 min"], [3600, 60, "1 h"], [28800, 600, "8 h"], [86400, 1800, "1 day"]];

/** What of the API's query asks for samples of a span. */
export const samplesQuery = ([age, step]) => ["lengths", "msg_rates", "data_rates", "node_stats"].map((kind) => `${kind}_age=${age}&${kind}_incr=${step}`).join("&");

/** For how long anybody has counted what this is about, in ms: the node itself, or the one that has run longest. */
function counted(stats) {
  const nodes = typeof stats?.uptime === "number" ? [stats] : (cluster.get().nodes ?? []).filter((node) => node.running !== false);
  const times = nodes.map((node) => node.uptime).filter((ms) => typeof ms === "number");
  return times.length > 0 ? Math.max(...times) : Infinity;
}

/** Samples of one field, oldest first, as [ms, value]. The API fills the time before the start of a node: that is no history. */
function samples(stats, field) {
  const found = stats?.[`${field}_details`]?.samples;
  if (!Array.isArray(found)) return undefined;
  const since = Math.max(...found.map((one) => one.timestamp)) - counted(stats);
  const known = found.filter((one) => one.timestamp >= since).sort((a, b) => a.timestamp - b.timestamp);
  return known.length > 1 ? known.map((one) => [one.timestamp, one.sample]) : undefined;
}

/**
 * What fields did over time: { times, of: { field: points } }. Counters become rates between two
 * samples, gauges stay what they are.
 */
export function timeline(stats, fields, isCounter) {
  const found = fields.map((field) => [field, samples(stats, field)]).filter(([, list]) => list);
  if (found.length === 0) return undefined;
  const longest = found.reduce((a, b) => (b[1].length > a[1].length ? b : a))[1];
  const stamps = isCounter ? longest.slice(1) : longest;
  const of = {};
  for (const [field, list] of found) {
    const known = new Map(list.map(([stamp, value]) => [stamp, value]));
    of[field] = stamps.map(([stamp], index) => {
      if (!isCounter) return known.get(stamp) ?? null;
      const before = longest[index][0];
      const [a, b] = [known.get(before), known.get(stamp)];
      return a === undefined || b === undefined ? null : Math.max(0, (b - a) / ((stamp - before) / 1000));
    });
  }
  return { times: stamps.map(([stamp]) => stamp / 1000), of };
}

const SEEN_MAX = 720;
const seen = new Map();

/** Keeps what this page sees of a thing, for as long as it is open. */
function keep(id, at, stats, fields) {
  let list = seen.get(id);
  if (!list) {
    if (seen.size > 64) seen.delete(seen.keys().next().value);
    seen.set(id, (list = []));
  }
  if (at && at !== list.at(-1)?.at) {
    list.push({ at, values: fields.map((field) => stats?.[field]) });
    if (list.length > SEEN_MAX) list.shift();
  }
  return list;
}

/** `timeline` where the API has samples, else out of what was seen at each look. */
export function useTimeline(id, stats, fields, isCounter, at, age) {
  return useMemo(() => {
    const list = keep(`${id} ${fields}`, at, stats, fields);
    const told = timeline(stats, fields, isCounter);
    if (told) return told;
    const recent = list.filter((one) => one.at >= at - age * 1000);
    const rows = isCounter ? recent.slice(1) : recent;
    const of = {};
    fields.forEach((field, place) => {
      if (!recent.some((one) => one.values[place] !== undefined)) return;
      of[field] = rows.map((row, index) => {
        const value = row.values[place];
        if (value === undefined) return null;
        if (!isCounter) return value;
        const before = recent[index];
        return before.values[place] === undefined ? null : Math.max(0, (value - before.values[place]) / ((row.at - before.at) / 1000));
      });
    });
    return { times: rows.map((row) => row.at / 1000), of, isSeen: true };
  }, [id, at, age]);
}

/** The rate of a counter now: the API's, else that of the last two looks. */
export function rateNow(stats, field, line) {
  const told = stats?.[`${field}_details`]?.rate;
  if (typeof told === "number") return told;
  return line?.of[field]?.at(-1) ?? undefined;
}
