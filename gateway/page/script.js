// The status page. One stream of server-sent events brings everything; each
// update is written into the elements that are there, so that focus, selection
// and scroll position stay. No text from outside becomes markup.
//
// Its parts in reading order: elements.js and charts.js, then here: tables,
// trouble, all of it, actions, the stream.

import { addPoint, chartElements, drawCharts, setHistory } from "./charts.js";
import { $, ago, drawn, duration, make, mark, number, part, rate, Rows, say, share, short, since } from "./elements.js";

// ---- tables ---------------------------------------------------------------

const states = {
  healthy: { level: "ok", text: "healthy", shape: "circle" },
  starting: { level: "note", text: "starting", shape: "ring" },
  unhealthy: { level: "bad", text: "unhealthy", shape: "cross" },
  open: { level: "warn", text: "breaker open", shape: "triangle" },
  half_open: { level: "warn", text: "on trial", shape: "triangle" },
  draining: { level: "note", text: "draining", shape: "square" },
};
const shapes = {
  circle: "M8 1a7 7 0 1 1 0 14A7 7 0 0 1 8 1z",
  ring: "M8 1a7 7 0 1 1 0 14A7 7 0 0 1 8 1zm0 3a4 4 0 1 0 0 8 4 4 0 0 0 0-8z",
  cross: "M3.2 1 8 5.8 12.8 1 15 3.2 10.2 8l4.8 4.8-2.2 2.2L8 10.2 3.2 15 1 12.8 5.8 8 1 3.2z",
  triangle: "M8 1.5 15.5 15H.5z",
  square: "M2 2h12v12H2z",
};

// sign is a coloured shape, with words beside it if there are any.
function sign() {
  const path = drawn("path");
  const svg = drawn("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" });
  svg.append(path);
  const text = make("span");
  const element = make("span", { class: "state" }, svg, text);
  return {
    element,
    set(level, shape, words) {
      mark(element, "data-level", level);
      mark(path, "d", shapes[shape]);
      say(text, words);
    },
  };
}

// bar is the share of something in use. calm: being full is nothing to worry about.
function bar(calm = false) {
  const fill = make("span");
  const element = make("div", { class: "bar", "aria-hidden": "true" }, fill);
  return {
    element,
    set(part, whole) {
      const v = whole > 0 ? Math.max(0, Math.min(1, part / whole)) : 0;
      fill.style.width = (v * 100).toFixed(1) + "%";
      element.hidden = !(whole > 0);
      mark(element, "class", "bar" + (calm ? " calm" : part > whole ? " over" : v >= 0.8 ? " full" : ""));
    },
  };
}

// cell is a table cell: a figure, and small print below it.
function cell(label, kind, ...extra) {
  const main = make("span"), note = make("small");
  const element = make("td", { class: kind, "data-label": label, role: "cell" }, main, ...extra, note);
  return {
    element, main,
    set(text, small = "") {
      say(main, text);
      say(note, small);
      note.hidden = small === "";
    },
  };
}

function replicaRow(first) {
  const name = cell("Replica", "head"), state = sign();
  name.main.className = "name";
  const stateCell = make("td", { class: "state-cell", "data-label": "State", role: "cell" }, state.element);
  const runBar = bar(true), kvBar = bar();
  const running = cell("In flight", "bars", runBar.element), kv = cell("KV cache", "bars", kvBar.element);
  const queued = cell("Queued there", "num"), hits = cell("Cache hits", "num"), token = cell("First token", "num");
  const total = cell("Requests", "num"), errors = cell("Errors", "num");
  const button = make("button", { type: "button" });
  const element = make("tr", { role: "row", "data-id": first.id }, name.element, stateCell, running.element, queued.element, kv.element,
    hits.element, token.element, total.element, errors.element, make("td", { class: "act wide", role: "cell" }, button));
  let replica = first;
  button.addEventListener("click", () => drainOrNot(replica));
  return {
    element,
    update(r) {
      replica = r;
      const st = states[r.state] ?? { level: "note", text: r.state, shape: "ring" };
      mark(element, "data-level", st.level);
      mark(element, "data-state", r.state);
      name.set(r.id, [r.model, r.kind + (r.version ? " " + r.version : ""), r.dp_rank === null ? "" : "rank " + r.dp_rank, r.source === "static" ? "" : r.source].filter(Boolean).join(" · "));
      state.set(st.level, st.shape, st.text);
      running.set(number(r.in_flight) + (r.max_running ? " of " + number(r.max_running) : ""));
      runBar.set(r.in_flight, r.max_running);
      queued.set(number(r.waiting), r.queued_tokens ? number(r.queued_tokens) + " tokens" : "");
      const used = r.load && r.load.used_tokens >= 0 ? r.load.used_tokens : r.kv_in_flight;
      kv.set(r.kv_tokens ? share(used / r.kv_tokens) : "–", r.kv_tokens ? "of " + short.format(r.kv_tokens) + " tokens" : "");
      kvBar.set(used, r.kv_tokens);
      hits.set(r.hit_actual === null ? "–" : share(r.hit_actual), r.hit_predicted === null ? "" : "expected " + share(r.hit_predicted));
      token.set(r.first_token_ms ? duration(r.first_token_ms.p50) : "–", r.first_token_ms ? "95 %: " + duration(r.first_token_ms.p95) : "");
      total.set(number(r.requests_total));
      errors.set(number(r.failures_total), r.last_failure ? r.last_failure.reason + ", " + ago(now(), Date.parse(r.last_failure.time)) : "");
      const undrain = r.state === "draining";
      say(button, undrain ? "Undrain" : "Drain");
      mark(button, "aria-label", (undrain ? "Undrain " : "Drain ") + r.id);
    },
  };
}

