// Addresses: `#/queues/VHOST/NAME?page=2`, the same as RabbitMQ's where it has them.
import { store } from "./lib.js";

function read() {
  const raw = location.hash.replace(/^#\/?/, "");
  const [before, query = ""] = raw.split("?");
  const decode = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };
  return { parts: before.split("/").filter(Boolean).map(decode), query: Object.fromEntries(new URLSearchParams(query)) };
}

export const place = store(read());
addEventListener("hashchange", () => place.set(read()));

/** The address of a place. */
export const href = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

export const go = (...parts) => { location.hash = href(...parts); };

/** Changes what is behind the question mark; history does not grow by each letter typed. */
export function setQuery(changes) {
  const { parts, query } = place.get();
  const next = { ...query, ...changes };
  for (const key of Object.keys(next)) if (next[key] === undefined || next[key] === "") delete next[key];
  const text = new URLSearchParams(next).toString();
  history.replaceState(null, "", `${href(...parts)}${text ? `?${text}` : ""}`);
  place.set(read());
}
