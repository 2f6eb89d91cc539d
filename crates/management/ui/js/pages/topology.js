// Who publishes where, and where it goes: publishers, exchanges, queues, consumers, from left to
// right. Queues that are fed alike and called alike are one box until it is opened, so that a
// hundred of them stay readable.
//
// Invariant: what is declared the same is drawn at the same place. No rate and no number of messages
// moves a box; only whether anything went through it within some minutes does.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState, useStore } from "../lib.js";
import { get, pace, part, path, usePoll } from "../api.js";
import { href, place } from "../router.js";
import { count, plural, rate, short } from "../format.js";
import { Card, Empty, Wrong } from "../ui.js";
import { VhostFilter, useVhosts } from "./queues.js";

/** Above so many queues boxes are made of those that are alike. */
const SINGLE_MAX = 24;
/** So many queues are worth a box. */
const BOX_MIN = 4;
/** So many exchanges are asked who publishes to them. */
const ASKED_MAX = 40;
/** So many things are drawn in one column; the filter finds the others. */
const COLUMN_MAX = 150;
/** What something went through within so many seconds, or twice as many at most, is drawn first. */
const LIVELY_S = 300;

/** Who publishes to which exchange, where the broker counts that. */
function usePublishers(vhost, exchanges) {
  const [flows, setFlows] = useState();
  const seconds = useStore(pace);
  const names = exchanges?.filter((one) => !/^amq\.(rabbitmq|match|headers|fanout|direct|topic)/.test(one.name)).slice(0, ASKED_MAX).map((one) => one.name || "amq.default").join("\n");
  useEffect(() => {
    if (names === undefined) return undefined;
    setFlows((was) => (names ? was : []));
    if (!names) return undefined;
    const controller = new AbortController();
    const look = async () => {
      if (document.visibilityState !== "visible") return;
      const all = await Promise.all(names.split("\n").map(async (name) => {
        try {
          const exchange = await get(`exchanges/${path(vhost, name)}`, { signal: controller.signal });
          return [exchange];
        } catch { return []; }
      }));
      if (!controller.signal.aborted) setFlows(all.flat());
    };
    look();
    const timer = seconds > 0 && setInterval(look, Math.max(10, seconds * 2) * 1000);
    return () => { controller.abort(); clearInterval(timer); };
  }, [vhost, names, seconds]);
  return flows;
}

const KEPT = [{ list: "exchanges", mark: "e", fields: ["publish_in", "publish_out"] }, { list: "queues", mark: "q", fields: ["publish", "deliver_get"] }];

/** The exchanges and queues that something went through lately, once it is known: as the broker has kept it, so that each look says the same. */
function useLively(vhost) {
  const kept = (list, fields) => `${list}/${part(vhost)}?columns=name,${fields.map((field) => `message_stats.${field},message_stats.${field}_details.rate,message_stats.${field}_details.samples.sample`)}&msg_rates_age=${LIVELY_S}&msg_rates_incr=${LIVELY_S}`;
  const all = KEPT.map(({ list, fields }) => usePoll(vhost && kept(list, fields), { every: 30 }));
  return useMemo(() => {
    if (all.some(({ data, failure, isOld }) => isOld || !(data || failure))) return undefined;
    // What was counted since the oldest sample; where none are kept, a rate is all that is known.
    const counts = ({ message_stats: of = {} }, field) => { const { rate: now, samples } = of[`${field}_details`] ?? {}; return samples?.length ? of[field] !== samples.at(-1).sample : now > 0; };
    return new Set(all.flatMap(({ data }, at) => (data ?? []).filter((one) => KEPT[at].fields.some((field) => counts(one, field))).map((one) => `${KEPT[at].mark}:${one.name}`)));
  }, all.flatMap(({ data, failure, isOld }) => [data, failure, isOld]));
}

