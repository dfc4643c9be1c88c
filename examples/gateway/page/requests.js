// Requests under way: permits, flights, readers and writers, deliveries and leases.
import { $, attribute, fill, make, measure, num, set } from "./dom.js";
import { is, ok, total } from "./history.js";

// The requests to a route that have not ended.
function now(state, route) {
  const { waiting = 0, working = {} } = state.routes[route] || {};
  const { PUT: writing = 0, ...others } = working;
  return { waiting, writing, reading: Object.values(others).reduce((sum, count) => sum + count, 0) };
}

// How many permits other processes hold: what the store counted above our own, in each of the last events. What has just
// ended is counted for a moment longer.
const others = new Map();
function elsewhere(name, inUse, own) {
  const past = [...(others.get(name) || []), Math.max(0, inUse - own)].slice(-5);
  others.set(name, past);
  return past.length < 5 ? 0 : Math.min(...past);
}

// One slot for each permit. Without an answer of the store, nobody knows which are free.
export function slots(root, name, permits, working, state, queue = []) {
  const inUse = state.gateways[0].in_use[name];
  const isUnknown = inUse === undefined;
  const other = isUnknown ? 0 : elsewhere(name, inUse, working.length);
  const texts = Array.from({ length: permits }, (_, index) => {
    if (index < working.length) return ["on", working[index]];
    if (isUnknown) return ["unknown", "unknown"];
    return index < working.length + other ? ["other", "elsewhere"] : ["", "free"];
  });
  const sign = JSON.stringify([texts, queue]);
  attribute(root, "aria-label", `${permits} permits: ${texts.map(([, text]) => text).join(", ")}${queue.length ? `; next: ${queue.join(", ")}` : ""}`);
  fill(root, sign, () => {
    const shown = texts.map(([kind, text]) => make("span", { class: `slot ${kind}`.trim() }, make("span", {}, text)));
    if (queue.length) shown.push(make("span", { class: "sep" }, "next"), ...queue.map((text) => make("span", { class: "ticket" }, text)));
    return shown;
  });
}

export function permits(state) {
  // The latest ones; the numbers are those of all.
  const exports = state.requests.filter((visit) => visit.route === "/export" && visit.ended_ms === null);
  const working = exports.filter((visit) => visit.began_work_ms !== null);
  const waiting = exports.filter((visit) => visit.began_work_ms === null);
  const inUse = state.gateways[0].in_use.exports;
  num("exports.in_use", inUse === undefined ? null : `${inUse} of ${state.exports.limit}`);
  num("exports.waiting", now(state, "/export").waiting);
  num("exports.done", total(state, "/export", ok));
  const queue = waiting.slice(0, 6).map((visit) => `#${visit.id} ${visit.gateway}`);
  slots($("#slots"), "exports", state.exports.limit, working.map((visit) => `#${visit.id} · ${visit.gateway}`), state, queue);
}

export function flights(state) {
  const { arrived = 0, worked = 0, spared = 0 } = state.routes["/report/{id}"] || {};
  num("report.arrived", arrived);
  num("report.worked", worked);
  num("report.spared", spared);
  num("report.now", now(state, "/report/{id}").reading);
}

export function documents(state) {
  for (const [what, count] of Object.entries(now(state, "/document/{id}"))) num(`document.${what}`, count);
  num("document.done", total(state, "/document/{id}", ok));
}

function delivery(visit) {
  if (visit.status === 409) return ["dup", "duplicate"];
  if (visit.status === null) return ["", "in flight"];
  return visit.status >= 400 ? ["bad", "failed"] : ["ok", "handled"];
}

export function webhooks(state) {
  num("webhook.arrived", (state.routes["/webhook"] || {}).arrived || 0);
  num("webhook.handled", total(state, "/webhook", ok));
  num("webhook.duplicates", total(state, "/webhook", is(409)));
  num("webhook.failed", total(state, "/webhook", is(500)));
  const visits = state.requests.filter((visit) => visit.route === "/webhook");
  const messages = new Map();
  for (const visit of visits) messages.set(visit.webhook, [...(messages.get(visit.webhook) || []), visit]);
  // The last ones stay until there are newer ones.
  if (!messages.size && $("#chips").firstChild) return;
  fill($("#chips"), visits.map((visit) => `${visit.id}${visit.status}`).join(), () =>
    messages.size ? [...messages].slice(-3).map(([name, deliveries]) => message(name, deliveries)) : [make("li", { class: "muted" }, "No delivery so far.")]);
}

function message(name, deliveries) {
  const chips = deliveries.slice(-6).map((visit) => {
    const [kind, said] = delivery(visit);
    return make("span", { class: `chip ${kind}`.trim() }, visit.gateway, make("span", { class: "hidden" }, ` ${said}`));
  });
  return make("li", {}, make("span", { class: "mono name" }, name ?? "without an id"), ...chips);
}

const KINDS = { "/export": "permit", "/billing": "mutex", "/report/{id}": "flight", "/webhook": "claim" };
const ROWS = 5;
// The most time that each of them had left.
let longest = new Map();

export function forget() {
  others.clear();
  longest = new Map();
  for (const root of ["#leases", "#chips", "#slots"]) {
    $(root).replaceChildren();
    delete $(root).dataset.sign;
  }
}

export function leases(state) {
  num("billing.done", total(state, "/billing", ok));
  num("billing.refused", total(state, "/billing", is(423)));
  const held = state.requests.filter((visit) => visit.lease).sort((one, other) => one.arrived_ms - other.arrived_ms).slice(0, ROWS);
  longest = new Map(held.map(({ id, lease }) => [id, Math.max(longest.get(id) || 0, lease.left_ms)]));
  const body = $("#leases");
  fill(body, JSON.stringify(held.map(({ id }) => id)), () => {
    if (!held.length) return [make("tr", {}, make("td", { colspan: 5, class: "muted" }, "A and B hold nothing now."))];
    return held.map((visit) => {
      const kind = KINDS[visit.route] || (visit.method === "PUT" ? "writer" : "reader");
      const cells = [kind, visit.path, visit.gateway, String(visit.fence ?? "–")];
      return make("tr", { "data-lease": kind }, ...cells.map((cell, index) => make("td", { class: ["", "mono", "", "mono fence wide"][index] }, cell)), make("td"));
    });
  });
  held.forEach(({ id, lease: { left_ms: left, held: isHeld }, fence }, index) => {
    const cells = body.children[index].children;
    set(cells[3], String(fence ?? "–"));
    measure(cells[4], isHeld ? left / longest.get(id) : 0, isHeld ? `${(left / 1000).toFixed(1)} s` : "lost");
  });
}
