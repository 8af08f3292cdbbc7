// The chart of a downstream's pace against its limit, with a mark for each change by an operator.

import { KEPT } from "./history.js";
import { clock, countOf, pace } from "./words.js";
import { setAttribute, setText, syncRows } from "./dom.js";

/** The height of the chart, in the units of its viewBox. It is as wide as there are steps. */
const HEIGHT = 50;
/** The free space above the highest value. */
const HEADROOM = 1.15;
const SVG = "http://www.w3.org/2000/svg";

/** A chart in the parts of a card. */
export class Chart {
  #parts;
  #drawn = null;
  /** Where the pointer is, from 0 at the left to 1; null if it is elsewhere. */
  #pointed = null;

  constructor(parts) {
    this.#parts = parts;
    parts.chart.addEventListener("pointermove", ({ clientX }) => {
      const { left, width } = parts.chart.getBoundingClientRect();
      this.#point((clientX - left) / width);
    }, { passive: true });
    parts.chart.addEventListener("pointerleave", () => this.#point(null));
  }

  /**
   * Draws `paces` (jobs a second, oldest first, one for each step of `stepLength` ms up to the instant `until`), the attempts that
   * failed (`failures`, alike), the line of `limit`, which may be null, and `marks`: `{ at, text }`.
   */
  draw({ paces, failures, until, stepLength }, limit, period, marks) {
    const parts = this.#parts;
    const highest = Math.max(0, ...paces);
    const mostFailed = Math.max(0, ...failures);
    const top = Math.max(highest, mostFailed, limit ?? 0) * HEADROOM || 1;
    const heightOf = (value) => (HEIGHT - (value / top) * HEIGHT).toFixed(1);
    this.#drawn = { paces, failures, until, stepLength, period, highest, mostFailed };

    const line = lineOf(paces, heightOf);
    parts.line.setAttribute("d", line);
    parts.failedLine.setAttribute("d", mostFailed > 0 ? lineOf(failures, heightOf) : "");
    parts.area.setAttribute("d", line && `${line}V${HEIGHT}H${KEPT - paces.length + 1}Z`);

    parts.ceiling.style.display = limit === null ? "none" : "";
    parts.ceiling.setAttribute("y1", heightOf(limit ?? 0));
    parts.ceiling.setAttribute("y2", heightOf(limit ?? 0));

    const placeOf = ({ at }) => Math.min(KEPT, KEPT - (until - at) / stepLength);
    const shown = marks.filter((mark) => paces.length > 0 && placeOf(mark) >= 0);
    syncRows(parts.marks, shown, {
      key: ({ at, text }) => `${at} ${text}`,
      make: makeMark,
      update: (row, mark) => drawMark(row, mark, placeOf(mark).toFixed(1)),
    });
    this.#drawLabel();
    setAttribute(parts.chart, "aria-label", describe({ highest, mostFailed }, limit, period, shown.length));
  }

  #point(place) {
    this.#pointed = place;
    this.#drawLabel();
  }

  /** The highest pace; where the pointer is on the chart, the pace there. */
  #drawLabel() {
    if (this.#drawn === null) return;
    const { paces, failures, until, stepLength, period, highest, mostFailed } = this.#drawn;
    const stepsAgo = Math.max(0, Math.min(KEPT - 1, Math.floor((1 - this.#pointed) * KEPT)));
    const pointed = this.#pointed === null ? undefined : paces.at(-1 - stepsAgo);
    let text = paces.length ? `highest ${pace(highest, period)}` : "";
    let failed = mostFailed;
    if (pointed !== undefined) {
      text = `${clock(until - stepsAgo * stepLength)}: ${pace(pointed, period)}`;
      failed = failures.at(-1 - stepsAgo) ?? 0;
    }
    if (failed > 0) text += `, ${pace(failed, period)} failed`;
    setText(this.#parts.highest, text);
  }
}

/** The line through the paces. The newest is at the right edge. */
function lineOf(paces, heightOf) {
  const first = KEPT - paces.length + 1;
  return paces.map((value, at) => `${at ? "L" : "M"}${first + at} ${heightOf(value)}`).join("");
}

function makeMark() {
  const [element, title] = ["line", "title"].map((tag) => document.createElementNS(SVG, tag));
  element.setAttribute("class", "mark");
  element.setAttribute("y1", 0);
  element.setAttribute("y2", HEIGHT);
  element.append(title);
  return { element, title };
}

function drawMark({ element, title }, { at, text }, place) {
  setText(title, `${clock(at)}: ${text}`);
  setAttribute(element, "x1", place);
  setAttribute(element, "x2", place);
}

function describe({ highest, mostFailed }, limit, period, changes) {
  const bound = limit === null ? "no limit is a rate" : `the limit is ${pace(limit, period)}`;
  const made = changes ? `; ${countOf(changes, "change")} by operators` : "";
  const failed = mostFailed > 0 ? `; failed attempts: at most ${pace(mostFailed, period)}` : "";
  return `Pace of the last 15 minutes: at most ${pace(highest, period)}; ${bound}${failed}${made}`;
}
