// Words for numbers, rates, spans of time and instants. Nothing here touches the document.

const UNKNOWN = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

const MINUTE = { hour: "2-digit", minute: "2-digit" };
const DAY = { day: "numeric", month: "short" };
const minutes = new Intl.DateTimeFormat("en-GB", MINUTE);
const seconds = new Intl.DateTimeFormat("en-GB", { ...MINUTE, second: "2-digit" });
const thisYear = new Intl.DateTimeFormat("en-GB", { ...DAY, ...MINUTE });
const otherYear = new Intl.DateTimeFormat("en-GB", { ...DAY, year: "numeric", ...MINUTE });

/** A count, such as `1,234`. */
export function count(number) {
  return number == null ? UNKNOWN : whole.format(number);
}

/** A count with its noun, such as `1 job` or `1,234 jobs`. */
export function countOf(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** Kinds of failures with their counts, such as `429 ×411, timeout api.example.com:443 ×3`. */
export function kindsOf({ kinds, kind, attempts }) {
  // A replica of an earlier version names only the last one.
  const known = kinds?.length ? kinds : [{ kind, count: attempts }];
  return known.map((one) => `${one.kind} ×${count(one.count)}`).join(", ");
}

/** A number with three digits that matter, such as `16.7`. */
function amount(number) {
  return number < 1000 ? short.format(number) : whole.format(number);
}

const PERIODS = [
  { name: "s", seconds: 1 },
  { name: "min", seconds: 60 },
  { name: "h", seconds: 3600 },
  { name: "d", seconds: 86400 },
];

/** The shortest period in which a rate, in jobs a second, is at least one job. */
export function periodFor(rate) {
  if (!rate) return PERIODS[0];
  return PERIODS.find(({ seconds }) => rate * seconds >= 1) ?? PERIODS[PERIODS.length - 1];
}

/** A rate, such as `16.7/s`. It is given in jobs a second. */
export function pace(rate, period = periodFor(rate)) {
  return rate == null ? UNKNOWN : `${amount(rate * period.seconds)}/${period.name}`;
}

const SPANS = [
  { name: "d", length: 86_400_000 },
  { name: "h", length: 3_600_000 },
  { name: "min", length: 60_000 },
  { name: "s", length: 1000 },
];

/** A span of milliseconds, such as `4 min 20 s` or `27 min`. */
export function span(milliseconds) {
  const at = SPANS.findIndex(({ length }) => milliseconds >= length);
  if (at < 0) return "under 1 s";
  const units = Math.floor(milliseconds / SPANS[at].length);
  const text = `${units} ${SPANS[at].name}`;
  // The smaller unit is useful only while the larger one is a small number.
  if (units >= 10 || at === SPANS.length - 1) return text;
  const smaller = Math.floor((milliseconds % SPANS[at].length) / SPANS[at + 1].length);
  return smaller ? `${text} ${smaller} ${SPANS[at + 1].name}` : text;
}

/** Microseconds in the unit that suits them, such as `21 µs` or `1.8 ms`. */
export function microseconds(number) {
  if (number < 1000) return `${amount(number)} µs`;
  return number < 1_000_000 ? `${amount(number / 1000)} ms` : `${amount(number / 1_000_000)} s`;
}

/** An instant in the reader's time zone: the time of day if it is today, and else the date too. */
export function clock(at, today = seconds) {
  const date = new Date(at);
  const now = new Date();
  if (Number.isNaN(date.getTime())) return UNKNOWN;
  if (date.toDateString() === now.toDateString()) return today.format(date);
  return (date.getFullYear() === now.getFullYear() ? thisYear : otherYear).format(date);
}

/** An instant that is only an estimate, without seconds. */
export function roughClock(at) {
  return clock(at, minutes);
}

/** An instant in RFC 3339. Instants beyond what a date can hold have none. */
export function rfc3339(at) {
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? "" : date.toISOString();
}

/** Shown for what is not known, or not there. */
export const unknown = UNKNOWN;