export function Topology() {
  const vhosts = useVhosts();
  const { query } = useStore(place);
  const vhost = query.vhost ?? (vhosts.includes("/") ? "/" : vhosts[0]);
  const [filter, setFilter] = useState("");
  const [opened, setOpened] = useState(() => new Set());
  const exchanges = usePoll(vhost && `exchanges/${part(vhost)}?columns=name,type,message_stats.publish_in_details.rate`, { every: 15 });
  const bindings = usePoll(vhost && `bindings/${part(vhost)}`, { every: 15 });
  const queues = usePoll(vhost && `queues/${part(vhost)}?columns=name,type,messages,messages_ready,consumers,message_stats.publish_details.rate,message_stats.deliver_get_details.rate,state`);
  const consumers = usePoll(vhost && `consumers/${part(vhost)}`, { every: 15 });
  const connections = usePoll("connections?columns=name,user_provided_name,client_properties.connection_name", { every: 15 });
  const flows = usePublishers(vhost, exchanges.data);
  const lively = useLively(vhost);
  // Nothing is drawn before all of it is there, or it would move.
  const isThere = exchanges.data && bindings.data && queues.data && flows && lively && [consumers, connections].every((one) => one.data || one.failure);
  const graph = useMemo(() => (isThere ? graphOf({ exchanges: exchanges.data, bindings: bindings.data, queues: queues.data, consumers: consumers.data ?? [], connections: connections.data ?? [], flows, lively, filter, opened }) : undefined), [isThere, exchanges.data, bindings.data, queues.data, consumers.data, connections.data, flows, lively, filter, opened]);
  const flip = (id) => setOpened((was) => { const next = new Set(was); if (!next.delete(id)) next.add(id); return next; });
  return html`<div class="page-head"><h1>Topology</h1><div class="actions"><${VhostFilter} vhosts=${vhosts} /><div class="search" role="search"><input type="search" data-main-search aria-label="Show only what has this in its name" placeholder="Filter by name" value=${filter} onInput=${(event) => setFilter(event.target.value)} /></div></div></div>
    <${Wrong} failure=${exchanges.failure ?? bindings.failure ?? queues.failure} />
    ${graph && (graph.isEmpty ? html`<${Card}><${Empty} title=${filter ? `Nothing is called “${filter}”.` : "There is nothing to draw yet."}>${filter ? "" : "Declare an exchange and a queue and bind them; publishers and consumers appear by themselves."}</${Empty}></${Card}>` : html`<${Drawing} graph=${graph} vhost=${vhost} flip=${flip} />`)}
    ${graph && html`<p class="key"><span><i class="edge-key is-flowing" />messages flow now</span><span><i class="edge-key" />bound</span><span class="faint">Point at something, or move to it with Tab, to see only its way.</span>${graph.left > 0 && html`<b>${plural(graph.left, "more thing is", "more things are")} not drawn: filter by name.</b>`}</p>`}`;
}

