// The chart of a downstream's pace against its limit.

import { KEPT } from "./history.js";
import { pace } from "./words.js";
import { setAttribute, setText } from "./dom.js";

/** The height of the chart, in the units of its viewBox. It is as wide as there are steps. */
const HEIGHT = 50;
/** The free space above the highest value. */
const HEADROOM = 1.15;

/** Draws `paces` (jobs a second, oldest first) and the line of `limit`, which may be null. `parts` are those of a card. */
export function drawChart(parts, paces, limit, period) {
  const highest = Math.max(0, ...paces);
  const top = Math.max(highest, limit ?? 0) * HEADROOM || 1;
  const heightOf = (value) => (HEIGHT - (value / top) * HEIGHT).toFixed(1);

  const line = lineOf(paces, heightOf);
  parts.line.setAttribute("d", line);
  parts.area.setAttribute("d", line && `${line}V${HEIGHT}H${KEPT - paces.length + 1}Z`);

  parts.ceiling.style.display = limit === null ? "none" : "";
  parts.ceiling.setAttribute("y1", heightOf(limit ?? 0));
  parts.ceiling.setAttribute("y2", heightOf(limit ?? 0));

  setText(parts.highest, paces.length ? `highest ${pace(highest, period)}` : "");
  setAttribute(parts.chart, "aria-label", describe(highest, limit, period));
}

/** The line through the paces. The newest is at the right edge. */
function lineOf(paces, heightOf) {
  const first = KEPT - paces.length + 1;
  return paces.map((value, at) => `${at ? "L" : "M"}${first + at} ${heightOf(value)}`).join("");
}

function describe(highest, limit, period) {
  const bound = limit === null ? "no limit is a rate" : `the limit is ${pace(limit, period)}`;
  return `Pace of the last 15 minutes: at most ${pace(highest, period)}; ${bound}`;
}
