// A queue in the order of arrival beside a fair one: who works, who waits, and for how long.
import { $, attribute, make, measure, num, seconds, set } from "./dom.js";
import { slots } from "./requests.js";

// In the order of the columns.
const KINDS = ["fifo", "fair"];

export const forget = () => $("#tenants").replaceChildren();

export function queues(state) {
  const kinds = KINDS.map((kind) => [kind, state.queues[kind]]);
  for (const [kind, queue] of kinds) summary(kind, queue, state);
  // Bars of both queues have one scale.
  const most = Math.max(1, ...kinds.flatMap(([, { tenants }]) => tenants.map(({ lately }) => lately.wait_ms ?? 0)));
  const names = new Set(kinds.flatMap(([, { tenants }]) => tenants.map(({ name }) => name)));
  for (const name of names) if (!row(name)) add(name);
  for (const shown of $("#tenants").children) tenant(shown, kinds, most);
}

function summary(kind, { permits, tenants, modest }, state) {
  num(`${kind}.wait`, seconds(modest.wait_ms));
  num(`${kind}.turns`, modest.turns ?? "–");
  num(`${kind}.waiting`, tenants.reduce((sum, { waiting }) => sum + waiting, 0));
  const working = tenants.flatMap(({ name, working: count }) => Array(count).fill(name));
  slots($(`[data-queue=${kind}] .slots`), kind, permits, working, state);
}

const row = (name) => $(`[data-tenant="${name}"]`);

// In the order of their names: the greedy one is the first.
function add(name) {
  const cells = ["wide", "wide", "", "wide", "wide", ""].map((kind) => make("td", kind ? { class: kind } : {}));
  const added = make("tr", { "data-tenant": name }, make("th", { scope: "row" }, name), ...cells);
  const next = [...$("#tenants").children].find((other) => other.dataset.tenant > name);
  $("#tenants").insertBefore(added, next || null);
}

function tenant(shown, kinds, most) {
  kinds.forEach(([kind, { tenants }], index) => {
    const found = tenants.find(({ name }) => name === shown.dataset.tenant);
    const [waiting, served, wait] = [...shown.children].slice(1 + 3 * index);
    set(waiting, found?.waiting ?? 0);
    set(served, found?.lately.served ?? 0);
    const lately = found?.lately.wait_ms ?? null;
    attribute(wait, "data-wait", kind);
    measure(wait, (lately ?? 0) / most, seconds(lately));
  });
}