function graphOf({ exchanges, bindings, queues, consumers, connections, flows, lively, filter, opened }) {
  const word = filter.trim().toLowerCase();
  const edges = [];
  const named = new Map(connections.map((one) => [one.name, one.user_provided_name || one.client_properties?.connection_name]));
  const label = (name) => named.get(name) || (name ?? "").replace(/ -> .*/, "");
  const publishers = new Map(), takers = new Map();
  const add = (from, to, flow, isFixed) => edges.push({ from, to, flow, isFixed });
  for (const exchange of flows) {
    for (const one of exchange.incoming ?? []) {
      const name = label(one.channel_details?.connection_name ?? one.channel_details?.name?.replace(/ \(\d+\)$/, ""));
      const own = publishers.get(name) ?? { id: `p:${name}`, kind: "publisher", name, isLively: true, place: one.channel_details?.connection_name, rate: 0 };
      own.rate += one.stats?.publish_details?.rate ?? 0;
      publishers.set(name, own);
      add(own.id, `e:${exchange.name}`, one.stats?.publish_details?.rate ?? 0);
    }
    if (exchange.name === "") for (const one of exchange.outgoing ?? []) if (one.queue) add("e:", `q:${one.queue.name}`, one.stats?.publish_details?.rate ?? 0);
  }
  const outOf = new Map();
  for (const exchange of flows) for (const one of exchange.outgoing ?? []) if (one.queue) outOf.set(`${exchange.name}\n${one.queue.name}`, one.stats?.publish_details?.rate ?? 0);
  const keys = new Map();
  for (const one of bindings) {
    if (one.source === "") continue;
    const to = `${one.destination_type === "queue" ? "q" : "e"}:${one.destination}`, id = `e:${one.source}\n${to}`;
    const own = keys.get(id) ?? { from: `e:${one.source}`, to, keys: [], isFixed: true, flow: outOf.get(`${one.source}\n${one.destination}`) ?? 0 };
    own.keys.push(one.routing_key);
    keys.set(id, own);
  }
  edges.push(...keys.values());
  for (const one of consumers) {
    const name = label(one.channel_details?.connection_name ?? one.channel_details?.name?.replace(/ \(\d+\)$/, ""));
    const own = takers.get(name) ?? { id: `c:${name}`, kind: "consumer", name, isLively: false, place: one.channel_details?.connection_name, queues: 0 };
    own.queues += 1;
    own.isLively ||= lively.has(`q:${one.queue.name}`);
    takers.set(name, own);
    add(`q:${one.queue.name}`, own.id, queues.find((queue) => queue.name === one.queue.name)?.message_stats?.deliver_get_details?.rate ?? 0, true);
  }
  const touched = new Set(edges.flatMap((edge) => [edge.from, edge.to]));
  let nodes = [
    ...publishers.values(),
    ...exchanges.filter((one) => touched.has(`e:${one.name}`)).map((one) => ({ id: `e:${one.name}`, kind: "exchange", name: one.name, isLively: lively.has(`e:${one.name}`), type: one.type, rate: one.message_stats?.publish_in_details?.rate })),
    ...queues.map((one) => ({ id: `q:${one.name}`, kind: "queue", name: one.name, isLively: lively.has(`q:${one.name}`), messages: one.messages ?? 0, consumers: one.consumers, rate: one.message_stats?.publish_details?.rate, state: one.state })),
    ...takers.values(),
  ];
  if (word) {
    // What is called so, and everything on its ways.
    const on = new Set();
    for (const node of nodes) if (node.name.toLowerCase().includes(word)) for (const id of waysOf(node.id, edges)) on.add(id);
    nodes = nodes.filter((node) => on.has(node.id));
  }
  const known = new Set(nodes.map((node) => node.id));
  let links = edges.filter((edge) => known.has(edge.from) && known.has(edge.to));
  const alone = nodes.filter((node) => node.kind === "queue");
  if (alone.length > SINGLE_MAX) [nodes, links] = grouped(nodes, links, opened);
  let left = 0;
  const columns = ["publisher", "exchange", "queue", "consumer"].map((kind) => {
    const all = nodes.filter((node) => node.kind === kind).sort((a, b) => b.isLively - a.isLively || byName(a, b));
    left += Math.max(0, all.length - COLUMN_MAX);
    return all.slice(0, COLUMN_MAX);
  });
  const drawn = new Set(columns.flat().map((node) => node.id));
  links = merged(links.filter((edge) => drawn.has(edge.from) && drawn.has(edge.to)));
  order(columns, links);
  const names = new Map(columns.flat().map((node) => [node.id, node.isGroup ? `${count(node.size)} queues` : node.name]));
  return { columns, links, left, names, isEmpty: columns[1].length === 0 && columns[2].length === 0 };
}

/** Edges between the same two boxes are one. */
function merged(links) {
  const all = new Map();
  for (const edge of links) {
    const id = `${edge.from}\n${edge.to}`, own = all.get(id);
    if (own) { own.flow += edge.flow ?? 0; own.keys = [...(own.keys ?? []), ...(edge.keys ?? [])]; } else all.set(id, { ...edge, flow: edge.flow ?? 0 });
  }
  return [...all.values()];
}

