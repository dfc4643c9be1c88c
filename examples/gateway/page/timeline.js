// One bar for each request: dashed while it waits, solid while it works.
import { attribute, size } from "./dom.js";

const SPANS = { "/export": 16000, "/report/{id}": 8000, "/document/{id}": 4000 };
const NAMES = { "/export": "Exports", "/report/{id}": "Reports", "/document/{id}": "Readers and writers" };
const rows = new Map();

export const forget = () => rows.clear();

// A request keeps its row for as long as it is drawn.
function rowsOf(route, visits) {
  const known = rows.get(route) || new Map();
  for (const id of known.keys()) if (!visits.some((visit) => visit.id === id)) known.delete(id);
  const taken = new Set(known.values());
  for (const { id } of visits) if (!known.has(id)) {
    let row = 0;
    while (taken.has(row)) row++;
    known.set(id, row);
    taken.add(row);
  }
  rows.set(route, known);
  return known;
}

export function timeline(svg, route, state) {
  const [width, height] = size(svg);
  const span = SPANS[route];
  const now = state.now_ms;
  const visits = state.requests.filter((visit) => visit.route === route && (visit.ended_ms ?? now) > now - span);
  const worked = visits.filter((visit) => visit.began_work_ms !== null).length;
  attribute(svg, "aria-label", `${NAMES[route]}, last ${span / 1000} seconds: ${visits.length} requests, of which ${worked} were let through to work`);
  if (!width) return;
  const known = rowsOf(route, visits);
  const count = Math.max(6, ...[...known.values()].map((row) => row + 1));
  const scale = { step: (height - 16) / count, at: (time) => Math.max(-2, width - (now - time) / span * width) };
  let drawn = "";
  for (let tick = span / 4; tick < span; tick += span / 4) {
    const x = (width - tick / span * width).toFixed(1);
    drawn += `<line class="base" x1="${x}" x2="${x}" y1="0" y2="${height - 14}"/><text x="${x}" y="${height - 3}" text-anchor="middle">−${tick / 1000} s</text>`;
  }
  for (const visit of visits) drawn += request(visit, known.get(visit.id), now, scale);
  svg.innerHTML = drawn;
}

const rect = (kind, x, y, width, height, round = "") =>
  `<rect class="${kind}" x="${x.toFixed(1)}" y="${y.toFixed(1)}" width="${width.toFixed(1)}" height="${height.toFixed(1)}"${round}/>`;

function request(visit, row, now, { step, at }) {
  const y = row * step + 2;
  const thick = Math.max(2, step - 2);
  const ended = visit.ended_ms ?? now;
  const worked = visit.began_work_ms;
  const from = at(visit.arrived_ms);
  const until = at(worked ?? ended);
  let drawn = "";
  if (until - from > 2) drawn += thick < 6 ? rect("thin", from, y + .5, until - from, thick - 1) : rect("wait", from, y + .5, until - from, Math.max(1, thick - 1), ' rx="2"');
  if (worked !== null) {
    const kind = visit.method === "PUT" ? "w" : visit.gateway.toLowerCase();
    const wide = Math.max(2, at(ended) - until);
    const inside = { w: "inw", a: "in", b: "inb" }[kind];
    drawn += rect(kind, until, y, wide, thick, ' rx="2"');
    if (wide > 16 && thick > 9) drawn += `<text class="${inside}" x="${(until + 5).toFixed(1)}" y="${(y + thick / 2 + 3.5).toFixed(1)}">${visit.gateway}</text>`;
  } else if (visit.status >= 400) drawn += rect("f", at(ended) - 2, y, 3, thick);
  return drawn;
}
