// The live state: reads the daemon's events, connects anew when they are cut, and merges what changed into what is known.

import { ApiError, readEvents } from "./api.js";

/** The time-out for any sign of the daemon, in ms. It sends one every 15 s at least. */
const SILENCE = 20_000;
/** How long the stream may be cut before the page says so, in ms: most cuts end at once. */
const GRACE = 3000;
/** How long the page may be out of sight before it stops reading, in ms. A browser has few connections to one address. */
const UNSEEN = 60_000;
/** The waits before an attempt to connect, in ms: after a cut, after the first attempt that failed, and so on. */
const WAITS = [250, 1000, 2000, 4000, 8000, 15_000];

/**
 * Keeps the state of the fleet up to date. `on` is called with what happens:
 * - `state(state, former)`: a new state; `state.downstreams` is a map by name, and `former` the one before it, or null;
 * - `history(history)`: the history, after each time that the stream was opened;
 * - `live()`: the stream is read again;
 * - `cut(reason, lastHeard, retryAt)`: it is not; `retryAt` is null if only the reader can help.
 */
export class Live {
  #client;
  #on;
  #state = null;
  #lastHeard = null;
  #failures = 0;
  #cutTimer = null;
  #wake = () => {};

  constructor(client, on) {
    this.#client = client;
    this.#on = on;
  }

  /** Reads for as long as the page lives. */
  async run() {
    for (;;) {
      await inSight();
      const wait = await this.#readUntilCut();
      if (wait !== 0) await this.#rest(wait);
    }
  }

  /** Tries to connect now instead of after the wait. */
  retry() {
    this.#wake();
  }

  /** Reads one stream to its end, and returns how long to wait before the next one; null waits for the reader. */
  async #readUntilCut() {
    let reason = "the daemon ended the connection";
    try {
      await this.#read();
    } catch (error) {
      if (error.status === 401) {
        if (await this.#client.askForToken(error.message)) return 0;
        this.#tellCut(error.message, null);
        return null;
      }
      // Anything else is no event of the daemon's, or a mistake in this page.
      if (!(error instanceof ApiError)) console.error(error);
      reason = error.message;
    }
    // A page that nobody sees connects when it is seen again.
    return document.hidden ? 0 : this.#waitAfter(reason);
  }

  #waitAfter(reason) {
    const wait = WAITS[Math.min(this.#failures, WAITS.length - 1)];
    const retryAt = Date.now() + wait;
    // A page that was never live says at once why.
    if (this.#failures > 0 || this.#lastHeard === null) {
      this.#tellCut(reason, retryAt);
    } else {
      this.#cutTimer ??= setTimeout(() => this.#tellCut(reason, Date.now()), GRACE);
    }
    this.#failures += 1;
    return wait;
  }

  #tellCut(reason, retryAt) {
    clearTimeout(this.#cutTimer);
    this.#cutTimer = null;
    this.#on.cut(reason, this.#lastHeard, retryAt);
  }

  #tellLive() {
    clearTimeout(this.#cutTimer);
    this.#cutTimer = null;
    this.#failures = 0;
    this.#on.live();
  }

  async #read() {
    const abort = new AbortController();
    const watch = new Watch(abort);
    try {
      let isFirst = true;
      const heard = () => {
        this.#lastHeard = Date.now();
        watch.heard();
      };
      for await (const { name, data } of readEvents(await this.#client.openEvents(abort.signal), heard)) {
        if (name !== "state") continue;
        if (isFirst) performance.mark("paced:data");
        this.#take(JSON.parse(data), isFirst);
        if (isFirst) this.#begin();
        isFirst = false;
      }
    } finally {
      watch.stop();
    }
  }

  #begin() {
    this.#tellLive();
    const got = this.#client.request("GET", "history");
    // Without its history the page is less, but works: then the charts begin now.
    got.then((history) => this.#on.history(history)).catch(() => {});
  }

  /** Takes the first state of a stream as it is. Those after it hold only the downstreams that changed. */
  #take(event, isWhole) {
    const former = this.#state;
    const downstreams = new Map(isWhole ? [] : former.downstreams);
    for (const downstream of event.downstreams ?? []) downstreams.set(downstream.name, downstream);
    this.#state = { ...(isWhole ? {} : former), ...event, downstreams };
    this.#on.state(this.#state, former);
  }

  /** Waits for so long, or until it is woken. */
  #rest(wait) {
    return new Promise((resolve) => {
      const timer = wait === null ? null : setTimeout(resolve, wait);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/** Ends a stream that nothing comes from, and one that nobody has seen for a while. */
class Watch {
  #abort;
  #silence;
  #unseen;
  #look = () => {
    clearTimeout(this.#unseen);
    if (document.hidden) this.#unseen = setTimeout(() => this.#abort.abort(), UNSEEN);
  };

  constructor(abort) {
    this.#abort = abort;
    this.heard();
    this.#look();
    document.addEventListener("visibilitychange", this.#look);
  }

  heard() {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#abort.abort(), SILENCE);
  }

  stop() {
    clearTimeout(this.#silence);
    clearTimeout(this.#unseen);
    document.removeEventListener("visibilitychange", this.#look);
    // The stream may have ended for another reason; this ends its request in any case.
    this.#abort.abort();
  }
}

/** Waits until the page can be seen. */
function inSight() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true });
  });
}