function queueRow() {
  const name = cell("Model", "head wide"), fill = bar();
  name.main.className = "name";
  const waiting = cell("Waiting", "bars", fill.element), longest = cell("Longest wait", "num"), leaving = cell("Leaving", "num");
  return {
    element: make("tr", { role: "row" }, name.element, waiting.element, longest.element, leaving.element),
    update(q) {
      name.set(q.model);
      waiting.set(number(q.waiting) + " of " + number(q.max_length));
      fill.set(q.waiting, q.max_length);
      longest.set(q.waiting ? duration(q.oldest_ms) : "–", "refused after " + duration(q.max_wait_ms).replace(/\.00? s/, " s"));
      leaving.set(q.waiting && q.dispatched_per_second ? rate(q.dispatched_per_second) + " a second" : "–");
    },
  };
}

const units = { requests: "requests a minute", tokens: "tokens a minute", input_tokens: "input tokens a minute", output_tokens: "output tokens a minute", concurrency: "at once" };

// meters are the limits of one key or model, each with its use.
function meters(stats) {
  const all = [];
  for (const s of stats) {
    const where = s.scope === "key_model" ? " on " + s.model : "";
    for (const r of s.rates) {
      const atOnce = r.burst === r.limit_per_minute ? "" : " at once";
      all.push({ id: s.scope + s.model + r.kind, label: units[r.kind] + where, used: r.used, whole: r.burst, text: part(r.used, r.burst) + atOnce, title: r.config_key });
    }
    if (s.concurrency) all.push({ id: s.scope + s.model + "c", label: units.concurrency + where, used: s.running, whole: s.concurrency, text: part(s.running, s.concurrency), title: "" });
  }
  return all;
}

function meterRow() {
  const label = make("span"), text = make("span"), fill = bar();
  const element = make("div", { class: "limit" }, make("div", { class: "row" }, label, text), fill.element);
  return {
    element,
    update(m) {
      say(label, m.label);
      say(text, m.text);
      fill.set(m.used, m.whole);
      if (m.title) mark(element, "title", m.title);
    },
  };
}

const reasons = { requests: "requests", tokens: "tokens", input_tokens: "input tokens", output_tokens: "output tokens", concurrency: "at once", too_large: "too large", queue_full: "queue full", queue_timeout: "waited too long", unavailable: "no Redis" };

function keyRow(first) {
  const name = cell("Key", "head wide"), running = cell("Running", "num"), waiting = cell("Waiting", "num");
  name.main.className = "name";
  const none = make("span", { class: "none" }, "no limits"), limitBox = make("div");
  const limits = new Rows(limitBox, meterRow);
  const chips = make("div", { class: "chips" }), noChips = make("span", { class: "none" }, "none");
  const refused = new Rows(chips, () => {
    const element = make("span", { class: "chip" });
    return { element, update: (c) => say(element, c.reason + " " + number(c.n)) };
  });
  const button = make("button", { type: "button", "aria-label": "Reset the limits of " + first.key }, "Reset");
  button.addEventListener("click", () => resetKey(first.key));
  const act = make("td", { class: "act wide", role: "cell" }, button);
  return {
    element: make("tr", { role: "row", "data-key": first.key }, name.element, running.element, waiting.element,
      make("td", { class: "bars wide", "data-label": "Use of limits", role: "cell" }, none, limitBox),
      make("td", { class: "wide", "data-label": "Refused", role: "cell" }, noChips, chips), act),
    update(k) {
      const notes = [];
      if (k.weight !== 1) notes.push("weight " + k.weight);
      if (k.share > 0) notes.push(share(k.share) + " of the work");
      name.set(k.key, notes.join(" · "));
      running.set(number(k.running));
      waiting.set(number(k.waiting));
      const all = meters(k.limits);
      none.hidden = all.length > 0;
      limits.update(all, (m) => m.id);
      const list = Object.entries(k.refusals).sort().map(([reason, n]) => ({ reason: reasons[reason] ?? reason, n }));
      noChips.hidden = list.length > 0;
      refused.update(list, (c) => c.reason);
      button.hidden = !k.limits.some((s) => s.rates.length);
    },
  };
}

