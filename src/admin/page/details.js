// The part of a card that is opened for more: limits, last failures, and the shares of the replicas.

import { create, createTime, setShown, setText, setTime, setProse, stamp, syncRows } from "./dom.js";
import { clock, count, pace, periodFor, unknown } from "./words.js";

/** The details of one downstream. */
export class Details {
  #parts = stamp("details-template");

  get element() {
    return this.#parts.element;
  }

  draw(downstream, { fleet }) {
    const { limits, failures, noFailures, replicas, totals } = this.#parts;
    syncRows(limits, downstream.limits ?? [], {
      key: (limit) => limit.name,
      make: () => stamp("limit-template"),
      update: drawLimit,
    });

    const known = downstream.failures ?? [];
    setShown(noFailures, known.length === 0);
    setShown(failures, known.length > 0);
    syncRows(failures, known, {
      key: (failure) => `${failure.kind} ${failure.detail}`,
      make: makeFailure,
      update: drawFailure,
    });

    const shares = downstream.replicas ?? [];
    const sum = shares.reduce((total, { rate }) => total + rate, 0);
    const period = periodFor(downstream.rate_limit ?? sum);
    syncRows(replicas, shares, {
      key: (share) => share.id,
      make: () => stamp("share-template"),
      update: (row, share) => drawShare(row, share, { host: hostOf(share.id, fleet), sum, period }),
    });
    const { released, delivered } = downstream;
    setText(totals, `${count(released)} released and ${count(delivered)} delivered since the replicas started.`);
  }
}

function drawLimit(row, { name, algorithm, rate, file_rate: fileRate, remaining, of, whole_at: wholeAt }) {
  setText(row.name, name);
  setText(row.algorithm, algorithm);
  setText(row.rate, rate);
  setText(row.fileRate, fileRate == null ? "" : `in the file ${fileRate}`);
  setText(row.remaining, remaining == null ? unknown : `${count(remaining)} of ${count(of)}`);
  setText(row.whole, remaining == null || wholeAt == null ? "" : `whole at ${clock(wholeAt)}`);
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