/** Puts queues that are fed by the same exchanges, and several of one name among them, into one box. */
function grouped(nodes, links, opened) {
  const sources = new Map(), targets = new Map();
  for (const { from, to } of links.filter((edge) => edge.isFixed)) {
    if (to.startsWith("q:")) sources.set(to, [...(sources.get(to) ?? []), from]);
    if (from.startsWith("q:")) targets.set(from, [...(targets.get(from) ?? []), to]);
  }
  const alike = new Map();
  const put = (map, id, node) => map.set(id, [...(map.get(id) ?? []), node]);
  for (const node of nodes.filter((one) => one.kind === "queue")) put(alike, [...new Set(sources.get(node.id) ?? [])].sort().join(","), node);
  const groups = new Map();
  for (const [id, members] of alike) {
    // Of those that are fed alike, several of one name are a box of their own.
    const stems = new Map();
    for (const node of members) put(stems, /^[^.\-_:/\d]+/.exec(node.name)?.[0] ?? "", node);
    for (const [stem, own] of stems) put(groups, own.length >= BOX_MIN && stems.size > 1 ? `g:${stem}|${id}` : `g:|${id}`, own);
  }
  for (const [id, parts] of groups) groups.set(id, parts.flat());
  const inGroup = new Map(), boxes = [];
  for (const [id, members] of groups) {
    if (members.length < BOX_MIN) continue;
    const stems = new Set(members.map((one) => /^[^.\-_:/\d]+/.exec(one.name)?.[0] ?? ""));
    const from = [...new Set(sources.get(members[0].id) ?? [])].map((source) => source.slice(2) || "default").join(" + ");
    const box = { id, kind: "queue", isGroup: true, isOpen: opened.has(id), isLively: members.some((one) => one.isLively), name: stems.size === 1 ? `${[...stems][0]}…` : from ? `of ${from}` : "not bound", size: members.length, messages: members.reduce((all, one) => all + one.messages, 0), rate: members.some((one) => one.rate !== undefined) ? members.reduce((all, one) => all + (one.rate ?? 0), 0) : undefined, consumers: members.reduce((all, one) => all + (one.consumers ?? 0), 0) };
    boxes.push(box);
    if (!box.isOpen) for (const one of members) inGroup.set(one.id, id);
  }
  const name = (id) => inGroup.get(id) ?? id;
  return [[...nodes.filter((node) => !inGroup.has(node.id)), ...boxes], links.map((edge) => ({ ...edge, from: name(edge.from), to: name(edge.to) }))];
}

const byName = (a, b) => a.name.localeCompare(b.name) || (a.id < b.id ? -1 : 1);

/**
 * Boxes beside those that they are joined with, so that fewer lines cross: by what is bound and consumed from, and not by what
 * flows now. What is lively comes first.
 */
function order(columns, links) {
  const fixed = links.filter((edge) => edge.isFixed).sort((a, b) => (`${a.from}\n${a.to}` < `${b.from}\n${b.to}` ? -1 : 1));
  const joined = new Set(fixed.flatMap((edge) => [edge.from, edge.to]));
  // What is joined with nothing has no say about the others' places.
  const all = columns.map((column) => column.filter((node) => joined.has(node.id)).sort(byName));
  untangle(all, fixed, [1, 2, 3], [2, 1, 0]);
  columns.forEach((column, at) => column.splice(0, column.length, ...all[at], ...column.filter((node) => !joined.has(node.id)).sort(byName)));
  for (const column of columns.slice(1)) column.sort((a, b) => b.isLively - a.isLively);
  untangle(columns, links, [0]);
}

/** Sorts columns by the middle of what their boxes are joined with, those that `ways` name, each way twice. */
function untangle(columns, links, ...ways) {
  for (let round = 0; round < 2 * ways.length; round += 1) {
    const places = new Map();
    columns.forEach((column) => column.forEach((node, at) => places.set(node.id, at / Math.max(1, column.length))));
    for (const at of ways[round % ways.length]) {
      const middle = (node) => {
        const near = links.flatMap((edge) => (edge.to === node.id ? [edge.from] : edge.from === node.id ? [edge.to] : [])).map((id) => places.get(id)).filter((spot) => spot !== undefined);
        // Rounded, as a sum depends on the order of its parts.
        return near.length ? Math.round((1e6 * near.reduce((a, b) => a + b, 0)) / near.length) : 2e6;
      };
      const spots = new Map(columns[at].map((node) => [node.id, middle(node)]));
      columns[at].sort((a, b) => spots.get(a.id) - spots.get(b.id));
      columns[at].forEach((node, index) => places.set(node.id, index / Math.max(1, columns[at].length)));
    }
  }
}

/** Everything that is before or behind something. */
function waysOf(id, links) {
  const found = new Set([id]);
  for (const [a, b] of [["from", "to"], ["to", "from"]]) {
    const open = [id], seen = new Set([id]);
    while (open.length) {
      const here = open.pop();
      for (const edge of links) if (edge[a] === here && !seen.has(edge[b])) { seen.add(edge[b]); found.add(edge[b]); open.push(edge[b]); }
    }
  }
  return found;
}

