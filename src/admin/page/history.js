// The pace of the last 15 minutes: the daemon's history, continued from its events.

/** How many steps are kept: with steps of 5 s the last 15 minutes. */
export const KEPT = 180;

/** A pace is averaged over as many steps as have room for this number of jobs at the limit, so that single jobs make no peaks. */
const AVERAGED_JOBS = 20;
const MOST_AVERAGED = 12;

/** What was released in each step, by downstream. */
export class History {
  #stepLength = 5000;
  #series = new Map();
  /** Up to when releases are counted, on the daemon's clock. */
  #now = 0;
  #loads = 0;

  /** Begins with the daemon's history. It replaces what was counted here, which may have gaps. */
  load({ step_ms: stepLength, downstreams }, state) {
    this.#stepLength = stepLength;
    this.#loads += 1;
    this.#series.clear();
    for (const [name, { rate }] of state.downstreams) {
      // A daemon that has just started has no step yet, and sends nothing again of what is at rest: its chart begins now.
      const { until, released: all, failed = [] } = downstreams[name] ?? { until: this.#now, released: [] };
      const released = all.slice(-KEPT);
      const series = { until, open: 0, openFailed: 0, released, failed: released.map((_, at) => failed.at(at - released.length) ?? 0) };
      this.#series.set(name, series);
      // What was released between its last step and the latest state is only known as a rate.
      this.#fill(series, ((rate ?? 0) * Math.max(0, this.#now - until)) / 1000, until);
    }
  }

  /** Counts what was released between two states. */
  count(state, former) {
    const from = former?.now ?? state.now;
    this.#now = state.now;
    for (const [name, downstream] of state.downstreams) {
      const before = former?.downstreams.get(name);
      // The daemon does not send again what did not change.
      if (before === downstream) continue;
      this.#add(name, releasedSince(downstream, before, state.now - from), from, failedSince(downstream, before));
    }
  }

  /**
   * The pace in each step, oldest first, in jobs a second, of a downstream whose limit is `limit` or null; the same of its attempts
   * that failed; with a `version` that shows whether it changed, the length of a step in ms, and when the last one ended.
   */
  of(name, limit) {
    const series = this.#series.get(name);
    const stepLength = this.#stepLength;
    if (series === undefined) return { version: "", paces: [], failures: [], until: 0, stepLength };
    this.#fill(series, 0, this.#now);
    const [paces, failures] = [series.released, series.failed].map((jobs) => averaged(jobs, limit, stepLength / 1000));
    return { version: `${this.#loads} ${series.until}`, paces, failures, until: series.until, stepLength };
  }

  #add(name, jobs, from, failures) {
    const series = this.#series.get(name);
    if (series === undefined) this.#series.set(name, { until: this.#now, open: 0, openFailed: 0, released: [], failed: [] });
    else this.#fill(series, jobs, from, failures);
  }

  /**
   * Spreads jobs evenly over the time from `from` to now, and closes the steps that are over. States do not come at the
   * ends of steps: counted whole, they would make an even pace look uneven.
   */
  #fill(series, jobs, from, failures = 0) {
    const now = this.#now;
    const [perMillisecond, failedPerMillisecond] = [jobs, failures].map((all) => (now > from ? all / (now - from) : 0));
    for (;;) {
      const end = series.until + this.#stepLength;
      const overlap = Math.min(end, now) - Math.max(series.until, from);
      series.open += perMillisecond * Math.max(0, overlap);
      series.openFailed += failedPerMillisecond * Math.max(0, overlap);
      if (end > now) break;
      series.released.push(series.open);
      series.failed.push(series.openFailed);
      [series.open, series.openFailed] = [0, 0];
      series.until = end;
    }
    for (const steps of [series.released, series.failed]) steps.splice(0, steps.length - KEPT);
  }
}

/**
 * The paces of steps of `seconds` seconds, as moving averages. A span may hold one job more than the limit has room for, as both of
 * its ends may fall on a slot: that is the limit, and not more.
 */
export function averaged(released, limit, seconds) {
  const wanted = limit ? Math.ceil(AVERAGED_JOBS / (limit * seconds)) : 1;
  const most = Math.min(MOST_AVERAGED, wanted);
  let sum = 0;
  return released.map((jobs, at) => {
    sum += jobs - (at >= most ? released[at - most] : 0);
    const span = Math.min(at + 1, most) * seconds;
    const isLimit = limit && sum > limit * span && sum <= limit * span + 1;
    return isLimit ? limit : Math.max(0, sum) / span;
  });
}

/**
 * What a downstream released in `elapsed` ms. The counter of one replica is exact. Several replicas report theirs at different times,
 * so that their sum jumps: then the rate is taken.
 */
function releasedSince(downstream, former, elapsed) {
  const { released, rate, replicas } = downstream;
  const isAlone = replicas.length === 1 && areSame(replicas, former?.replicas);
  return isAlone ? released - former.released : ((rate ?? 0) * elapsed) / 1000;
}

/**
 * How many attempts have failed since. Replicas count from their start, and are not in the sum while the store is away or they are
 * slow: with one that comes or goes, the difference says nothing. The next load of the daemon's history has what is missing then.
 */
function failedSince({ failed = 0, replicas }, former) {
  return areSame(replicas, former?.replicas) ? Math.max(0, failed - (former.failed ?? 0)) : 0;
}

/** Whether these are the replicas that there were. */
function areSame(replicas, former = []) {
  const ids = new Set(former.map(({ id }) => id));
  return replicas.length === ids.size && replicas.every(({ id }) => ids.has(id));
}
