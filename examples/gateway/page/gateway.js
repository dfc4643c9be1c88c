// The page of the gateway.
import { $, $$, set } from "./dom.js";
import { start } from "./live.js";
import * as history from "./history.js";
import * as limits from "./limits.js";
import * as queues from "./queues.js";
import * as requests from "./requests.js";
import * as store from "./store.js";
import * as timelines from "./timeline.js";

let version = "";

function place(state) {
  version = state.gateways[0].version || version;
  if (state.state === "in-memory") return "the memory of this process";
  return version ? `Redis ${version}` : "Redis";
}

function outage(state) {
  if (state.cut) return "Meanwhile the page cuts the connections to Redis.";
  if (state.state === "in-memory") return "The memory of this process cannot go away, so meanwhile A and B call a Redis server that is not running.";
  return "The page cannot cut these connections, so meanwhile A and B call a Redis server that is not running.";
}

function describe(state) {
  if (state.away) return ["The store is switched off", "off"];
  if (state.gateways.some(({ error }) => error)) return ["The store does not answer", "off"];
  return [state.traffic ? "Live" : "Live, without steady traffic", ""];
}

function show(state) {
  set($("#how"), outage(state));
  set($("#state"), place(state));
  store.way(state);
  limits.counted(state);
  limits.policies(state);
  limits.limited(state);
  queues.queues(state);
  requests.permits(state);
  requests.flights(state);
  requests.documents(state);
  requests.webhooks(state);
  requests.leases(state);
  limits.refused(state);
  for (const svg of $$("[data-line]")) timelines.timeline(svg, svg.dataset.line, state);
}

function reset() {
  for (const part of [history, limits, queues, requests, store, timelines]) part.forget();
}

start({
  remember: history.remember,
  show,
  reset,
  describe,
  switches: { store: (state) => !state.away, traffic: (state) => state.traffic },
});
