// The live page of paced: connects the daemon's state with the cards, the header and the dialogs.

import { Client } from "./api.js";
import { Card, rankOf, stateOf } from "./card.js";
import { DeadDialog } from "./dead.js";
import { ChangeDialog, TokenDialog } from "./dialogs.js";
import { byId, setAttribute, setShown, setText, syncRows } from "./dom.js";
import { FindDialog } from "./find.js";
import { History } from "./history.js";
import { Live } from "./live.js";
import { clock, count, countOf, span } from "./words.js";

/** From how many downstreams on there is a table of rows, with a filter, and not a card for each. */
const MANY = 9;
/** Up to how many downstreams the cards show their details without being asked. */
const FEW = 3;
/** How many cards are drawn before it is known which are in sight. */
const AT_ONCE = 24;
/** How long the order of cards stays as it is after the pointer moved over them, in ms. */
const POINTER_REST = 5000;

const order = new Intl.Collator("en", { numeric: true });
const cards = byId("cards");

/** What the cards share. */
const context = { now: Date.now(), fleet: new Map(), history: new History(), areMany: false };

let state = null;
/** The names of the downstreams, in the order of the cards. */
let names = [];
/** The daemon's clock minus this one, in ms. */
let clockOffset = 0;
let isDrawingPlanned = false;
let pointerMovedAt = 0;

// Drawing

/** Draws before the next frame; several changes until then are drawn once. */
function planDrawing() {
  if (isDrawingPlanned) return;
  isDrawingPlanned = true;
  requestAnimationFrame(() => {
    isDrawingPlanned = false;
    draw();
  });
}

function draw() {
  const isFirst = cards.childElementCount === 0;
  context.now = Date.now() + clockOffset;
  context.fleet = new Map((state.replicas ?? []).map((replica) => [replica.id, replica]));
  drawHeader();
  names = sortedNames();
  context.areMany = names.length >= MANY;
  syncRows(cards, names, {
    key: (name) => name,
    make: makeCard,
    update: (card, name) => card.show(state.downstreams.get(name)),
  });
  cards.classList.toggle("many", context.areMany);
  applyFilter();
  if (isFirst) measureFirstDraw();
}

function makeCard(name) {
  const card = new Card(name, context, nearCards.size < AT_ONCE);
  if (card.isNear) nearCards.add(card);
  cardOf.set(card.element, card);
  // Few cards are drawn all the time, wherever they are.
  if (state.downstreams.size >= MANY) nearness.observe(card.element);
  if (state.downstreams.size <= FEW) card.open();
  return card;
}

const cardOf = new WeakMap();
const nearCards = new Set();

/** Keeps track of the cards in sight: only they are drawn all the time. */
const nearness = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const card = cardOf.get(target);
    card.isNear = isIntersecting;
    if (isIntersecting) nearCards.add(card);
    else nearCards.delete(card);
    if (isIntersecting) card.draw();
  }
}, { rootMargin: "300px" });

/** Brings what depends on the time up to date. While nothing comes from the daemon, time stands still on the page too. */
function tick() {
  const isCut = !byId("cut").hidden;
  if (state === null || isCut || document.hidden) return;
  context.now = Date.now() + clockOffset;
  for (const card of nearCards) {
    if (card.element.isConnected) card.draw();
    else nearCards.delete(card);
  }
}

/** Shows the browser's performance tools how long it took from the first state until it was painted. */
function measureFirstDraw() {
  // A task that is queued during a frame runs after it was painted.
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => {
    performance.measure("paced:first-draw", "paced:data");
    port1.close();
  };
  requestAnimationFrame(() => port2.postMessage(null));
}

// Order and filter

/** The names in their order: what needs somebody first. The order stays while the reader is at the cards. */
function sortedNames() {
  const { downstreams } = state;
  if (isReaderAtCards() && names.length === downstreams.size && names.every((name) => downstreams.has(name))) return names;
  const rank = new Map([...downstreams].map(([name, downstream]) => [name, rankOf(downstream)]));
  return [...downstreams.keys()].sort((one, other) => rank.get(one) - rank.get(other) || order.compare(one, other));
}

function isReaderAtCards() {
  const hasFocus = cards.contains(document.activeElement);
  const isPointing = cards.matches(":hover") && performance.now() - pointerMovedAt < POINTER_REST;
  return hasFocus || isPointing || document.querySelector("dialog[open]") !== null;
}

function applyFilter() {
  const { downstreams } = state;
  const wanted = byId("filter").value.trim().toLowerCase();
  let shown = 0;
  for (const element of cards.children) {
    const { name } = element.dataset;
    const isShown = name.toLowerCase().includes(wanted) || stateOf(downstreams.get(name)).word.includes(wanted);
    setShown(element, isShown);
    shown += isShown;
  }
  setShown(byId("filter-field"), downstreams.size >= MANY);
  setText(byId("filter-count"), wanted ? `${count(shown)} of ${count(downstreams.size)}` : "");
  setShown(byId("empty"), shown === 0);
  setText(byId("empty"), downstreams.size ? `No downstream is called or is ${wanted}.` : "No downstream is configured.");
}

// The header

function drawHeader() {
  const { version, can_change: canChange, replicas, silent, unroutable, orphans } = state;
  setText(byId("version"), version ?? "");
  setShown(byId("loading"), false);
  setShown(byId("health"), true);
  drawHealth(byId("store"), storeHealth(state.store));
  drawHealth(byId("broker"), brokerHealth(state.amqp));
  drawFleet(replicas ?? [], silent ?? []);
  setShown(byId("read-only"), canChange === false);
  document.body.classList.toggle("read-only", canChange === false);
  setShown(byId("unroutable"), unroutable > 0);
  setText(byId("unroutable-count"), countOf(unroutable, "message"));
  setShown(byId("orphans"), orphans?.length > 0);
  setText(byId("orphan-names"), (orphans ?? []).map(orphanText).join(", "));
  document.title = titleText();
}

