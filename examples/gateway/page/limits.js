// The limits: counted together and alone, during an outage, by client, and what they refused.
import { $, $$, attribute, fill, make, measure, num, set } from "./dom.js";
import { bars, is, ok, rate, text, total } from "./history.js";

export function counted(state) {
  const gone = state.away || state.gateways.some(({ error }) => error);
  for (const root of $$("[data-counted]")) {
    const name = root.dataset.counted;
    const route = `/counted/${name}`;
    const admitted = rate(route, state.now_ms);
    num(`${name}.rate`, admitted === null ? "–" : admitted.toFixed(1));
    bars($("svg", root), route, $("h3", root).textContent, state.now_ms, state.counted.rate);
    root.classList.toggle("away", gone);
  }
}

export function policies(state) {
  for (const root of $$("[data-policy]")) {
    const name = root.dataset.policy;
    const route = `/policy/${name}`;
    num(`${name}.admitted`, total(state, route, ok));
    num(`${name}.refused`, total(state, route, is(429)));
    num(`${name}.unavailable`, total(state, route, is(503)));
    bars($("svg", root), route, $("h3", root).textContent, state.now_ms, state.limited.rate);
  }
}

// Once a client is shown, it keeps its row.
const CLIENTS = 3;
const clients = [];

export function forget() {
  clients.length = 0;
  $("#keys").replaceChildren();
}

export function limited(state) {
  num("limited.admitted", total(state, "/limited", ok));
  num("limited.refused", total(state, "/limited", is(429)));
  num("limited.unavailable", total(state, "/limited", is(503)));
  const callers = state.counts.filter((count) => count.route === "/limited").map((count) => count.caller);
  for (const caller of [...new Set(callers)].sort()) if (!clients.includes(caller) && clients.length < CLIENTS) addClient(caller, state.limited.burst);
  for (const caller of clients) client(caller, state);
}

function addClient(caller, burst) {
  clients.push(caller);
  const gauge = make("div", { class: "gauge", role: "meter", "aria-label": `tokens of ${caller}`, "aria-valuemin": 0, "aria-valuemax": burst }, ...Array.from({ length: burst }, () => make("i")));
  const tokens = make("b", { class: "muted tokens", "aria-hidden": "true", "data-tokens": caller });
  const nums = make("dl", { class: "nums" }, ...["A", "B", "refused"].map((name) => make("div", {}, make("dt", {}, name), make("dd", {}))));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "chart");
  svg.setAttribute("role", "img");
  $("#keys").append(make("div", { class: "key", role: "listitem", "data-caller": caller }, make("div", {}, make("span", { class: "name mono" }, caller), tokens, gauge), svg, nums));
}

function client(caller, state) {
  const row = $(`[data-caller="${CSS.escape(caller)}"]`);
  const { rate: limit, burst } = state.limited;
  const level = state.gateways[0].tokens[caller];
  const isUnknown = level === undefined;
  row.classList.toggle("unknown", isUnknown);
  set($("[data-tokens]", row), isUnknown ? "tokens unknown" : `${level} of ${burst}`);
  const gauge = $(".gauge", row);
  attribute(gauge, "aria-valuetext", isUnknown ? "unknown" : `${level} of ${burst}`);
  attribute(gauge, "aria-valuenow", isUnknown ? 0 : level);
  [...gauge.children].forEach((segment, index) => segment.classList.toggle("on", index < (level ?? 0)));
  const [a, b, refused] = $$(".nums dd", row);
  text(a, total(state, "/limited", (code, gateway) => ok(code) && gateway === "A", caller));
  text(b, total(state, "/limited", (code, gateway) => ok(code) && gateway === "B", caller));
  text(refused, total(state, "/limited", is(429), caller));
  bars($("svg", row), `/limited ${caller}`, `Requests of ${caller}`, state.now_ms, limit);
}

export function refused(state) {
  const most = Math.max(1, ...state.refused.map((one) => one.at_most));
  const shown = state.refused.slice(0, 4);
  fill($("#refused"), JSON.stringify(shown), () => {
    if (!shown.length) return [make("tr", {}, make("td", { colspan: 2, class: "muted" }, "Nothing was refused so far."))];
    return shown.map(({ key, at_least: least, at_most: top }) =>
      make("tr", {}, make("th", { scope: "row", class: "mono" }, key), measure(make("td"), top / most, least === top ? String(top) : `${least}–${top}`)));
  });
}