function Drawing({ graph, vhost, flip }) {
  const box = useRef();
  const [lines, setLines] = useState({ paths: [], width: 0, height: 0 });
  const [at, setAt] = useState();
  const on = useMemo(() => (at ? waysOf(at, graph.links) : undefined), [at, graph]);
  useLayoutEffect(() => {
    const measure = () => {
      const own = box.current?.getBoundingClientRect();
      if (!own || own.width < 640) { setLines({ paths: [], width: 0, height: 0 }); return; }
      const spots = new Map([...box.current.querySelectorAll("[data-id]")].map((element) => [element.dataset.id, element.getBoundingClientRect()]));
      const paths = graph.links.flatMap((edge) => {
        const a = spots.get(edge.from), b = spots.get(edge.to);
        if (!a || !b) return [];
        const y1 = a.top + a.height / 2 - own.top, y2 = b.top + b.height / 2 - own.top;
        // From an exchange to another the line leaves and comes back on the right.
        if (Math.abs(a.left - b.left) < 8) { const x = a.right - own.left; return [{ edge, d: `M${x} ${y1}C${x + 46} ${y1} ${x + 46} ${y2} ${x} ${y2}` }]; }
        const x1 = a.right - own.left, x2 = b.left - own.left, bend = (x2 - x1) / 2;
        return [{ edge, d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` }];
      });
      setLines({ paths, width: own.width, height: own.height });
    };
    measure();
    const sized = new ResizeObserver(measure);
    sized.observe(box.current);
    return () => sized.disconnect();
  }, [graph]);
  const most = Math.max(1, ...graph.links.map((edge) => edge.flow));
  const events = (id) => ({ onPointerEnter: () => setAt(id), onPointerLeave: () => setAt(undefined), onFocus: () => setAt(id), onBlur: () => setAt(undefined) });
  // No component of its own: it would be another one at each drawing, and lose the focus.
  const draw = (node) => {
    const faded = on && !on.has(node.id) ? "is-faded" : "";
    const feeds = graph.links.filter((edge) => edge.from === node.id && edge.keys).map((edge) => graph.names.get(edge.to));
    const inner = html`<span class="topo-name">${node.kind === "exchange" ? node.name || "(AMQP default)" : node.name}</span>
      <span class="topo-facts">${node.isGroup && html`<b>${plural(node.size, "queue")}</b> `}${node.type && html`<span class="faint">${node.type}</span> `}${node.kind === "queue" && html`<b class=${node.messages > 0 && !node.consumers ? "warn" : ""}>${short(node.messages)}</b>${node.consumers === 0 && node.messages > 0 ? html` <span class="unseen">messages and no consumer</span>` : ""} `}${node.rate > 0 && html`<span class="faint">${rate(node.rate)}</span>`}${node.kind === "consumer" && html`<span class="faint">${plural(node.queues, "queue")}</span>`}</span>
      ${feeds.length > 0 && html`<span class="only-list faint">to ${feeds.slice(0, 6).join(", ")}${feeds.length > 6 ? ` and ${feeds.length - 6} more` : ""}</span>`}`;
    const shared = { key: node.id, "data-id": node.id, class: `topo-node ${node.kind} ${node.isGroup ? "group" : ""} ${faded} ${node.kind === "queue" && node.messages > 0 && node.consumers === 0 ? "is-stuck" : ""}`, ...events(node.id) };
    if (node.isGroup) return html`<button type="button" ...${shared} aria-expanded=${node.isOpen} onClick=${() => flip(node.id)}>${inner}</button>`;
    const to = node.kind === "queue" ? href("queues", vhost, node.name) : node.kind === "exchange" ? href("exchanges", vhost, node.name || "amq.default") : node.place ? href("connections", node.place) : undefined;
    return html`<a ...${shared} href=${to}>${inner}</a>`;
  };
  return html`<div class="topology" ref=${box}>
    <svg class="topo-lines" width=${lines.width} height=${lines.height} aria-hidden="true">${lines.paths.map(({ edge, d }) => html`<path key=${`${edge.from} ${edge.to}`} d=${d} class="${edge.flow > 0 ? "is-flowing" : ""} ${on ? (on.has(edge.from) && on.has(edge.to) ? "is-on" : "is-faded") : ""}" style=${{ strokeWidth: 1.2 + (edge.flow > 0 ? 3 * Math.sqrt(edge.flow / most) : 0) }} />`)}</svg>
    ${["Publishers", "Exchanges", "Queues", "Consumers"].map((title, index) => html`<section class="topo-column" key=${title}><h2>${title} <span class="faint">${count(graph.columns[index].length)}</span></h2>
      ${graph.columns[index].map(draw)}${graph.columns[index].length === 0 && html`<p class="faint">${["Nobody published lately.", "None is bound.", "None.", "Nobody consumes."][index]}</p>`}</section>`)}</div>`;
}
