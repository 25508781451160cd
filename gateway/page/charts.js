// The chart of the last five minutes: four plots that share their time and
// their cursor, drawn as SVG paths.

import { ago, drawn, duration, make, mark, rate, say, share } from "./elements.js";

const span = 300; // seconds

// What is drawn: of each series how it is read from a point, and its colour.
const chartList = [
  {
    title: "Requests / s", unit: rate, least: 1,
    series: [
      { name: "answered", color: "blue", area: true, of: (p) => Math.max(0, p.requests - p.refused - p.failed) },
      { name: "refused", color: "amber", of: (p) => p.refused },
      { name: "failed", color: "red", of: (p) => p.failed },
    ],
  },
  {
    title: "Tokens / s", unit: rate, least: 10,
    series: [
      { name: "prompt", color: "teal", area: true, of: (p) => p.input },
      { name: "from cache", color: "teal", dashed: true, of: (p) => p.cached },
      { name: "output", color: "violet", of: (p) => p.output },
    ],
  },
  {
    title: "First token", unit: duration, least: 10,
    series: [
      { name: "half within", color: "blue", of: (p) => (p.first_token_ms ? p.first_token_ms.p50 : null) },
      { name: "95 % within", color: "amber", of: (p) => (p.first_token_ms ? p.first_token_ms.p95 : null) },
    ],
  },
  {
    title: "Cache hits", unit: share, least: 1, most: 1,
    series: [
      { name: "reported", color: "teal", area: true, of: (p) => p.hit_actual },
      { name: "expected", color: "violet", dashed: true, of: (p) => p.hit_predicted },
    ],
  },
];

// nice is the next round number at or above v.
function nice(v) {
  const base = 10 ** Math.floor(Math.log10(v));
  for (const m of [1, 1.6, 2, 3, 4, 6, 8, 10]) if (v <= m * base * 1.0001) return m * base;
  return 10 * base;
}

class Chart {
  constructor(spec, move) {
    this.spec = spec;
    this.when = make("span", { class: "when" });
    this.legend = make("ul", { class: "legend" });
    this.values = spec.series.map((s) => {
      const value = make("b");
      this.legend.append(make("li", {}, make("span", { class: `swatch c-${s.color}${s.dashed ? " dashed" : ""}`, "aria-hidden": "true" }), s.name, value));
      return value;
    });
    this.svg = drawn("svg", { viewBox: `0 0 ${span} 100`, preserveAspectRatio: "none", "aria-hidden": "true" });
    for (const y of [0, 50]) this.svg.append(drawn("line", { x1: 0, x2: span, y1: y, y2: y }));
    this.paths = spec.series.map((s) => {
      const area = s.area ? drawn("path", { class: `area c-${s.color}` }) : null;
      const line = drawn("path", { class: `c-${s.color}${s.dashed ? " dashed" : ""}` });
      if (area) this.svg.append(area);
      this.svg.append(line);
      return { area, line };
    });
    this.cursor = drawn("line", { class: "cursor", y1: 0, y2: 100, visibility: "hidden" });
    this.svg.append(this.cursor);
    this.max = make("span", { class: "max", "aria-hidden": "true" });
    this.half = make("span", { class: "half", "aria-hidden": "true" });
    this.plot = make("div", { class: "plot", tabindex: "0", role: "group", "aria-label": spec.title + ", the last five minutes; arrow keys move through time" }, this.svg, this.max, this.half);
    const axis = make("div", { class: "axis", "aria-hidden": "true" }, make("span", {}, "5 min ago"), make("span", {}, "now"));
    this.element = make("figure", { class: "chart" }, make("figcaption", {}, make("span", {}, spec.title), this.when), this.legend, this.plot, axis);
    this.plot.addEventListener("pointermove", (e) => {
      const box = this.plot.getBoundingClientRect();
      move(Math.round((1 - (e.clientX - box.left) / box.width) * span));
    });
    this.plot.addEventListener("pointerleave", () => move(null));
    this.plot.addEventListener("blur", () => move(null));
    this.plot.addEventListener("keydown", (e) => {
      const step = { ArrowLeft: 5, ArrowRight: -5, Home: span, End: -span, Escape: null }[e.key];
      if (step === undefined) return;
      e.preventDefault();
      move(step === null ? null : Math.min(span, Math.max(0, (cursorAge ?? 0) + step)));
    });
  }

  draw(points, now, age) {
    let top = this.spec.least;
    for (const p of points) for (const s of this.spec.series) top = Math.max(top, s.of(p) ?? 0);
    top = this.spec.most ?? nice(top);
    say(this.max, this.spec.unit(top));
    say(this.half, this.spec.unit(top / 2));
    this.spec.series.forEach((s, i) => {
      const { line, area } = trace(points, now, s.of, top);
      mark(this.paths[i].line, "d", line);
      if (this.paths[i].area) mark(this.paths[i].area, "d", area);
    });
    const shown = age === null ? points.at(-1) : nearest(points, now - age);
    this.spec.series.forEach((s, i) => {
      const v = shown ? s.of(shown) : null;
      say(this.values[i], v === null || v === undefined ? "–" : this.spec.unit(v));
    });
    say(this.when, age === null || !shown ? "" : ago(now * 1000, shown.t * 1000));
    mark(this.cursor, "visibility", age === null ? "hidden" : "visible");
    if (age !== null && shown) for (const x of ["x1", "x2"]) mark(this.cursor, x, String(span - (now - shown.t)));
  }
}

// trace is a series as two paths: the line, and the area below it. Where there
// is no value there is a gap.
function trace(points, now, of, top) {
  let line = "", area = "", begin = null, last = 0;
  const close = () => {
    if (begin !== null) area += `L${last} 100L${begin} 100Z`;
    begin = null;
  };
  for (const p of points) {
    const x = span - (now - p.t), v = of(p);
    if (x < 0) continue;
    if (v === null || v === undefined) {
      close();
      continue;
    }
    const at = `${x} ${(100 - (Math.min(v, top) / top) * 98).toFixed(1)}`;
    if (begin === null || x - last > 10) {
      close();
      line += `M${at}h.01`; // a lone value is a dot
      area += `M${at}`;
      begin = x;
    } else {
      line += `L${at}`;
      area += `L${at}`;
    }
    last = x;
  }
  close();
  return { line, area };
}

function nearest(points, t) {
  let best = null;
  for (const p of points) if (!best || Math.abs(p.t - t) < Math.abs(best.t - t)) best = p;
  return best;
}

let points = [];
let cursorAge = null; // seconds before now that the legends tell of; null: now
const charts = chartList.map((spec) => new Chart(spec, (age) => {
  cursorAge = age;
  drawCharts();
}));

export const chartElements = charts.map((c) => c.element);

export function setHistory(history) {
  points = history;
}

export function drawCharts() {
  const now = points.length ? points.at(-1).t : 0;
  for (const c of charts) c.draw(points, now, cursorAge);
}

export function addPoint(p) {
  while (points.length && points.at(-1).t >= p.t) points.pop();
  points.push(p);
  while (points.length && points[0].t < p.t - span) points.shift();
}
