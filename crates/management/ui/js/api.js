// The API: who is logged in, one request, and requests that are repeated as long as somebody looks.
//
// Every request carries a header that no page of another site can send along with our cookie; the
// cookie itself is out of reach of scripts.
import { store, useEffect, useRef, useState, useStore, remember, remembered } from "./lib.js";

/** undefined: not known yet; null: nobody; else what `whoami` says. */
export const me = store(undefined);
/** Seconds between two looks; 0 is paused. */
export const pace = store(remembered("pace", 5));
pace.subscribe((seconds) => remember("pace", seconds));
/** When the last answer came, and whether the node answers at all. */
export const contact = store({ at: 0, isLost: false });

/** A part of a path. */
export const part = encodeURIComponent;
/** A path of parts that may hold anything. */
export const path = (...parts) => parts.map(part).join("/");

/** Why something was not done, in words for people. */
export class Failure extends Error {
  /** `asked` is the method and the URL of the request. */
  constructor(status, error, reason, asked = "") {
    super(sentence(status, error, reason, asked));
    this.name = "Failure";
    this.status = status;
    this.error = error;
    this.reason = reason;
  }
}

function sentence(status, error, reason, asked) {
  const said = typeof reason === "string" ? reason : reason ? JSON.stringify(reason) : "";
  const dot = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);
  switch (status) {
    case 0: return "The node does not answer. It may be starting again, or the way to it is cut. This page asks again by itself.";
    case 401: return error === "not_authorized" ? `Not logged in: ${dot(said || "the session has ended")} Log in again.` : refused(dot(said), asked);
    case 403: return dot(said || "This is refused");
    case 404: return said && !/^(object )?not found$/i.test(said) ? dot(said) : "It is not there (any more). Somebody may have deleted it, or its connection was closed.";
    case 405: return "This broker does not offer that.";
    case 408: return "The request took too long to arrive. Try again.";
    case 413: return "That is more than the broker takes at once (16 MiB).";
    case 503: return dot(said || "The node cannot do this now");
    default: return dot(said || `The broker answered ${status}`);
  }
}

/** Whoever asks, names of these are the broker's own. */
const RESERVED = /^(PUT (queues|exchanges)|DELETE exchanges)\/[^/]+\/amq\.[^/]*$/;

/** The broker does not say why it refuses what somebody who is logged in asks for. */
function refused(said, asked) {
  if (RESERVED.test(asked.split("?")[0])) return "Names that begin with “amq.” are the broker's own: nobody else declares or deletes what is called so. Choose another name.";
  if (!rights(me.get()).administrates) return `You may not do this: ${said} An administrator can give you the right.`;
  return `You may not do this: ${said} Administrators too need rights in a virtual host: your own page under Users says which you have, and gives you more.`;
}

/** One request. What comes back is JSON, or null where there is nothing to say. */
export async function ask(method, url, body, { signal, headers } = {}) {
  const init = { method, signal, headers: { "x-leveret-page": "1", ...headers }, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) {
    init.body = typeof body === "string" ? body : JSON.stringify(body);
    init.headers["content-type"] = "application/json";
  }
  let response, text;
  try {
    response = await fetch(`api/${url}`, init);
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    contact.set({ ...contact.get(), isLost: true });
    throw new Failure(0);
  }
  contact.set({ at: Date.now(), isLost: false });
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch { /* Some proxy's page: only the status counts. */ }
  if (response.ok) return value;
  // RabbitMQ's two spellings: z is about the login, s about rights.
  if (response.status === 401 && value?.error === "not_authorized" && me.get()) me.set(null);
  throw new Failure(response.status, value?.error, value?.reason, `${method} ${url}`);
}

export const get = (url, options) => ask("GET", url, undefined, options);

/** The rights that tags give. */
export function rights(user) {
  const tags = new Set(user?.tags ?? []);
  const administrates = tags.has("administrator");
  return {
    administrates,
    monitors: administrates || tags.has("monitoring"),
    sets_policies: administrates || tags.has("policymaker"),
  };
}
export const useRights = () => rights(useStore(me));

/** A word whose base64 is its UTF-8's. */
const encoded = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));

export async function login(name, password) {
  await ask("POST", "leveret/session", undefined, { headers: { authorization: `Basic ${encoded(`${name}:${password}`)}` } });
  me.set(await get("whoami"));
}

/** How one logs in here: by a password, by a token, or by either. */
export const ways = () => get("auth");

export async function loginByToken(token) {
  await ask("POST", "leveret/session", undefined, { headers: { authorization: `Bearer ${token.trim()}` } });
  me.set(await get("whoami"));
}

export async function logout() {
  try {
    await ask("DELETE", "leveret/session");
  } finally {
    me.set(null);
  }
}

/** Whether a session from before still holds. */
export async function resume() {
  try {
    me.set(await get("whoami"));
  } catch (failure) {
    if (failure.status === 0) setTimeout(resume, 2000);
    else me.set(null);
  }
}

/** The paths that this broker has, as its own document names them; asked for once. */
const offers = store(undefined);
let isAsked = false;
/** Whether the broker has a path, such as `leveret/queues/{vhost}/{queue}`. */
export function useOffer(template) {
  const known = useStore(offers);
  useEffect(() => {
    if (isAsked) return;
    isAsked = true;
    get("openapi.json?columns=paths").then((document) => offers.set(new Set(Object.keys(document.paths ?? {}))), () => offers.set(new Set()));
  }, []);
  return known?.has(`/api/${template}`) ?? false;
}

const bus = new EventTarget();
/** Everything that is shown is asked for again now. */
export const refresh = () => bus.dispatchEvent(new Event("refresh"));

/**
 * What is at an URL, again and again as long as this is on the screen and the window is looked at.
 * The last answer stays while the next one is waited for, and when it fails.
 */
export function usePoll(url, { every } = {}) {
  const seconds = useStore(pace);
  const [state, setState] = useState({ data: undefined, failure: undefined, at: 0, url });
  const latest = useRef();
  latest.current = url;
  useEffect(() => {
    if (!url) return undefined;
    let timer, controller, ended = false;
    const period = () => (every ?? seconds) * 1000;
    const look = async () => {
      clearTimeout(timer);
      controller?.abort();
      const own = (controller = new AbortController());
      try {
        const data = await get(url, { signal: own.signal });
        if (!ended && latest.current === url) setState({ data, failure: undefined, at: Date.now(), url });
      } catch (failure) {
        if (failure.name === "AbortError") return;
        if (!ended && latest.current === url) setState((was) => ({ ...(was.url === url ? was : { data: undefined, at: 0 }), failure, url }));
      }
      if (!ended && own === controller) schedule();
    };
    const schedule = () => {
      clearTimeout(timer);
      if (period() > 0 && document.visibilityState === "visible") timer = setTimeout(look, period());
    };
    const seen = () => (document.visibilityState === "visible" && period() > 0 ? look() : clearTimeout(timer));
    look();
    document.addEventListener("visibilitychange", seen);
    bus.addEventListener("refresh", look);
    return () => {
      ended = true;
      clearTimeout(timer);
      controller?.abort();
      document.removeEventListener("visibilitychange", seen);
      bus.removeEventListener("refresh", look);
    };
  }, [url, seconds, every]);
  // Of another URL only what is still like it is worth showing: lists keep their rows while they
  // are sorted anew.
  return { ...state, isOld: state.url !== url };
}
