// Lists of any length: searched, sorted and paged by the broker, so that ten thousand rows cost the
// browser as much as fifty.
//
// A column is { key, label, cell(row), sort, isNumber, title, isOptional, isWide }. Where a list is
// is in the address, so that it can be kept and sent to a colleague.
import { html, useEffect, useRef, useState, useStore, remember, remembered } from "./lib.js";
import { usePoll } from "./api.js";
import { place, setQuery } from "./router.js";
import { count, singular } from "./format.js";
import { Icon } from "./icons.js";
import { Empty, Menu, Wrong } from "./ui.js";

const SIZES = [25, 50, 100, 500];

/** What is under a name with dots. */
export const find = (row, key) => key.split(".").reduce((value, name) => value?.[name], row);

/** Lists that the broker gives whole are searched, sorted and cut here. */
function cut(items, { name, isRegex, sort, isReversed, page, size, search }) {
  let kept = items;
  if (name) {
    let pattern;
    try {
      pattern = isRegex && new RegExp(name, "i");
    } catch {
      pattern = /^\b$/;
    }
    const lower = name.toLowerCase();
    kept = kept.filter((row) => search(row).some((text) => (pattern ? pattern.test(text) : String(text ?? "").toLowerCase().includes(lower))));
  }
  if (sort) {
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true }));
    kept = [...kept].sort((a, b) => order(find(a, sort), find(b, sort)));
    if (isReversed) kept.reverse();
  }
  const pages = Math.max(1, Math.ceil(kept.length / size));
  const shown = Math.min(page, pages);
  return { items: kept.slice((shown - 1) * size, shown * size), filtered_count: kept.length, total_count: items.length, page: shown, page_count: pages };
}

/**
 * `url` is the list's path, `query` what else is asked of it; `rows` instead of both is a list that
 * is there already. It comes in the order of the column `natural` by itself, and is shown in that of
 * `first` until another is chosen. `selection` are things to do with chosen rows: [{ label, icon, kind, run(rows) }].
 */
export function DataTable({ id, url, query = "", rows, columns, rowKey, search = (row) => [row.name], placeholder = "Filter by name", actions, selection, empty, noun = "rows", natural = "name", first = "", small, onRows }) {
  const { query: at } = useStore(place);
  const prefix = small ? `${id}.` : "";
  const said = (key) => at[prefix + key];
  const say = (changes) => setQuery(Object.fromEntries(Object.entries(changes).map(([key, value]) => [prefix + key, value])));
  const [size, setSize] = useState(() => remembered("rows", 50));
  const [hidden, setHidden] = useState(() => new Set(remembered(`hidden.${id}`, columns.filter((column) => column.isOptional).map((column) => column.key))));
  const [chosen, setChosen] = useState(() => new Set());
  const name = said("name") ?? "", isRegex = said("use_regex") === "true", page = Math.max(1, Number(said("page")) || 1);
  const sort = said("sort") ?? first, isReversed = said("sort_reverse") === "true";
  const parameters = new URLSearchParams({ page, page_size: size });
  if (name) parameters.set("name", name);
  if (name && isRegex) parameters.set("use_regex", "true");
  // In the order of names it comes by itself, and the broker need look at one page alone.
  if (sort && !(sort === natural && !isReversed)) {
    parameters.set("sort", sort);
    if (isReversed) parameters.set("sort_reverse", "true");
  }
  const poll = usePoll(url && `${url}?${parameters}${query ? `&${query}` : ""}`);
  // A page that is gone meanwhile: back to the first one.
  const isGone = poll.failure?.status === 400 && page > 1;
  useEffect(() => { if (isGone) say({ page: undefined }); }, [isGone]);
  const whole = rows ?? (Array.isArray(poll.data) ? poll.data : undefined);
  const data = whole ? cut(whole, { name, isRegex, sort, isReversed, page, size, search }) : poll.data;
  const items = data?.items;
  useEffect(() => { if (items) onRows?.(items, poll.at); }, [items]);
  useEffect(() => setChosen(new Set()), [url]);
  const shown = columns.filter((column) => !hidden.has(column.key));
  const sortBy = (column) => {
    const key = column.sort ?? column.key;
    const isNow = (sort || natural) === key;
    // Numbers are looked at from the largest on.
    const reverse = isNow ? !isReversed : Boolean(column.isNumber);
    say({ sort: key, sort_reverse: reverse ? "true" : undefined, page: undefined });
  };
  const flip = (column) => {
    const next = new Set(hidden);
    if (!next.delete(column.key)) next.add(column.key);
    setHidden(next);
    remember(`hidden.${id}`, [...next]);
  };
  const isFiltered = Boolean(name);
  const picked = items?.filter((row) => chosen.has(rowKey(row))) ?? [];
  const choose = (row) => { const next = new Set(chosen); const key = rowKey(row); if (!next.delete(key)) next.add(key); setChosen(next); };
  return html`<div class="data ${small ? "is-small" : ""}">
    ${(!small || (data?.total_count ?? 0) > 10 || isFiltered) && html`<div class="toolbar">
      <${Search} value=${name} isRegex=${isRegex} placeholder=${placeholder} onChange=${(text, regex) => say({ name: text, use_regex: regex ? "true" : undefined, page: undefined })} isMain=${!small} />
      <div class="toolbar-end">${actions}
        ${columns.some((column) => column.isOptional !== undefined || columns.length > 6) && html`<${Menu} icon="columns" title="Columns" className="to-left only-wide">
          ${columns.filter((column) => !column.isFixed).map((column) => html`<label class="menu-check" data-stay><input type="checkbox" checked=${!hidden.has(column.key)} onChange=${() => flip(column)} />${column.label}</label>`)}</${Menu}>`}
      </div></div>`}
    ${selection && picked.length > 0 && html`<div class="banner chosen"><b>${count(picked.length)} chosen</b>
      ${selection.map((action) => html`<button type="button" class=${action.kind ?? ""} onClick=${() => action.run(picked, () => setChosen(new Set()))}><${Icon} name=${action.icon} />${action.label}</button>`)}
      <button type="button" onClick=${() => setChosen(new Set())}>Choose none</button></div>`}
    ${!isGone && html`<${Wrong} failure=${poll.failure} />`}
    <div class="table-box ${poll.isOld ? "is-old" : ""}">
      <table><thead><tr>
        ${selection && html`<th class="check"><input type="checkbox" aria-label="Choose all on this page" checked=${items?.length > 0 && picked.length === items.length} onChange=${(event) => setChosen(new Set(event.target.checked ? items.map(rowKey) : []))} /></th>`}
        ${shown.map((column) => {
          const key = column.sort ?? column.key;
          const isNow = (sort || (small ? "" : natural)) === key;
          return html`<th key=${column.key} scope="col" class="${column.isNumber ? "number" : ""} ${column.className ?? ""}" title=${column.title} aria-sort=${isNow ? (isReversed ? "descending" : "ascending") : undefined}>
            ${column.sort === false ? column.label : html`<button type="button" class="sort ${isNow ? "is-now" : ""}" onClick=${() => sortBy(column)}>${column.label}<span class="arrow" aria-hidden="true">${isNow ? (isReversed ? "↓" : "↑") : ""}</span></button>`}</th>`;
        })}</tr></thead>
        <tbody>${items === undefined && !poll.failure ? Array.from({ length: small ? 3 : 8 }, (_, at) => html`<tr class="waiting" key=${at} aria-hidden="true">${selection && html`<td />`}${shown.map(() => html`<td><i /></td>`)}</tr>`)
          : items?.map((row) => html`<tr key=${rowKey(row)} class=${chosen.has(rowKey(row)) ? "is-chosen" : ""}>
            ${selection && html`<td class="check"><input type="checkbox" aria-label="Choose ${rowKey(row)}" checked=${chosen.has(rowKey(row))} onChange=${() => choose(row)} /></td>`}
            ${shown.map((column) => html`<td key=${column.key} class="${column.isNumber ? "number" : ""} ${column.className ?? ""}" data-label=${column.label}>${column.cell(row)}</td>`)}</tr>`)}</tbody></table>
      ${items?.length === 0 && (isFiltered ? html`<${Empty} title=${`No ${noun} match “${name}”.`}><button type="button" class="link" onClick=${() => say({ name: undefined, use_regex: undefined })}>Show all ${noun}</button></${Empty}>` : empty)}
    </div>
    ${data && data.filtered_count > (small ? 10 : 0) && html`<${Pager} data=${data} size=${size} noun=${noun} isFiltered=${isFiltered} onPage=${(number) => say({ page: number > 1 ? number : undefined })} onSize=${(next) => { setSize(next); remember("rows", next); say({ page: undefined }); }} />`}
  </div>`;
}

