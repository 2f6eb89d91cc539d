// Messages: look at some without taking them, and publish one for trying things out.
import { html, useState } from "../lib.js";
import { ask, path } from "../api.js";
import { bytes, count, plural } from "../format.js";
import { Icon } from "../icons.js";
import { Arguments, Badge, Card, Copy, Empty, Wrong, confirm, table_of, tell } from "../ui.js";

/** `hasKey`: whether the routing key is asked for; a queue's is its name. */
export const publishFields = ({ hasKey }) => [
  ...(hasKey ? [{ name: "key", label: "Routing key" }] : []),
  { name: "payload", label: "Message", kind: "area", rows: 6 },
  { name: "encoding", label: "It is", kind: "choice", value: "string", options: [["string", "text"], ["base64", "base64 of any bytes"]] },
  { name: "mode", label: "On disk", kind: "choice", value: "2", options: [["2", "persistent"], ["1", "not persistent"]] },
  { name: "content_type", label: "Content type", placeholder: "application/json", suggest: ["application/json", "text/plain", "application/octet-stream"] },
  { name: "times", label: "How many times", kind: "number", min: 1, max: 1000, value: "1" },
  { name: "headers", label: "Headers", kind: "table" },
  { name: "properties", label: "Other properties", kind: "table", suggest: ["correlation_id", "reply_to", "expiration", "message_id", "priority", "type", "app_id", "timestamp", "user_id"] },
];

const NUMBERS = ["priority", "timestamp"];

export async function publishTo(vhost, exchange, key, values) {
  const properties = { delivery_mode: Number(values.mode), ...table_of(values.properties) };
  for (const [name, value] of Object.entries(properties)) if (name !== "delivery_mode") properties[name] = NUMBERS.includes(name) ? Number(value) : String(value);
  if (values.content_type) properties.content_type = values.content_type;
  if (values.headers.length) properties.headers = table_of(values.headers);
  const times = Math.max(1, Math.min(1000, Math.round(Number(values.times)) || 1));
  let routed = 0;
  for (let at = 0; at < times; at += 1) {
    const answer = await ask("POST", `exchanges/${path(vhost, exchange)}/publish`, { routing_key: values.key ?? key ?? "", payload: values.payload, payload_encoding: values.encoding, properties });
    if (answer?.routed) routed += 1;
  }
  if (routed < times) throw new Error(routed === 0 ? "No queue took it: nothing is bound with such a key." : `Only ${routed} of ${times} found a queue.`);
  tell(`${plural(times, "message was", "messages were")} published and confirmed.`);
}

export function Messages({ queue }) {
  const [most, setMost] = useState(10);
  const [found, setFound] = useState();
  const [failure, setFailure] = useState();
  const [isBusy, setBusy] = useState(false);
  const look = async (ackmode) => {
    setBusy(true);
    setFailure(undefined);
    try {
      setFound(await ask("POST", `queues/${path(queue.vhost, queue.name)}/get`, { count: most, ackmode, encoding: "auto", truncate: 50000 }));
    } catch (error) {
      setFailure(error);
    }
    setBusy(false);
  };
  const take = () => confirm({ title: `Take ${plural(Math.min(most, queue.messages_ready), "message")} out?`, verb: "Take them out", body: html`<p><b>They leave the queue for good</b> and are shown here once; no consumer gets them.</p>`, doing: () => look("ack_requeue_false") });
  const letters = queue.arguments?.["x-dead-letter-exchange"] ?? queue.effective_policy_definition?.["dead-letter-exchange"];
  const reject = () => confirm({ title: `Reject ${plural(Math.min(most, queue.messages_ready), "message")}?`, verb: "Reject them", body: html`<p>They leave the queue, are shown here once, and go to its dead-letter exchange <b class="mono">${letters || "(AMQP default)"}</b> as if a consumer had rejected them. <b>Where nothing is bound there they are lost for good.</b></p>`, doing: () => look("reject_requeue_false") });
  return html`<${Card} title="Look into it" aside=${html`<span class="actions"><label class="faint">Messages <input type="number" class="page-number" min="1" max="500" value=${most} onChange=${(event) => setMost(Math.max(1, Math.min(500, Math.round(Number(event.target.value)) || 1)))} /></label>
    <button type="button" disabled=${isBusy} onClick=${() => look("ack_requeue_true")}><${Icon} name="eye" />${isBusy ? "Looking …" : "Peek"}</button>
    <button type="button" class="danger-text" disabled=${isBusy || !queue.messages_ready} onClick=${take}>Take out …</button>
    ${letters !== undefined && html`<button type="button" class="danger-text" disabled=${isBusy || !queue.messages_ready} onClick=${reject}>Reject …</button>`}</span>`}>
    <${Wrong} failure=${failure} />
    ${!found && !failure && html`<p class="faint">Peek shows the first messages and puts each back in its place. They are flagged “redelivered” from then on.</p>`}
    ${found?.length === 0 && html`<${Empty} title="No message is ready.">${queue.messages_unacknowledged > 0 ? `${plural(queue.messages_unacknowledged, "message is", "messages are")} with consumers and not seen here.` : "The queue is empty."}</${Empty}>`}
    ${found?.length > 0 && html`<ol class="messages">${found.map((message, at) => html`<${Message} key=${at} message=${message} number=${at + 1} />`)}</ol><p class="faint">${count(found.at(-1).message_count)} more behind them.</p>`}</${Card}>`;
}

function Message({ message, number }) {
  const { headers, ...properties } = Array.isArray(message.properties) ? {} : message.properties;
  const isCut = message.payload_encoding === "string" && new TextEncoder().encode(message.payload).length < message.payload_bytes;
  return html`<li class="message"><header><b>${number}</b><span>${message.exchange ? html`from <b class="mono">${message.exchange}</b>` : "from the default exchange"}, key <b class="mono">${message.routing_key || "(empty)"}</b></span>
    <span class="message-end">${message.redelivered && html`<${Badge} title="It was delivered before">redelivered</${Badge}>`} ${bytes(message.payload_bytes)} <${Copy} text=${message.payload} /></span></header>
    ${Object.keys(properties).length > 0 && html`<${Arguments} of=${properties} />`}${headers && Object.keys(headers).length > 0 && html`<div class="headers"><span class="faint">headers</span><${Arguments} of=${headers} /></div>`}
    <pre tabindex="0" aria-label="Message ${number}">${shown(message)}</pre>${isCut && html`<p class="faint">The first 50,000 bytes of ${count(message.payload_bytes)}.</p>`}${message.payload_encoding === "base64" && html`<p class="faint">It is no text; these are its bytes in base64.</p>`}</li>`;
}

function shown(message) {
  if (message.payload_encoding === "string" && /^\s*[[{]/.test(message.payload)) {
    try {
      return JSON.stringify(JSON.parse(message.payload), null, 2);
    } catch { /* Then as it came. */ }
  }
  return message.payload;
}
