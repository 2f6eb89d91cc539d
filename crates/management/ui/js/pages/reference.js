// The HTTP API: every path that this broker serves, as its OpenAPI document tells it.
import { html, useMemo } from "../lib.js";
import { usePoll } from "../api.js";
import { DataTable } from "../table.js";
import { Icon } from "../icons.js";
import { Badge, Wrong } from "../ui.js";

const METHODS = ["get", "put", "post", "delete"];

/** One row for each path: its methods, and what it is about. */
function rowsOf(document) {
  return Object.entries(document?.paths ?? {}).map(([path, operations]) => {
    const methods = METHODS.filter((method) => operations[method]);
    return { path, methods: methods.map((method) => method.toUpperCase()), about: operations[methods[0]].summary, isPaged: Boolean(operations.get?.parameters?.some((one) => one.name === "page")) };
  });
}

export function Reference() {
  const { data, failure } = usePoll("openapi.json", { every: 3600 });
  const rows = useMemo(() => data && rowsOf(data), [data]);
  const columns = [
    { key: "path", label: "Path", className: "name", cell: (row) => html`<code>${row.path}</code>` },
    { key: "methods", label: "Methods", className: "methods", sort: false, cell: (row) => html`<span class="marks">${row.methods.map((method) => html`<${Badge} key=${method}>${method}</${Badge}>`)}</span>` },
    { key: "about", label: "What it is about", className: "whole", cell: (row) => html`${row.about}${row.isPaged && html` <${Badge} title="It takes columns, sort, sort_reverse, page, page_size, name and use_regex.">list</${Badge}>`}` },
  ];
  // A link would ask for a password: the page's session counts with its own requests alone.
  const save = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(data, null, 2)], { type: "application/json" }));
    link.download = "openapi.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  return html`<div class="page-head"><h1>HTTP API</h1><div class="actions"><button type="button" disabled=${!data} onClick=${save}><${Icon} name="down" />openapi.json</button></div></div>
    <p class="faint">RabbitMQ's management API, and below <code>/api/leveret</code> what is our own. Programs read the same in <code>/api/openapi.json</code>.</p>
    <${Wrong} failure=${failure} /><${DataTable} id="reference" rows=${rows} columns=${columns} rowKey=${(row) => row.path} search=${(row) => [row.path, row.about]} natural="path" noun="paths" placeholder="Filter by path or words" />`;
}
