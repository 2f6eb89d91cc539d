// Bindings: which there are, make one, take one away.
import { html } from "../lib.js";
import { ask, part, refresh } from "../api.js";
import { href } from "../router.js";
import { DataTable } from "../table.js";
import { Icon } from "../icons.js";
import { Arguments, Empty, confirm } from "../ui.js";

const exchangeName = (name) => name || "(AMQP default)";

export function bindFields({ toQueue }) {
  return [
    ...(toQueue ? [{ name: "source", label: "From the exchange", isNeeded: true }] : [{ name: "kind", label: "To", kind: "choice", value: "q", options: [["q", "a queue"], ["e", "another exchange"]] }, { name: "destination", label: "Its name", isNeeded: true }]),
    { name: "routing_key", label: "Routing key", help: "For topic exchanges * is one word and # any number of words." },
    { name: "arguments", label: "Arguments", kind: "table", suggest: ["x-match"], help: "For headers exchanges: x-match = all or any, and the headers." },
  ];
}

/** `hides` is the end that the page is about. */
export function Bindings({ url, vhost, hides, none }) {
  const remove = (binding) => confirm({
    title: "Unbind?", verb: "Unbind",
    body: html`<p>Messages from <b class="mono">${exchangeName(binding.source)}</b>${binding.routing_key ? html` with the key <b class="mono">${binding.routing_key}</b>` : ""} no longer come to <b class="mono">${binding.destination}</b>. What is in a queue already stays.</p>`,
    doing: () => ask("DELETE", `bindings/${part(vhost)}/e/${part(binding.source)}/${binding.destination_type === "queue" ? "q" : "e"}/${part(binding.destination)}/${part(binding.properties_key)}`).then(refresh),
  });
  const columns = [
    { key: "source", label: "From", cell: (one) => html`<a href=${href("exchanges", vhost, one.source || "amq.default")}>${exchangeName(one.source)}</a>` },
    { key: "destination", label: "To", cell: (one) => html`<a href=${href(one.destination_type === "queue" ? "queues" : "exchanges", vhost, one.destination)}>${one.destination}</a>${one.destination_type === "exchange" ? html` <span class="faint">exchange</span>` : ""}` },
    { key: "routing_key", label: "Routing key", className: "mono", cell: (one) => one.routing_key || html`<span class="faint">empty</span>` },
    { key: "arguments", label: "Arguments", sort: false, cell: (one) => html`<${Arguments} of=${one.arguments} />` },
    { key: "do", label: html`<span class="unseen">Unbind</span>`, sort: false, isNumber: true, cell: (one) => one.source !== "" && html`<button type="button" class="plain" title="Unbind" aria-label="Unbind ${one.source} from ${one.destination}" onClick=${() => remove(one)}><${Icon} name="trash" size=${16} /></button>` },
  ].filter((column) => column.key !== hides);
  return html`<${DataTable} id=${`bindings-${hides}`} small url=${url} columns=${columns} rowKey=${(one) => `${one.source}→${one.destination_type}:${one.destination}:${one.properties_key}`} noun="bindings" natural="source"
    search=${(one) => [one.source, one.destination, one.routing_key]} empty=${html`<${Empty} title="No bindings.">${none}</${Empty}>`} />`;
}
