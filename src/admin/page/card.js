// The card of a downstream: made once, and brought up to date where something changed.

import { Changes, describe } from "./changes.js";
import { Chart } from "./chart.js";
import { Details } from "./details.js";
import { setAttribute, setProse, setShown, setText, setTime, stamp, syncRows } from "./dom.js";
import { clock, count, countOf, kindsOf, microseconds, pace, periodFor, roughClock, span, unknown } from "./words.js";

/** What binds a downstream, in a word, and how bad that is. */
const STATES = {
  idle: { word: "idle", tone: "quiet" },
  limit: { word: "at its limit", tone: "plain" },
  concurrency: { word: "at its concurrency", tone: "plain" },
  "not-due": { word: "not due", tone: "quiet" },
  starting: { word: "starting", tone: "quiet" },
  paused: { word: "paused", tone: "warn" },
  resuming: { word: "resuming", tone: "quiet" },
  throttled: { word: "throttled", tone: "warn" },
  store: { word: "store away", tone: "bad" },
  broker: { word: "broker away", tone: "bad" },
  unreachable: { word: "unreachable", tone: "bad" },
  unauthorized: { word: "unauthorized", tone: "bad" },
  terms: { word: "terms unusable", tone: "bad" },
};
const FAILING = { word: "failing", tone: "bad" };

/** For how long a count is shown that has become 0, in ms: many are 0 at times, and all others would move. */
const KEPT = 10_000;

/** How many tenants are named for which an operator set something. */
const MOST_VALUES = 10;

const COUNTS = ["waiting", "queued", "delayed", "retrying", "parked", "held", "sending", "settling"];

/** The state of a downstream: a `word`, and a `tone` (quiet, plain, warn or bad). */
export function stateOf({ binding, failing, pause }) {
  const state = STATES[binding?.reason] ?? { word: binding?.reason ?? "not known", tone: "plain" };
  if (failing && state.tone !== "bad") return FAILING;
  // A pause that holds no job back yet is still one that somebody must end.
  return pause && state.tone === "quiet" ? STATES.paused : state;
}

/** The place of a downstream on the page: 0 is what needs somebody, 1 what may, 2 the rest. */
export function rankOf(downstream) {
  const { tone } = stateOf(downstream);
  if (tone === "bad") return 0;
  return tone === "warn" || downstream.dead > 0 ? 1 : 2;
}

let cardsMade = 0;

/**
 * A card. `context` is what all cards share: `now` on the daemon's clock, `fleet` (replicas by id), `history`, `client`, and
 * whether each is a row that the reader may open, as there are many (`areMany`).
 */
export class Card {
  /** Whether the card is in sight or near it. Of others only the head is drawn, until they come there. */
  isNear;
  #context;
  #parts = stamp("card-template");
  #body = null;
  /** Whether the reader has opened the row. */
  #isOpened = false;
  #downstream = null;
  /** The state that the body shows. */
  #drawn = null;
  #chart = null;
  #chartKey = null;
  #details = null;
  /** The changes by operators. They are read for those who open the details. */
  #changes;
  /** When each count was last another one than 0. */
  #filledAt = {};

