// The way to the store, as each gateway sees it.
import { $, num, set } from "./dom.js";

function time(nanos) {
  if (nanos < 99950) return `${(nanos / 1000).toFixed(1)} µs`;
  if (nanos < 999500) return `${Math.round(nanos / 1000)} µs`;
  return `${(nanos / 1e6).toFixed(nanos < 1e7 ? 1 : 0)} ms`;
}

export function way(state) {
  for (const { name, latency_ns: latency, breaker, error } of state.gateways) {
    num(`latency.${name}`, latency === null ? (error ? null : "–") : time(latency));
    num(`breaker.${name}`, breaker);
    $(`[data-n="breaker.${name}"]`).classList.toggle("failed", breaker !== "closed");
    const dot = error ? "dot off" : latency === null ? "dot none" : "dot";
    const shown = $(`[data-dot=${name}]`);
    if (shown.className !== dot) shown.className = dot;
  }
  const error = state.gateways.map((gateway) => gateway.error).find(Boolean);
  const note = $("#store-note");
  note.classList.toggle("failed", Boolean(error));
  set(note, error || (state.state === "in-memory" ? "A call to the memory of this process. With REDIS_URL set, a call to Redis and back." : `A call to Redis and back, through the switch of this page. ${batches(state)}`));
}

// The mean over the last seconds.
const past = [];

export const forget = () => {
  past.length = 0;
};

function batches(state) {
  past.push(state.batches);
  if (past.length > 20) past.shift();
  const operations = state.batches.operations - past[0].operations;
  const calls = state.batches.batches - past[0].batches;
  return calls ? `${(operations / calls).toFixed(1)} operations per script call.` : "";
}