/** The field above a list. What is typed counts a moment after the last letter. */
function Search({ value, isRegex, placeholder, onChange, isMain }) {
  const [text, setText] = useState(value);
  const timer = useRef();
  useEffect(() => setText(value), [value]);
  const later = (next) => {
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(next, isRegex), 200);
  };
  return html`<div class="search" role="search"><${Icon} name="search" />
    <input type="search" aria-label=${placeholder} placeholder=${placeholder} spellcheck=${false} data-main-search=${isMain ? "" : undefined} value=${text}
      onInput=${(event) => later(event.target.value)} onKeyDown=${(event) => { if (event.key === "Escape" && text) { event.stopPropagation(); later(""); } }} />
    <button type="button" class="regex ${isRegex ? "is-on" : ""}" aria-pressed=${isRegex} title="Take it as a regular expression" onClick=${() => onChange(text, !isRegex)}>.*</button></div>`;
}

function Pager({ data, size, noun, isFiltered, onPage, onSize }) {
  const { page, page_count: pages, filtered_count: all, total_count: total } = data;
  const first = all === 0 ? 0 : (page - 1) * size + 1;
  return html`<nav class="pager" aria-label="Pages">
    <span>${count(first)}–${count(Math.min(page * size, all))} of <b>${count(all)}</b> ${all === 1 ? singular(noun) : noun}${isFiltered ? html` <span class="faint">(of ${count(total)})</span>` : ""}</span>
    <span class="pager-end">
      ${all > SIZES[0] && html`<label class="faint">Rows <select value=${size} onChange=${(event) => onSize(Number(event.target.value))}>${SIZES.map((n) => html`<option value=${n} selected=${n === size}>${n}</option>`)}</select></label>`}
      ${pages > 1 && html`<button type="button" aria-label="Previous page" disabled=${page <= 1} onClick=${() => onPage(page - 1)}><${Icon} name="left" /></button>
      <label>Page <input type="number" class="page-number" min="1" max=${pages} value=${page} onChange=${(event) => { const number = Math.round(Number(event.target.value)); if (number >= 1 && number <= pages) onPage(number); else event.target.value = page; }} /> of ${count(pages)}</label>
      <button type="button" aria-label="Next page" disabled=${page >= pages} onClick=${() => onPage(page + 1)}><${Icon} name="right" /></button>`}</span></nav>`;
}
