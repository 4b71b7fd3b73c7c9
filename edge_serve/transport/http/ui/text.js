/** Figures as text, for people. */

export const NONE = "–";

export const number = (value, digits = 0) =>
  value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
export const rate = value =>
  value == null ? NONE : value === 0 ? "0" : value < 0.1 ? "<0.1" : number(value, value < 10 ? 1 : 0);
export const short = value =>
  value < 1e4 ? number(value) : value < 1e6 ? number(value / 1e3, 1) + " k" : number(value / 1e6, 1) + " M";
export const percent = value => (value == null ? NONE : number(value * 100) + " %");
export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
export const capital = text => text.slice(0, 1).toUpperCase() + text.slice(1);

/** A duration and its unit. */
export function time(seconds) {
  if (seconds == null) return [NONE, ""];
  const ms = seconds * 1e3;
  return ms < 1000 ? [number(ms, ms < 10 ? 2 : ms < 100 ? 1 : 0), "ms"] : [number(seconds, 2), "s"];
}
export const duration = seconds => time(seconds).join(" ").trim();

export function bytes(value) {
  if (value == null) return NONE;
  if (value >= 2 ** 30) return number(value / 2 ** 30, 1) + " GiB";
  if (value >= 2 ** 20) return number(value / 2 ** 20) + " MiB";
  return value >= 2 ** 10 ? number(value / 2 ** 10) + " KiB" : plural(value, "byte");
}

/** A part and its whole, in the unit of the whole. */
export function part(value, whole) {
  if (value == null || !whole) return [bytes(value), ""];
  return [whole >= 2 ** 30 ? number(value / 2 ** 30, 1) : number(value / 2 ** 20), "of " + bytes(whole)];
}

export function span(seconds) {
  if (seconds == null) return NONE;
  const days = Math.floor(seconds / 86400),
    hours = Math.floor(seconds / 3600) % 24;
  const minutes = Math.floor(seconds / 60) % 60;
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

/** A duration in its largest unit. */
export function age(seconds) {
  const [size, unit] = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ].find(([least]) => seconds >= least) || [1, "s"];
  return `${Math.floor(seconds / size)} ${unit}`;
}

export function clock(ms) {
  const date = new Date(ms),
    today = date.toDateString() === new Date().toDateString();
  const text = date.toLocaleTimeString([], { hour12: false });
  return today ? text : date.toLocaleDateString([], { month: "short", day: "numeric" }) + " " + text.slice(0, 5);
}

export const shapeText = shape => `[${shape.join(", ")}]`;
