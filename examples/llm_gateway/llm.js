// The page of the token budgets.
import { $, attribute, fill, grouped, make, measure, num, set } from "./dom.js";
import { start } from "./live.js";

const ROWS = 8;

function describe(state) {
  if (state.error) return ["The store does not answer: requests are refused", "off"];
  return [state.traffic ? "Live" : "Live, without steady traffic", ""];
}

function pair(name, title, kind = "") {
  return make("div", {}, make("dt", {}, title), make("dd", { class: kind, "data-n": name }));
}

function add(name) {
  const level = make("div", { class: "level", role: "meter", "aria-label": `tokens of ${name}`, "aria-valuemin": 0 }, make("i", { class: "a" }), make("i", { class: "b" }));
  const large = make("dl", {}, pair(`${name}.tokens`, "tokens left", "accent"), pair(`${name}.held`, "held"), pair(`${name}.captured`, "captured"));
  const small = make("dl", { class: "small" }, pair(`${name}.requests`, "requests"), pair(`${name}.streams`, "streams"), pair(`${name}.admitted`, "admitted"), pair(`${name}.refused`, "429", "refused"), pair(`${name}.unavailable`, "503", "failed"));
  $("#tenants").append(make("section", { "data-tenant": name, "aria-labelledby": `h-${name}` }, make("h3", { id: `h-${name}` }, name), level, large, small));
}

// What is unknown is hatched: it is neither left nor used.
function tenant({ name, level, counts }, quota) {
  if (!$(`[data-tenant="${name}"]`)) add(name);
  const meter = $(`[data-tenant="${name}"] .level`);
  meter.classList.toggle("unknown", !level);
  const [captured, held] = meter.children;
  captured.style.width = `${level ? level.captured / quota.tokens * 100 : 0}%`;
  held.style.width = `${level ? level.held / quota.tokens * 100 : 0}%`;
  attribute(meter, "aria-valuemax", quota.tokens);
  attribute(meter, "aria-valuenow", level ? level.tokens : 0);
  attribute(meter, "aria-valuetext", level ? `${grouped(level.tokens)} left, ${grouped(level.held)} held, ${grouped(level.captured)} captured` : "unknown");
  for (const part of ["tokens", "held", "captured", "requests"]) num(`${name}.${part}`, level?.[part]);
  num(`${name}.streams`, counts.streams);
  num(`${name}.admitted`, counts.statuses[200] ?? 0);
  num(`${name}.refused`, counts.statuses[429] ?? 0);
  num(`${name}.unavailable`, counts.statuses[503] ?? 0);
}

const sum = (all, part) => all.reduce((total, one) => total + part(one), 0);
const cells = (...texts) => texts.map((text) => make("td", {}, String(text)));
const nothing = (columns, text) => [make("tr", {}, make("td", { colspan: columns, class: "muted" }, text))];

function streams({ streams: all }) {
  num("streams.count", all.length);
  num("streams.held", sum(all, ({ held }) => held));
  num("streams.used", sum(all, ({ used }) => used));
  const shown = all.slice(-ROWS).reverse();
  const body = $("#streams");
  fill(body, JSON.stringify(shown.map(({ id }) => id)), () => {
    if (!shown.length) return nothing(4, "No stream is under way.");
    return shown.map(({ tenant: name, gateway, held }) => make("tr", {}, ...cells(name, gateway, grouped(held)), make("td")));
  });
  shown.forEach(({ held, used }, index) => measure(body.children[index].lastChild, used / held, grouped(used)));
}

function ended({ ended: all, tenants }) {
  for (const part of ["captured", "returned", "left"]) num(`ended.${part}`, sum(tenants, ({ counts }) => counts[part]));
  fill($("#ended"), JSON.stringify(all.map(({ id }) => id)), () => {
    if (!all.length) return nothing(6, "No stream has ended so far.");
    return all.slice(0, ROWS).map((stream) => {
      const end = make("td", stream.left ? { class: "left-early" } : {}, stream.left ? "client left" : "complete");
      return make("tr", {}, ...cells(stream.tenant, stream.gateway, grouped(stream.held), grouped(stream.captured), grouped(stream.returned)), end);
    });
  });
}

function show(state) {
  set($("#state"), state.state === "in-memory" ? "the memory of this process" : "Redis");
  set($("#error"), state.error ?? "");
  for (const one of state.tenants) tenant(one, state.quota);
  streams(state);
  ended(state);
}

set($("#origin"), location.origin);
start({ show, describe, switches: { traffic: (state) => state.traffic } });
