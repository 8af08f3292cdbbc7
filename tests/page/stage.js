// The stage: private servers, real daemons and an API, in a program of its own (stage.rs) that takes orders.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

/** How the program is run. It is built before, so that this takes a second. */
const COMMAND = process.env.PAGE_STAGE ?? "cargo test --locked --quiet --features daemon --test page";

export class Stage {
  #child;
  #answers;

  /** Starts the servers. */
  static async open() {
    const stage = new Stage();
    const [command, ...args] = COMMAND.split(" ");
    stage.#child = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
    stage.#answers = createInterface({ input: stage.#child.stdout })[Symbol.asyncIterator]();
    const { token, read_token: readToken } = await stage.#next();
    return Object.assign(stage, { token, readToken });
  }

  /** Ends everything. */
  async close() {
    const ended = new Promise((resolve) => this.#child.once("exit", resolve));
    this.#child.stdin.end();
    await ended;
  }

  /** Starts a daemon, if it does not run: `a` and `b` are replicas; `guarded`, `open` and `many` are alone. */
  start(name) {
    return this.#order({ do: "start", name });
  }

  stop(name) {
    return this.#order({ do: "stop", name });
  }

  /**
   * Publishes this many jobs for each of these downstreams of a daemon: `job-N` and those after it, where N is the `first`. They
   * may go `later`, by as many seconds.
   */
  publish(name, downstreams, count, later) {
    return this.#order({ do: "publish", name, downstreams: [downstreams].flat(), count, later });
  }

  /** Has the API answer this downstream so from now on; without a status it answers 200 again. */
  answer(downstream, status, body) {
    return this.#order({ do: "answer", downstream, status, body });
  }

  /** How many requests of this downstream have come to the API. */
  async count(downstream) {
    return (await this.#order({ do: "count", downstream })).count;
  }

  /** What `paced status` says of a downstream. */
  status(name, downstream) {
    return this.#order({ do: "status", name, downstream });
  }

  async #order(order) {
    this.#child.stdin.write(`${JSON.stringify(order)}\n`);
    const answer = await this.#next();
    if (answer.error !== undefined) throw new Error(`${JSON.stringify(order)}: ${answer.error}`);
    return answer;
  }

  async #next() {
    for (;;) {
      const { done, value } = await this.#answers.next();
      if (done) throw new Error("the stage has ended; its last words are above");
      if (value.startsWith("{")) return JSON.parse(value);
    }
  }
}
