// Elements, texts and numbers of a page.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// Nothing is written that is there already: what changes is what a screen reader and a selection notice.
export function set(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

export function attribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

export const grouped = (number) => number.toLocaleString("en").replaceAll(",", "\u202f");

// Shows a number by its name. What is not known is shown as such.
export function num(name, value) {
  const element = $(`[data-n="${name}"]`);
  const isUnknown = value === null || value === undefined;
  element.classList.toggle("unknown", isUnknown);
  set(element, isUnknown ? "unknown" : typeof value === "number" ? grouped(value) : value);
}

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Replaces children only if what they say is new.
export function fill(root, sign, children) {
  if (root.dataset.sign === sign) return;
  root.dataset.sign = sign;
  root.replaceChildren(...children());
}

// A cell with a bar, and its text.
export function measure(cell, share, text) {
  if (!cell.firstChild) cell.append(make("span", { class: "measure" }, make("i", { "aria-hidden": "true" }, make("i")), make("span")));
  const [bar, label] = cell.firstChild.children;
  bar.firstChild.style.width = `${Math.min(100, share * 100).toFixed(1)}%`;
  set(label, text);
  return cell;
}

// The sizes of charts, which are read when they change and not at each event.
const sizes = new WeakMap();
const observer = new ResizeObserver((entries) => {
  for (const { target } of entries) sizes.set(target, [target.clientWidth, target.clientHeight]);
});
export function size(svg) {
  if (!sizes.has(svg)) {
    sizes.set(svg, [svg.clientWidth, svg.clientHeight]);
    observer.observe(svg);
  }
  return sizes.get(svg);
}

export const seconds = (millis) => (millis === null || millis === undefined ? "–" : `${(millis / 1000).toFixed(2)} s`);