function orphanText({ name, since }) {
  return since == null ? name : `${name} (for ${span(context.now - since)})`;
}

function drawHealth(element, { text, isGood }) {
  setText(element, text);
  setAttribute(element, "data-tone", isGood ? "good" : "bad");
}

function storeHealth({ kind, connected, error }) {
  const name = { memory: "Store in memory", file: "File store" }[kind] ?? "Redis";
  return { text: name + (connected ? " connected" : ` away${error ? `: ${error}` : ""}`), isGood: connected };
}

function brokerHealth({ connected, lost, unconfirmed }) {
  const isGood = connected && !lost?.length && !unconfirmed?.length;
  if (!connected) return { text: "RabbitMQ away", isGood };
  if (unconfirmed?.length && !lost?.length) {
    return { text: `RabbitMQ connected, but it does not confirm messages to ${unconfirmed.join(", ")}`, isGood };
  }
  return { text: isGood ? "RabbitMQ connected" : `RabbitMQ connected, but not for ${lost.join(", ")}`, isGood };
}

/** The tab too shows how many downstreams need somebody. */
function titleText() {
  const wrong = [...state.downstreams.values()].filter((downstream) => rankOf(downstream) === 0).length;
  return wrong ? `(${wrong}) paced` : "paced";
}

function drawFleet(replicas, silent) {
  setShown(byId("fleet"), replicas.length > 0);
  const others = silent.length ? `, ${count(silent.length)} ${state.store.connected ? "silent" : "unknown"}` : "";
  setText(byId("fleet-summary"), `${countOf(replicas.length, "replica")}${others}`);
  syncRows(byId("replicas"), [...replicas, ...silent.slice(0, 10)], {
    key: (replica) => replica.id,
    make: () => ({ element: document.createElement("li") }),
    update: ({ element }, replica) => setText(element, replica.version ? replicaText(replica) : silentText(replica)),
  });
}

function silentText({ host, pid, seen_at: seen }) {
  return `${host}, process ${pid}, silent for ${span(context.now - seen)}`;
}

function replicaText({ host, pid, version, started_at: started, seen_at: seen, is_me: isMe, amqp, store }) {
  const facts = [`${host}, process ${pid}`, version];
  if (started != null) facts.push(`up for ${span(context.now - started)}`);
  if (isMe) facts.push("answers this page");
  else if (seen != null) facts.push(`seen ${clock(seen)}`);
  if (amqp === false) facts.push("RabbitMQ away");
  if (store === false) facts.push("store away");
  return facts.join(" · ");
}

// Live, and not

function takeState(next, former) {
  context.history.count(next, former);
  state = next;
  clockOffset = next.now - Date.now();
  planDrawing();
}

function takeHistory(history) {
  context.history.load(history, state);
  tick();
}

function showCut(reason, lastHeard, retryAt) {
  const since = lastHeard === null ? "Not live" : `Not live since ${clock(lastHeard)}`;
  const wait = retryAt === null ? 0 : retryAt - Date.now();
  byId("cut-text").textContent = `${since}: ${reason}.${wait >= 1000 ? ` The next attempt is in ${span(wait)}.` : ""}`;
  setShown(byId("cut"), true);
  setShown(byId("loading"), false);
}

/** Shows the outcome of a change; it stays until the next one, or until it is closed. */
function showOutcome(text) {
  byId("outcome-text").textContent = text;
  setShown(byId("outcome-close"), text !== "");
}

function drawToken() {
  byId("token-button").textContent = client.hasToken ? "Token: given" : "Token…";
}

// Wiring

const tokenDialog = new TokenDialog((token) => {
  client.useToken(token);
  drawToken();
  live.retry();
});
const client = new Client((why) => tokenDialog.ask(why));
context.client = client;
const changeDialog = new ChangeDialog(client, showOutcome);
const deadDialog = new DeadDialog(client, changeDialog);
const findDialog = new FindDialog(client, changeDialog);
const live = new Live(client, {
  state: takeState,
  history: takeHistory,
  live: () => setShown(byId("cut"), false),
  cut: showCut,
});

/** Opens the dialog of a card's button. */
async function act(button) {
  const { action, limit } = button.dataset;
  const card = button.closest("[data-name]");
  const downstream = state.downstreams.get(card.dataset.name);
  if (action === "dead") deadDialog.open(downstream.name);
  else if (action === "find") findDialog.open(downstream.name);
  else await changeDialog.open(action, downstream, limit === undefined ? {} : { subject: limit, fixed: { limit } });
  // The button may have gone while the dialog was open: one of a note with its note, and Resume with the pause. Until the page is
  // drawn again the focus stays in the dialog that is closed.
  const focused = document.activeElement;
  const isLost = focused === document.body || focused.closest("dialog:not([open])");
  if (isLost) card.querySelector(`[data-action="${action === "resume" ? "pause" : "rate"}"]`)?.focus();
}

cards.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-action]");
  if (button) act(button);
});
cards.addEventListener("pointermove", () => {
  pointerMovedAt = performance.now();
}, { passive: true });
byId("filter").addEventListener("input", () => state && applyFilter());
byId("token-button").addEventListener("click", () => tokenDialog.open());
byId("cut-retry").addEventListener("click", () => live.retry());
byId("outcome-close").addEventListener("click", () => {
  showOutcome("");
  byId("token-button").focus();
});
setInterval(tick, 1000);
live.run();