  constructor(name, context, isNear) {
    this.#context = context;
    this.isNear = isNear;
    this.#changes = new Changes(context.client, name, () => this.#drawChanges());
    const { element, name: heading } = this.#parts;
    cardsMade += 1;
    heading.id = `downstream-${cardsMade}`;
    element.firstElementChild.setAttribute("aria-labelledby", heading.id);
    element.dataset.name = name;
    setText(heading, name);
    const { toggle } = this.#parts;
    toggle.setAttribute("aria-label", `Open ${name}`);
    toggle.addEventListener("click", () => {
      this.#isOpened = !this.#isOpened;
      setAttribute(toggle, "aria-expanded", String(this.#isOpened));
      setText(toggle, this.#isOpened ? "Close" : "Open");
      toggle.setAttribute("aria-label", `${toggle.textContent} ${name}`);
      this.draw();
    });
  }

  get element() {
    return this.#parts.element;
  }

  /** Takes the downstream's state, and draws it as far as it can be seen. */
  show(downstream) {
    if (this.#downstream === downstream) return;
    this.#downstream = downstream;
    const { word, tone } = stateOf(downstream);
    setText(this.#parts.state, word);
    setAttribute(this.element, "data-tone", tone);
    setProse(this.#parts.binding, sentence(bindingText(downstream.binding)));
    if (this.isNear) this.draw();
  }

  /** Draws the body where something changed, and what depends on the time; of a row that is closed its few figures. */
  draw() {
    const { now, areMany } = this.#context;
    // What somebody is in stays, although another downstream has made them many.
    const isRow = areMany && !this.#isOpened && !this.#body?.contains(document.activeElement);
    setShown(this.#parts.brief, isRow);
    if (this.#body !== null) setShown(this.#body, !isRow);
    if (isRow) {
      this.#drawBrief(now);
      return;
    }
    if (this.#body === null) this.#makeBody();
    if (this.#drawn !== this.#downstream) this.#drawState();
    this.#drawn = this.#downstream;
    this.#drawTimes(now);
    this.#drawCounts(now);
    this.#drawQuotas(now);
    this.#drawChart();
    this.#drawDetails();
  }

  /** Opens the part with limits, parked jobs, failures and replicas. */
  open() {
    if (this.#body === null) this.#makeBody();
    this.#parts.details.open = true;
  }

  #drawBrief(now) {
    const { briefRate, briefWaiting, briefParked, briefDead } = this.#parts;
    const { rate, rate_limit: limit, waiting, queued, parked, dead } = this.#downstream;
    setText(briefRate, limit == null ? pace(rate) : `${pace(rate, periodFor(limit))} of ${pace(limit)}`);
    setText(briefWaiting, count(queued == null ? waiting : waiting + queued));
    setText(briefParked, count(parked));
    setText(briefDead, count(dead));
    this.#drawSince(now);
  }

  #makeBody() {
    const { element: body, ...parts } = stamp("body-template");
    this.#body = body;
    Object.assign(this.#parts, parts);
    this.#chart = new Chart(parts);
    const { name } = this.element.dataset;
    for (const button of [parts.pauseButton, parts.resumeButton, parts.rateButton, parts.findButton, parts.cancelButton]) {
      button.setAttribute("aria-label", `${button.textContent} ${name}`);
    }
    parts.summary.setAttribute("aria-label", `${parts.summary.textContent} of ${name}`);
    parts.details.addEventListener("toggle", () => this.#drawDetails());
    this.element.firstElementChild.append(body);
  }

  #drawState() {
    const parts = this.#parts;
    const downstream = this.#downstream;
    const limit = downstream.rate_limit ?? null;
    setText(parts.rate, pace(downstream.rate, periodFor(limit ?? downstream.rate)));
    setText(parts.limit, limit === null ? "no limit is a rate" : `of ${pace(limit)}`);
    for (const name of ["lateness", "latency"]) {
      const { p50_us: p50, p99_us: p99 } = downstream[name] ?? {};
      setText(parts[name], p50 == null ? unknown : `${microseconds(p50)}, p99 ${microseconds(p99)}`);
    }
    this.#drawNotes();
    this.#drawButtons();
  }

  #drawNotes() {
    const { notes, rateButton } = this.#parts;
    const items = notesOf(this.#downstream);
    const hadFocus = notes.contains(document.activeElement);
    syncRows(notes, items, { key: (note) => note.key, make: () => stamp("note-template"), update: drawNote });
    // A button that goes away with its note hands the focus on.
    if (hadFocus && !notes.contains(document.activeElement)) rateButton.focus();
    setShown(notes, items.length > 0);
  }

  #drawButtons() {
    const { pauseButton, resumeButton, deadButton } = this.#parts;
    const { name, dead, pause, penalty } = this.#downstream;
    const mayResume = Boolean(pause || penalty);
    // A button that goes away under the focus hands it on to its neighbour.
    if (!mayResume && document.activeElement === resumeButton) pauseButton.focus();
    setShown(resumeButton, mayResume);
    const letters = deadText(dead);
    setText(deadButton, `${letters}…`);
    setAttribute(deadButton, "aria-label", `${letters}… of ${name}`);
    setAttribute(deadButton, "data-tone", dead > 0 ? "warn" : "quiet");
  }

  #drawSince(now) {
    const bound = this.#downstream.binding?.since;
    setTime(this.#parts.since, bound, bound == null ? "" : `For ${span(now - bound)}.`);
  }

  #drawTimes(now) {
    const { next, oldest, through } = this.#parts;
    const downstream = this.#downstream;
    this.#drawSince(now);
    const until = downstream.next_slot;
    const isSoon = until != null && until - now < 1000;
    setTime(next, until, until == null ? unknown : isSoon ? "now" : `in ${span(until - now)}`);
    setTime(oldest, downstream.oldest, downstream.oldest == null ? unknown : span(now - downstream.oldest));
    setTime(through, downstream.through_at, throughText(downstream.through_at, now));
  }

  /** A count of 0 is not shown. One that is not known is. */
  #drawCounts(now) {
    let isAnyShown = false;
    for (const name of COUNTS) {
      const number = this.#downstream[name];
      drawCount(this.#parts[name], number);
      if (number !== 0) this.#filledAt[name] = now;
      const isShown = now - this.#filledAt[name] < KEPT;
      setShown(this.#parts[name].parentElement, isShown);
      isAnyShown ||= isShown;
    }
    setShown(this.#parts.counts, isAnyShown);
  }

  /** A bar for each window or quota: what is left of it, and when it is whole again. */
  #drawQuotas(now) {
    const { quotas } = this.#parts;
    const items = (this.#downstream.limits ?? []).filter(({ remaining, of }) => remaining != null && of > 0);
    syncRows(quotas, items, {
      key: (limit) => limit.name,
      make: () => stamp("quota-template"),
      update: (row, limit) => drawQuota(row, limit, now),
    });
    setShown(quotas, items.length > 0);
  }

  /** The chart changes when a step of the history is over, the limit is another one, or somebody changed something. */
  #drawChart() {
    const { name, rate_limit: limit = null } = this.#downstream;
    const history = this.#context.history.of(name, limit);
    const marks = this.#changes.all?.map((change) => ({ at: change.at, text: describe(change) })) ?? marksOf(this.#downstream);
    const key = `${history.version} ${limit} ${marks.map(({ at }) => at)}`;
    if (key === this.#chartKey) return;
    this.#chartKey = key;
    this.#chart.draw(history, limit, periodFor(limit ?? Math.max(0, ...history.paces)), marks);
  }

  /** The details are made when they are opened for the first time, and not drawn while they are closed. */
  #drawDetails() {
    if (!this.#parts.details.open || this.#downstream === null) return;
    if (this.#details === null) {
      this.#details = new Details();
      this.#parts.details.append(this.#details.element);
    }
    this.#details.draw(this.#downstream, this.#context, this.#changes);
    this.#changes.follow(this.#downstream, this.#context.now);
  }

  #drawChanges() {
    if (this.#body === null) return;
    this.#drawChart();
    this.#drawDetails();
  }
}

/** The changes by operators in a state, which are those in force. */
function marksOf({ pause, overrides }) {
  const marks = (overrides ?? []).map(({ limit, rate, set_at: at }) => ({ at, text: `${limit} set to ${rate}` }));
  return pause?.at == null ? marks : [...marks, { at: pause.at, text: "paused" }];
}

function drawCount(element, number) {
  setText(element, count(number));
  element.classList.toggle("zero", !number);
}

function drawQuota(row, { name, remaining, of, whole_at: wholeAt }, now) {
  setText(row.name, name);
  setText(row.left, `${count(remaining)} of ${count(of)} left`);
  const isUsed = remaining < of && wholeAt > now;
  setTime(row.whole, isUsed ? wholeAt : null, isUsed ? `whole again in ${span(wholeAt - now)}` : "");
  // The last tenth of it is in another colour.
  const values = { max: of, low: of / 10, high: of / 10, optimum: of, value: remaining };
  for (const [key, value] of Object.entries(values)) setAttribute(row.meter, key, String(value));
  setAttribute(row.meter, "aria-label", `What is left of ${name}`);
}

function deadText(dead) {
  if (dead == null) return "Dead letters";
  return dead === 0 ? "No dead letters" : countOf(dead, "dead letter");
}

/** What binds, in the daemon's words. They say until when where that is worth telling: not up to the next slot. */
function bindingText(binding) {
  if (!binding) return "What binds is not known";
  return binding.text ?? binding.reason;
}

/** A text as a sentence: with a capital letter, and a full stop. */
function sentence(text) {
  const capital = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(capital) ? capital : `${capital}.`;
}

function throughText(at, now) {
  if (at == null) return unknown;
  return at <= now ? "now" : `${roughClock(at)} (${span(at - now)})`;
}

/** What an operator must know of a downstream beyond what binds it: `{ key, tone, text }`, and `limit` if a rate is set. */
function notesOf({ failing, pause, penalty, overrides, values }) {
  const notes = [];
  if (failing) {
    const { since, detail } = failing;
    const text = sentence(`Failing since ${clock(since)}: ${kindsOf(failing)}${detail ? `; ${detail}` : ""}`);
    notes.push({ key: "failing", tone: "bad", text });
  }
  if (pause) {
    const at = pause.at == null ? "" : ` at ${clock(pause.at)}`;
    const text = `Paused${at}${byWhom(pause)}, ${untilWhen(pause.until, "somebody resumes it")}.${why(pause)}`;
    notes.push({ key: "pause", tone: "warn", text });
  }
  if (penalty) {
    notes.push({ key: "penalty", tone: "warn", text: `The API asked for a pause, until ${clock(penalty.until)}.` });
  }
  for (const set of overrides ?? []) {
    const { limit, rate, until, set_at: at } = set;
    const text = `The rate of ${limit} was set to ${rate} at ${clock(at)}${byWhom(set)}, ${untilWhen(until, "it is unset")}.${why(set)}`;
    notes.push({ key: `override ${limit}`, tone: "plain", text, limit });
  }
  for (const set of (values ?? []).slice(0, MOST_VALUES)) {
    const { value, weight, until, set_at: at } = set;
    const what = weight == null ? "is paused" : `has the weight ${weight}`;
    const end = untilWhen(until, weight == null ? "it is resumed" : "it is unset");
    const text = `Tenant ${value || "without a name"} ${what}, since ${clock(at)}${byWhom(set)}, ${end}.${why(set)}`;
    notes.push({ key: `value ${weight == null} ${value}`, tone: weight == null ? "warn" : "plain", text });
  }
  return notes;
}

function byWhom({ by }) {
  return by ? ` by ${by}` : "";
}

function why({ reason }) {
  return reason ? ` Reason: ${reason}` : "";
}

function untilWhen(until, otherwise) {
  return `until ${until == null ? otherwise : clock(until)}`;
}

function drawNote({ element, text, button }, note) {
  setProse(text, note.text);
  setAttribute(element, "data-tone", note.tone);
  setShown(button, note.limit !== undefined);
  if (note.limit === undefined) return;
  setAttribute(button, "data-limit", note.limit);
  setAttribute(button, "aria-label", `Unset… the rate of ${note.limit}`);
}
