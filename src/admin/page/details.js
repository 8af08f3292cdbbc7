// The part of a card that is opened for more: limits, busiest lanes, last failures, and the shares of the replicas.

import { describe } from "./changes.js";
import { create, createTime, setAttribute, setShown, setText, setTime, setProse, stamp, syncRows } from "./dom.js";
import { clock, count, countOf, pace, periodFor, span, unknown } from "./words.js";

/** How many changes by operators are shown: the last ones. */
const MOST_CHANGES = 20;

/** The details of one downstream. */
export class Details {
  #parts = stamp("details-template");

  get element() {
    return this.#parts.element;
  }

  draw(downstream, { fleet, now }, changes) {
    const { limits, failures, noFailures, replicas, totals } = this.#parts;
    syncRows(limits, downstream.limits ?? [], {
      key: (limit) => limit.name,
      make: () => stamp("limit-template"),
      update: (row, limit) => drawLimit(row, limit, downstream.name),
    });

    const known = downstream.failures ?? [];
    setShown(noFailures, known.length === 0);
    setShown(failures, known.length > 0);
    syncRows(failures, known, {
      key: (failure) => `${failure.kind} ${failure.detail}`,
      make: makeFailure,
      update: drawFailure,
    });

    this.#drawParked(downstream);
    this.#drawLanes(downstream.lanes ?? [], now);
    this.#drawChanges(changes);

    const shares = downstream.replicas ?? [];
    const sum = shares.reduce((total, { rate }) => total + rate, 0);
    const period = periodFor(downstream.rate_limit ?? sum);
    syncRows(replicas, shares, {
      key: (share) => share.id,
      make: () => stamp("share-template"),
      update: (row, share) => drawShare(row, share, { host: hostOf(share.id, fleet), sum, period }),
    });
    const { released, delivered, failed = 0 } = downstream;
    const attempts = failed > 0 ? ` ${countOf(failed, "attempt")} failed.` : "";
    setText(totals, `${count(released)} released and ${count(delivered)} delivered since the replicas started.${attempts}`);
  }

  #drawParked({ parked, parked_by: by = [] }) {
    const { parkedJobs, parkedTitle } = this.#parts;
    const rest = (parked ?? 0) - by.reduce((sum, { jobs }) => sum + jobs, 0);
    const items = [...by, ...(by.length > 0 && rest > 0 ? [{ jobs: rest }] : [])];
    for (const part of [parkedTitle, parkedJobs]) setShown(part, items.length > 0);
    syncRows(parkedJobs, items, {
      key: ({ reason }) => reason ?? "unknown",
      make: () => ({ element: document.createElement("li") }),
      update: ({ element }, item) => setText(element, parkedText(item)),
    });
  }

  #drawLanes(busiest, now) {
    const { lanesSection, lanes } = this.#parts;
    setShown(lanesSection, busiest.length > 0);
    syncRows(lanes, busiest, {
      key: (lane) => lane.name,
      make: () => stamp("lane-template"),
      update: (row, lane) => drawLane(row, lane, now),
    });
  }

  #drawChanges({ all, problem }) {
    const { history, noHistory } = this.#parts;
    const shown = (all ?? []).slice(-MOST_CHANGES).reverse();
    setShown(history, shown.length > 0);
    setShown(noHistory, shown.length === 0 || problem !== null);
    setText(noHistory, problem ?? (all === null ? "Asking the daemon…" : "None are known."));
    syncRows(history, shown, {
      key: (change) => `${change.at} ${describe(change)}`,
      make: makeChange,
      // What is today now has a date tomorrow.
      update: ({ at }, change) => setTime(at, change.at, clock(change.at)),
    });
  }
}

/** What parked jobs wait for, by the reason of the API. */
const WAITS = {
  "not-before": "a time of their own",
  retry: "another attempt",
  restart: "another attempt, since a replica stopped",
  limit: "a limit or a pause",
};

function parkedText({ reason, jobs, first, first_jobs: firstJobs, last }) {
  if (reason === undefined) return `${count(jobs)} of which it is not known what they wait for`;
  const when = first === last ? `due before ${clock(last)}` : `${count(firstJobs)} due before ${clock(first)}, the last before ${clock(last)}`;
  return `${count(jobs)} for ${WAITS[reason] ?? reason}: ${when}`;
}

function makeChange(change) {
  const element = document.createElement("li");
  const text = create("span", "");
  const at = createTime(change.at);
  setProse(text, describe(change));
  element.append(at, " ", text);
  return { element, at };
}

function drawLimit(row, { name, algorithm, rate, file_rate: fileRate, remaining, of, whole_at: wholeAt }, downstream) {
  setText(row.name, name);
  setText(row.algorithm, algorithm);
  setText(row.rate, rate);
  setText(row.fileRate, fileRate == null ? "" : `in the file ${fileRate}`);
  setText(row.remaining, remaining == null ? unknown : `${count(remaining)} of ${count(of)}`);
  // The count of a pace is the next slot, which nobody needs to reset.
  setShown(row.reset, remaining != null);
  setAttribute(row.reset, "data-limit", name);
  setAttribute(row.reset, "aria-label", `Reset… ${name} of ${downstream}`);
  setText(row.whole, remaining == null || wholeAt == null ? "" : `whole at ${clock(wholeAt)}`);
}

function drawLane(row, { name, waiting, oldest, reason, limit, until }, now) {
  setText(row.name, name);
  setText(row.waiting, count(waiting));
  setTime(row.oldest, oldest, oldest == null ? unknown : span(now - oldest));
  setText(row.wait, limit ?? (reason === "turn" ? "its turn" : reason));
  const isAhead = until != null && until > now;
  setTime(row.until, isAhead ? until : null, isAhead ? `until ${clock(until)}` : "");
}

function makeFailure() {
  const element = document.createElement("li");
  const row = { element, at: createTime(0), text: create("span", ""), response: create("pre", "") };
  element.append(row.at, " ", row.text, row.response);
  return row;
}

function drawFailure(row, { at, kind, detail, count: times, response }) {
  setTime(row.at, at, clock(at));
  setProse(row.text, `${kind} ×${count(times)}${detail ? `: ${detail}` : ""}`);
  // The beginning of the API's answer, which is anybody's text.
  setText(row.response, response ?? "");
  setShown(row.response, Boolean(response));
}

function drawShare(row, { rate, waiting, held, sending, reason }, { host, sum, period }) {
  setText(row.host, host);
  setText(row.reason, reason ?? "");
  setText(row.rate, pace(rate, period));
  setText(row.share, sum > 0 ? `${Math.round((100 * rate) / sum)} %` : "");
  setText(row.waiting, count(waiting));
  setText(row.held, count(held));
  setText(row.sending, count(sending));
}

/** The host of a replica; its id, shortened, if it has left the fleet. */
function hostOf(id, fleet) {
  const replica = fleet.get(id);
  return replica ? `${replica.host}, ${replica.pid}` : id.slice(0, 8);
}
