// The events of a gateway, its buttons, and what the page says about both.
import { $, attribute, set } from "./dom.js";

// An event comes several times a second. Without one for this long, what the page shows is old.
const STALE_MS = 3000;
const ANSWER_MS = 5000;
const HIDDEN_MS = 60000;

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const wanted = new Map();
let page;
let source = null;
let last = null;
let heard = performance.now();
let shownSecond = -1;
let hiddenTimer = 0;

// `remember` gets each state, and `show` those that are drawn. `reset` is called before the first state of another process.
// `switches` tells by their ids which are on, and `describe` returns a text and a kind: "" or "off".
export function start(callbacks) {
  page = callbacks;
  document.addEventListener("click", pressed);
  document.addEventListener("visibilitychange", looked);
  setInterval(watch, 500);
  connect();
}

function connect() {
  source?.close();
  heard = performance.now();
  source = new EventSource("/events");
  source.onmessage = ({ data }) => received(JSON.parse(data));
  // It connects again by itself, unless the answer was no stream of events.
  source.onerror = () => stale("No connection to the gateway, trying again");
}

const opened = performance.now();
function received(state) {
  document.body.dataset.firstEventMs ??= Math.round(performance.now() - opened);
  heard = performance.now();
  document.body.classList.remove("stale");
  if (last && last.started_ms !== state.started_ms) {
    wanted.clear();
    shownSecond = -1;
    page.reset?.();
  }
  last = state;
  page.remember?.(state);
  document.body.dataset.nowMs = state.now_ms;
  document.body.dataset.events = Number(document.body.dataset.events || 0) + 1;
  const second = Math.floor(state.now_ms / 1000);
  // With reduced motion, charts move once a second.
  if (document.hidden || (calm.matches && second === shownSecond)) return;
  shownSecond = second;
  draw(state);
}

function draw(state) {
  for (const [id, isOn] of Object.entries(page.switches)) reflect(id, isOn(state), state);
  say(...page.describe(state));
  page.show(state);
}

// A state that was sent before the gateway had the click would move the switch back.
function reflect(id, on, state) {
  const click = wanted.get(id);
  if (click && !(click.confirmed < state.now_ms)) return;
  wanted.delete(id);
  attribute($(`#${id}`), "aria-checked", on);
}

function watch() {
  if (!source || performance.now() - heard < STALE_MS) return;
  stale("The gateway does not answer");
  if (source.readyState === EventSource.CLOSED) connect();
}

function stale(text) {
  document.body.classList.add("stale");
  say(text, "off");
}

// Nobody looks: the gateway need not send anything, and other tabs need the connection.
function looked() {
  clearTimeout(hiddenTimer);
  if (document.hidden) {
    hiddenTimer = setTimeout(() => {
      source?.close();
      source = null;
    }, HIDDEN_MS);
  } else if (!source) {
    connect();
  } else if (last) {
    draw(last);
  }
}

function say(text, kind = "") {
  const className = `dot ${kind}`.trim();
  const dot = $("#status .dot");
  if (dot.className !== className) dot.className = className;
  set($("#status b"), text);
}

// What became of the last click.
const tell = (text) => set($("#status span"), text);

// One after the other: two clicks on a switch arrive in their order.
let queue = Promise.resolve();
function post(path) {
  const sent = queue.then(async () => {
    const response = await fetch(path, { method: "POST", signal: AbortSignal.timeout(ANSWER_MS) });
    if (!response.ok) throw new Error(`status ${response.status}`);
    return response.json();
  });
  queue = sent.catch(() => {});
  return sent;
}

function pressed(event) {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.getAttribute("role") === "switch") toggle(button);
  else burst(button);
}

async function toggle(button) {
  const on = button.getAttribute("aria-checked") !== "true";
  const click = {};
  wanted.set(button.id, click);
  // Shown at once, so that a second click is the opposite.
  attribute(button, "aria-checked", on);
  tell("");
  try {
    const { now_ms: now } = await post(button.dataset[on ? "on" : "off"]);
    click.confirmed = now;
  } catch {
    if (wanted.get(button.id) === click) wanted.delete(button.id);
    tell("the click was not answered");
  }
}

// A second click before the answer to the first one sends nothing.
async function burst(button) {
  if (button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true");
  try {
    const { sent } = await post(`/burst/${button.dataset.burst}`);
    tell(`${sent} ${sent === 1 ? "request" : "requests"} sent`);
  } catch {
    tell("the click was not answered");
  } finally {
    button.removeAttribute("aria-disabled");
  }
}
