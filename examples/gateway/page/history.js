// The last seconds of each chart, second by second: counts of what was answered.
import { attribute, grouped, set, size } from "./dom.js";

const SECONDS = 40;
// The rates are means of so many whole seconds.
const RATE_SECONDS = 8;
const charts = new Map();
const away = new Set();
let before = null;
let first = null;

export function forget() {
  charts.clear();
  away.clear();
  before = first = null;
}

function bins(name) {
  if (!charts.has(name)) charts.set(name, new Map());
  return charts.get(name);
}

// Adds what is new since the last event.
export function remember(state) {
  const second = Math.floor(state.now_ms / 1000);
  first ??= second + 1;
  if (state.away || state.gateways.some(({ error }) => error)) away.add(second);
  for (const old of away) if (old < second - SECONDS) away.delete(old);
  const counted = new Map();
  for (const { route, gateway, caller, status } of state.counts)
    for (const [code, count] of Object.entries(status)) counted.set(`${route} ${gateway} ${caller} ${code}`, count);
  if (before) for (const [name, count] of counted) {
    const more = count - (before.get(name) || 0);
    if (more > 0) add(name, second, more);
  }
  before = counted;
}

function add(name, second, more) {
  const [route, gateway, caller, code] = name.split(" ");
  const kind = code === "429" ? "r" : code < "400" ? gateway.toLowerCase() : "f";
  for (const chart of [route, `${route} ${caller}`]) {
    const seconds = bins(chart);
    const bin = seconds.get(second) || { a: 0, b: 0, r: 0, f: 0 };
    bin[kind] += more;
    seconds.set(second, bin);
    for (const old of seconds.keys()) if (old < second - SECONDS) seconds.delete(old);
  }
}

// How many were admitted per second; null before a whole second has passed.
export function rate(name, now) {
  const second = Math.floor(now / 1000);
  const from = Math.max(first ?? second, second - RATE_SECONDS);
  if (from >= second) return null;
  let admitted = 0;
  for (let at = from; at < second; at++) {
    const bin = bins(name).get(at);
    if (bin) admitted += bin.a + bin.b;
  }
  return admitted / (second - from);
}

// Bars of a chart, one for each second. Its name tells the same in words.
export function bars(svg, name, what, now, limit) {
  const [width, height] = size(svg);
  const second = Math.floor(now / 1000);
  const seconds = bins(name);
  const sum = { a: 0, b: 0, r: 0, f: 0 };
  let most = limit * 2;
  for (const bin of seconds.values()) {
    most = Math.max(most, bin.a + bin.b + bin.r + bin.f);
    for (const kind of Object.keys(sum)) sum[kind] += bin[kind];
  }
  attribute(svg, "aria-label", `${what}, last ${SECONDS} seconds: ${grouped(sum.a)} admitted by A, ${grouped(sum.b)} by B, ${grouped(sum.r)} over the limit, ${grouped(sum.f)} failed`);
  if (!width) return;
  const step = width / SECONDS;
  let drawn = "";
  for (let back = 0; back < SECONDS; back++) {
    const x = width - (back + 1) * step;
    if (away.has(second - back)) drawn += `<rect class="gone" x="${x.toFixed(1)}" y="0" width="${(step + .3).toFixed(1)}" height="${height}"/>`;
    drawn += bar(seconds.get(second - back), x, step, height, most);
  }
  const y = (height - 1 - limit / most * (height - 3)).toFixed(1);
  drawn += `<line class="base" x1="0" x2="${width}" y1="${height - .5}" y2="${height - .5}"/><line class="limit" x1="0" x2="${width}" y1="${y}" y2="${y}"/>`;
  drawn += `<text class="rate" x="2" y="${y - 3}">${limit}/s</text>`;
  svg.innerHTML = drawn;
}

function bar(bin, x, step, height, most) {
  let drawn = "";
  let y = height - 1;
  for (const kind of ["a", "b", "r", "f"]) {
    const part = bin ? bin[kind] / most * (height - 3) : 0;
    if (part) drawn += `<rect class="${kind}" x="${(x + 1).toFixed(1)}" y="${(y -= part).toFixed(1)}" width="${Math.max(1, step - 2).toFixed(1)}" height="${part.toFixed(1)}"/>`;
  }
  return drawn;
}

export function total(state, route, wanted, caller) {
  let sum = 0;
  for (const count of state.counts) {
    if (count.route !== route || (caller && count.caller !== caller)) continue;
    for (const [code, times] of Object.entries(count.status)) if (wanted(Number(code), count.gateway)) sum += times;
  }
  return sum;
}

export const ok = (code) => code < 300;
export const is = (wanted) => (code) => code === wanted;
export const text = (element, count) => set(element, grouped(count));
