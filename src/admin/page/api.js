// The admin API: requests with the token, errors as the daemon words them, and its stream of events.

/** An answer that is no success. `status` is 0 if there was no answer at all. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Asks the daemon. The token is in memory only: in no storage, and in no address. */
export class Client {
  #token = null;
  /** How many changes were made by this page. */
  changesMade = 0;

  /** `askForToken(why)` has the reader give a token to `useToken`, and resolves to whether that was done. */
  constructor(askForToken) {
    this.askForToken = askForToken;
  }

  get hasToken() {
    return this.#token !== null;
  }

  /** Uses this token from now on; null forgets it. */
  useToken(token) {
    this.#token = token;
  }

  /** Sends a request and returns the JSON of its answer. If the daemon wants a token it asks for one, and sends it again. */
  async request(method, path, body) {
    for (;;) {
      const token = this.#token;
      try {
        const answer = await (await this.#send(method, path, { body })).json();
        if (method !== "GET") this.changesMade += 1;
        return answer;
      } catch (error) {
        const isRefused = error.status === 401;
        // Another request may have led to a new token meanwhile.
        const mayRetry = isRefused && (token !== this.#token || (await this.askForToken(error.message)));
        if (!mayRetry) throw error;
      }
    }
  }

  /** Opens the stream of events. A 401 is left to the caller, who has a time-out to stop first. */
  async openEvents(signal) {
    return (await this.#send("GET", "events", { signal })).body;
  }

  async #send(method, path, { body, signal }) {
    const headers = {};
    if (this.#token !== null) headers.authorization = `Bearer ${this.#token}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const options = { method, headers, signal, body: JSON.stringify(body), cache: "no-store", credentials: "omit" };
    let response;
    try {
      response = await fetch(`api/v1/${path}`, options);
    } catch {
      throw new ApiError(0, "the daemon does not answer");
    }
    if (!response.ok) throw new ApiError(response.status, await problemOf(response));
    return response;
  }
}

/** The path of something of a downstream. */
export function pathOf(name, rest) {
  return `downstreams/${encodeURIComponent(name)}/${rest}`;
}

/** What the daemon says is wrong, in full. */
async function problemOf(response) {
  const text = await response.text().catch(() => "");
  try {
    const { error } = JSON.parse(text);
    if (typeof error === "string") return `${error} (${response.status})`;
  } catch {
    // A proxy on the way may answer with something other than JSON; then that is shown.
  }
  return `${text.trim() || response.statusText || "no reason given"} (${response.status})`;
}

/**
 * The events of a `text/event-stream`, as `{ name, data }`. `onBytes` is called for all that comes, also for comments: the
 * daemon sends them to show that it is still there.
 */
export async function* readEvents(body, onBytes) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(() => {
        throw new ApiError(0, "the connection was lost");
      });
      if (done) return;
      onBytes();
      const blocks = (unread + value).split(/\r?\n\r?\n/);
      unread = blocks.pop();
      yield* blocks.map(parseEvent).filter((event) => event.data);
    }
  } finally {
    // This ends the request when nobody listens any more; on a stream that is broken already it may fail.
    reader.cancel().catch(() => {});
  }
}

function parseEvent(block) {
  let name = "message";
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (field === "event") name = value;
    if (field === "data") data.push(value);
  }
  return { name, data: data.join("\n") };
}
