// The last changes of a downstream by operators, which the store keeps for all replicas.

import { pathOf } from "./api.js";

/** How long after a change the list is read, in ms: a change is noted when it has been made. */
const DELAY = 1000;
/** How often the list is read at least, in ms: not every change is seen in the state of its downstream. */
const INTERVAL = 60_000;

/**
 * The changes of one downstream. They are read once a minute, after the pause, a rate or an override changed, and after a
 * change made on this page.
 */
export class Changes {
  #client;
  #name;
  #onRead;
  /** The state of which the list was last asked for. */
  #asked = null;
  /** The changes, the oldest first; null while they are not known. */
  all = null;
  /** Why they could not be read. */
  problem = null;

  constructor(client, name, onRead) {
    this.#client = client;
    this.#name = name;
    this.#onRead = onRead;
  }

  /** Reads them, unless they were read lately and nothing has changed since. */
  async follow({ pause, overrides, limits }, now) {
    const rates = (limits ?? []).map(({ rate }) => rate);
    const state = JSON.stringify([Math.floor(now / INTERVAL), this.#client.changesMade, pause, overrides, rates]);
    if (state === this.#asked) return;
    const isFirst = this.#asked === null;
    this.#asked = state;
    if (!isFirst) await new Promise((resolve) => setTimeout(resolve, DELAY));
    // After another change meanwhile they are read for that.
    if (state !== this.#asked) return;
    try {
      const { changes } = await this.#client.request("GET", pathOf(this.#name, "changes"));
      if (state !== this.#asked) return;
      this.all = changes;
      this.problem = null;
    } catch (error) {
      this.problem = `The changes could not be read: ${error.message}.`;
    }
    this.#onRead();
  }
}

/** A change in a sentence, without when it was. */
export function describe({ by, certificate, claimed, change, chosen, before, after, reason, is_unknown: isUnknown }) {
  const shown = certificate && certificate !== by ? `certificate ${certificate}` : "";
  const more = [shown, claimed ? `as ${claimed}` : ""].filter(Boolean).join(", ");
  const who = more ? `${by} (${more})` : by;
  const what = [change, chosen, isUnknown ? "(perhaps)" : ""].filter(Boolean).join(" ");
  const values = [before, after].filter(Boolean).join(" → ");
  return `${who}: ${what}${values ? `, ${values}` : ""}.${reason ? ` Reason: ${reason}` : ""}`;
}
