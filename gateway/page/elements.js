// Making and changing elements, and figures as people read them.

export const $ = (id) => document.getElementById(id);

// make makes an element: make("td", {class: "num"}, child, "text", …).
export function make(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

export function drawn(tag, attributes = {}) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
}

export function say(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

export function mark(e, name, value) {
  if (e.getAttribute(name) !== value) e.setAttribute(name, value);
}

// Rows keeps one element for each item of a list, in the list's order.
export class Rows {
  constructor(parent, build) {
    this.parent = parent;
    this.build = build; // item → {element, update(item)}
    this.rows = new Map();
  }
  update(items, id) {
    const seen = new Set();
    let at = this.parent.firstElementChild;
    for (const item of items) {
      const key = id(item);
      if (seen.has(key)) continue;
      seen.add(key);
      let row = this.rows.get(key);
      if (!row) {
        row = this.build(item);
        this.rows.set(key, row);
      }
      row.update(item);
      if (row.element === at) at = at.nextElementSibling;
      else this.parent.insertBefore(row.element, at);
    }
    for (const [key, row] of this.rows) {
      if (!seen.has(key)) {
        row.element.remove();
        this.rows.delete(key);
      }
    }
  }
}

const grouped = new Intl.NumberFormat("en");
export const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export function number(n) {
  if (Math.abs(n) >= 100000) return short.format(n);
  return grouped.format(Math.round(n));
}

// part is how much of a whole, both in the same form.
export function part(n, whole, form = whole >= 100000 ? (v) => short.format(v) : number) {
  return form(n) + " of " + form(whole);
}

export function rate(n) {
  if (Number.isInteger(n)) return number(n);
  if (n < 10) return n < 0.1 ? "<0.1" : n.toFixed(1);
  return number(n);
}

export function duration(ms) {
  if (ms < 10) return ms.toFixed(1) + " ms";
  if (ms < 1000) return Math.round(ms) + " ms";
  if (ms < 60000) return (ms / 1000).toFixed(ms < 10000 ? 2 : 1) + " s";
  const s = Math.round(ms / 1000);
  if (s < 3600) return Math.floor(s / 60) + " min " + (s % 60) + " s";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}

export const share = (v) => Math.round(v * 100) + " %";

// since is the time between two instants, in whole seconds.
export function since(now, then) {
  const s = Math.max(0, Math.floor((now - then) / 1000));
  return s < 60 ? s + " s" : duration(s * 1000);
}

// ago is the time between two instants, coarsely.
export function ago(now, then) {
  const s = Math.max(0, Math.round((now - then) / 1000));
  if (s < 1) return "now";
  if (s < 60) return s + " s ago";
  if (s < 3600) return Math.floor(s / 60) + " min ago";
  return Math.floor(s / 3600) + " h ago";
}