// ---- trouble --------------------------------------------------------------

const levels = { bad: ["bad", "cross"], warn: ["warn", "triangle"], note: ["note", "circle"] };

function troubleRow() {
  const mood = sign(), what = make("p", { class: "what" }), text = make("p", { class: "text" }), todo = make("p", { class: "todo" });
  const tags = make("p", { class: "tags" }), when = make("p", { class: "ago" }), link = make("a", {}, "details of one"), tagText = make("span");
  tags.append(tagText, link);
  return {
    element: make("li", {}, mood.element, make("div", {}, what, text, todo, tags), when),
    update(t) {
      const [level, shape] = levels[t.level] ?? levels.note;
      mood.set(level, shape, "");
      say(what, t.title + (t.count ? " (" + number(t.count) + (t.count === 1 ? " request)" : " requests)") : ""));
      say(text, t.text ?? "");
      say(todo, t.advice ?? "");
      text.hidden = !t.text;
      todo.hidden = !t.advice;
      const names = [t.key && "key " + t.key, t.model && "model " + t.model, t.count && t.replica && "replica " + t.replica].filter(Boolean).join(" · ");
      say(tagText, names + (names && t.request_id ? " · " : ""));
      link.hidden = !t.request_id;
      if (t.request_id) mark(link, "href", "requests/" + encodeURIComponent(t.request_id));
      tags.hidden = !names && !t.request_id;
      say(when, ago(now(), Date.parse(t.last)));
    },
  };
}

// ---- all of it ------------------------------------------------------------

let state = null; // the last update
const now = () => Date.parse(state.time);

$("charts").append(...chartElements);

const replicaRows = new Rows($("replica-rows"), replicaRow);
const queueRows = new Rows($("queue-rows"), queueRow);
const keyRows = new Rows($("key-rows"), keyRow);
const modelLimits = new Rows($("model-limits"), (m) => {
  const row = meterRow(), element = make("li", { class: "limit" }, row.element);
  return { element, update: row.update };
});
const troubleRows = new Rows($("trouble"), troubleRow);

for (const table of document.querySelectorAll("table")) { // kept when a phone shows rows as blocks
  table.setAttribute("role", "table");
  for (const e of table.querySelectorAll("thead, tbody")) e.setAttribute("role", "rowgroup");
  for (const e of table.querySelectorAll("thead tr")) e.setAttribute("role", "row");
  for (const e of table.querySelectorAll("th")) e.setAttribute("role", "columnheader");
}

function render() {
  if (!state || document.hidden) return;
  const s = state;
  say($("summary"), s.summary.text);
  mark($("summary"), "data-level", s.summary.level);
  document.title = (s.summary.level === "ok" ? "" : "⚠ ") + "Penstock";
  replicaRows.update(s.replicas, (r) => r.id);
  say($("replica-count"), s.replicas.length ? String(s.replicas.length) : "");
  $("no-replicas").hidden = s.replicas.length > 0;
  queueRows.update(s.limits.queues, (q) => q.model);
  const ofModels = s.limits.models.flatMap((m) => meters(m.limits).map((x) => ({ ...x, id: m.model + x.id, label: m.model + ": " + x.label })));
  modelLimits.update(ofModels, (m) => m.id);
  $("model-limits-title").hidden = ofModels.length === 0;
  keyRows.update(s.limits.keys, (k) => k.key);
  say($("key-count"), s.keys_total > s.limits.keys.length ? "the " + s.limits.keys.length + " busiest of " + s.keys_total : String(s.keys_total));
  troubleRows.update(s.trouble, (t) => [t.title, t.code, t.key, t.model, t.replica].join("\n"));
  $("no-trouble").hidden = s.trouble.length > 0;
  $("reload").hidden = !s.can_reload;
  say($("about"), "Penstock " + s.version + " · up for " + since(now(), Date.parse(s.started_at)) + " · configuration " + s.config_hash.slice(0, 12) +
    ", in force for " + since(now(), Date.parse(s.config_loaded_at)) + " · limits counted in " + s.limits.mode + " · " + number(s.connections) + " client connections");
  drawCharts();
  tell(s.summary);
}

// tell has a screen reader hear when things get better or worse, not each second.
let toldLevel = "";
function tell(summary) {
  if (summary.level === toldLevel) return;
  if (toldLevel !== "") say($("announce"), summary.text);
  toldLevel = summary.level;
}

