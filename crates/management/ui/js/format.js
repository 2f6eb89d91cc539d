// Numbers, sizes and times as people read them. Nothing here knows of the API.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const hundredth = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });

/** What is not known. */
export const NONE = "–";

const isNumber = (n) => typeof n === "number" && Number.isFinite(n);

/** 12,345 */
export const count = (n) => (isNumber(n) ? whole.format(n) : NONE);

/** 12.3 k: where there is little room. */
export function short(n) {
  if (!isNumber(n)) return NONE;
  const size = Math.abs(n);
  if (size >= 1e9) return `${tenth.format(n / 1e9)} G`;
  if (size >= 1e6) return `${tenth.format(n / 1e6)} M`;
  if (size >= 1e5) return `${whole.format(n / 1e3)} k`;
  if (size >= 1e4) return `${tenth.format(n / 1e3)} k`;
  return size < 10 && !Number.isInteger(n) ? tenth.format(n) : whole.format(n);
}

/** 1,234/s */
export const rate = (n) => (isNumber(n) ? `${Math.abs(n) < 10 && !Number.isInteger(n) ? tenth.format(n) : whole.format(n)}/s` : NONE);

/** 0.05/s: a rate with as many digits as keep marks apart that are `step` from each other. */
export function rateOnAxis(n, step) {
  if (Math.abs(n) >= 1e5) return `${short(n)}/s`;
  const digits = step < 1 ? Math.ceil(-Math.log10(step) - 1e-9) : 0;
  return `${n === 0 ? 0 : n.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}/s`;
}

/** 1.2 GiB */
export function bytes(n) {
  if (!isNumber(n)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (Math.abs(n) >= 1024 && at < units.length - 1) {
    n /= 1024;
    at += 1;
  }
  return `${at === 0 || Math.abs(n) >= 100 ? whole.format(n) : tenth.format(n)} ${units[at]}`;
}

export const byteRate = (n) => (isNumber(n) ? `${bytes(n)}/s` : NONE);

/** A time that something takes, given in microseconds. */
export function micros(n) {
  if (!isNumber(n)) return NONE;
  if (n < 1000) return `${whole.format(n)} µs`;
  if (n < 10_000) return `${hundredth.format(n / 1000)} ms`;
  if (n < 1_000_000) return `${tenth.format(n / 1000)} ms`;
  return `${hundredth.format(n / 1e6)} s`;
}

/** How long, given in milliseconds: the two largest units. */
export function duration(ms) {
  if (!isNumber(ms)) return NONE;
  if (ms < 1000) return `${whole.format(ms)} ms`;
  const seconds = Math.floor(ms / 1000);
  const [d, h, m, s] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60, seconds % 60];
  if (d > 0) return `${whole.format(d)} d ${h} h`;
  if (h > 0) return `${h} h ${m} min`;
  if (m > 0) return `${m} min ${s} s`;
  return `${s} s`;
}

/** How long ago a moment was, given in milliseconds since 1970. */
export function ago(at, now = Date.now()) {
  if (!isNumber(at)) return NONE;
  const ms = now - at;
  if (ms < 5000) return "just now";
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${whole.format(Math.floor(seconds / 86400))} d ago`;
}

/** A moment in full, for titles. */
export const moment = (at) => (isNumber(at) ? new Date(at).toLocaleString() : "");

export const clock = (at) => new Date(at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const percent = (part, of) => (isNumber(part) && isNumber(of) && of > 0 ? Math.min(100, (100 * part) / of) : undefined);

/** "1 queue", "2 queues" */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** The word for one of what is named as many: "rights", "policies", "virtual hosts". */
export const singular = (many) => many.replace(/ies$/, "y").replace(/s$/, "");

/** Words in a row: "a, b and c". */
export const list = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);

/** A value out of JSON on one line. */
export const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));
