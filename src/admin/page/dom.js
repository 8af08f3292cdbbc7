// Helpers for the document. Everything that comes from the daemon is inserted as text, never as HTML.

import { clock, rfc3339 } from "./words.js";

/** The element with this id. The page's own HTML has every id that is asked for. */
export function byId(id) {
  return document.getElementById(id);
}

/** A copy of a template's element, together with its named parts: `{ element, [part]: element }`. */
export function stamp(templateId) {
  const element = byId(templateId).content.firstElementChild.cloneNode(true);
  const row = { element };
  for (const part of element.querySelectorAll("[data-part]")) row[part.dataset.part] = part;
  return row;
}

const textOf = new WeakMap();

/** Sets the text of an element, if it is another one than before: most figures do not change in a second. */
export function setText(element, text) {
  if (textOf.get(element) === text) return;
  textOf.set(element, text);
  element.textContent = text;
}

/** Sets an attribute, if it is another one than before. */
export function setAttribute(element, name, text) {
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** Shows or hides an element. */
export function setShown(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

/** Shows `text` in a `<time>` element; pointing at it shows the instant in RFC 3339. */
export function setTime(element, at, text) {
  setText(element, text);
  const exact = at == null ? "" : rfc3339(at);
  if (element.title === exact) return;
  element.title = exact;
  if (exact) element.dateTime = exact;
  else element.removeAttribute("datetime");
}

/** A new element with a text. */
export function create(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}

/** A new `<time>` element with the instant in the reader's time. */
export function createTime(at) {
  const element = document.createElement("time");
  setTime(element, at, clock(at));
  return element;
}

const INSTANT = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))/;

/** Sets a text of the daemon. Instants in it are shown in the reader's time. */
export function setProse(element, text) {
  if (textOf.get(element) === text) return;
  textOf.set(element, text);
  // Split by a group, every second piece is an instant.
  const pieces = text.split(INSTANT);
  element.replaceChildren(...pieces.map((piece, at) => (at % 2 ? createTime(Date.parse(piece)) : piece)));
}

const rowsOf = new WeakMap();

/**
 * Makes the children of `container` those of `items`, in their order. The row of a key is made once by `make`, brought up
 * to date by `update`, and moved only if its place changed. A row is an object with an `element`.
 */
export function syncRows(container, items, { key, make, update }) {
  const former = rowsOf.get(container) ?? new Map();
  const rows = new Map(items.map((item) => [key(item), former.get(key(item)) ?? make(item)]));
  for (const [name, row] of former) {
    if (!rows.has(name)) row.element.remove();
  }
  items.forEach((item) => update(rows.get(key(item)), item));
  let place = container.firstElementChild;
  for (const { element } of rows.values()) {
    if (element === place) place = place.nextElementSibling;
    else container.insertBefore(element, place);
  }
  rowsOf.set(container, rows);
}