// ---- actions --------------------------------------------------------------

let adminKey = ""; // nowhere but here

// ask shows what is about to happen, asks for the admin key where one is needed
// and not known yet, and does it.
function ask({ title, text, button, path, done }) {
  const dialog = $("ask"), form = $("ask-form"), error = $("ask-error");
  const wantsKey = () => state.needs_key && adminKey === "";
  say($("ask-title"), title);
  say($("ask-text"), text);
  say($("ask-ok"), button);
  $("ask-key").hidden = !wantsKey();
  $("key").value = "";
  error.hidden = true;
  const fail = (text) => {
    say(error, text);
    error.hidden = false;
  };
  form.onsubmit = async (e) => {
    e.preventDefault();
    if (!$("ask-key").hidden) adminKey = $("key").value.trim();
    $("ask-ok").disabled = true;
    try {
      const r = await fetch(path, { method: "POST", cache: "no-store", credentials: "omit", headers: adminKey ? { Authorization: "Bearer " + adminKey } : {} });
      if (r.ok) {
        dialog.close();
        toast(done);
      } else if (r.status === 401) {
        adminKey = "";
        $("ask-key").hidden = false;
        $("key").value = "";
        fail("That is not the admin key.");
        $("key").focus();
      } else {
        const answer = await r.json().catch(() => null);
        fail(answer?.error?.message ?? "It did not work: status " + r.status + ".");
      }
    } catch {
      fail("The gateway does not answer.");
    } finally {
      $("ask-ok").disabled = false;
    }
  };
  dialog.showModal();
  (wantsKey() ? $("key") : $("ask-ok")).focus();
}
$("ask-cancel").addEventListener("click", () => $("ask").close());
$("ask").addEventListener("close", () => ($("key").value = ""));

let toastTimer = 0;
function toast(text) {
  const e = $("toast");
  e.hidden = false;
  say(e, text);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (e.hidden = true), 5000);
}

function drainOrNot(r) {
  const path = "replicas/" + r.id.split("/").map(encodeURIComponent).join("/");
  if (r.state === "draining") {
    ask({ title: "Undrain " + r.id + "?", text: "New requests are sent to it again.", button: "Undrain", path: path + "/undrain", done: r.id + " takes requests again." });
    return;
  }
  const others = state.replicas.some((o) => o.id !== r.id && o.model === r.model && o.usable);
  const text = others ? "New requests go to the other replicas; " + (r.in_flight ? "the " + number(r.in_flight) + " in flight here run to their end." : "nothing is in flight here.")
    : "It is the last replica of " + r.model + ": every request for that model will be refused.";
  ask({ title: "Drain " + r.id + "?", text, button: "Drain", path: path + "/drain", done: r.id + " gets no new requests." });
}

function resetKey(key) {
  ask({ title: "Reset the limits of " + key + "?", text: "Its requests and tokens of the last minutes are forgotten; it may use a full burst at once.", button: "Reset", path: "limits/" + encodeURIComponent(key) + "/reset", done: "The limits of " + key + " start afresh." });
}

$("reload").addEventListener("click", () => ask({
  title: "Reload the configuration?", text: "The file is read and checked. If it has a mistake, the configuration in force stays.", button: "Reload", path: "reload", done: "The configuration is in force.",
}));

// ---- the stream -----------------------------------------------------------

let source = null, lastUpdate = 0, hiddenAt = 0;

function link(level, text) {
  mark($("link"), "data-level", level);
  say($("link-text"), text);
  document.body.classList.toggle("stale", level === "bad" && state !== null);
}

function connect() {
  source?.close();
  source = new EventSource("events");
  lastUpdate = performance.now();
  source.addEventListener("history", (e) => {
    setHistory(JSON.parse(e.data) ?? []);
  });
  source.addEventListener("status", (e) => {
    state = JSON.parse(e.data);
    lastUpdate = performance.now();
    addPoint(state.point);
    link("ok", "live");
    render();
  });
  source.addEventListener("error", () => {
    link("bad", "not connected");
    if (source.readyState === EventSource.CLOSED) retry();
  });
}

let retryTimer = 0;
function retry() {
  clearTimeout(retryTimer);
  retryTimer = setTimeout(connect, 2000);
}

setInterval(() => {
  const silent = performance.now() - lastUpdate;
  if (document.hidden) {
    if (source && performance.now() - hiddenAt > 30000) { // nobody looks: the gateway need not count
      source.close();
      source = null;
    }
  } else if (silent > 4000) {
    link("bad", "no news for " + Math.round(silent / 1000) + " s");
    if (silent > 15000) connect();
  }
}, 1000);

document.addEventListener("visibilitychange", () => {
  hiddenAt = performance.now();
  if (document.hidden) return;
  if (!source) connect();
  render();
});

connect();
