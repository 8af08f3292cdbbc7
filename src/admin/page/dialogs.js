// The dialogs that take a token, and what a change of a downstream needs.

import { pathOf } from "./api.js";
import { byId, setShown } from "./dom.js";
import { count, countOf } from "./words.js";

/** Lets the buttons marked with `data-close` close a dialog. Escape does so by itself. */
export function closable(dialog) {
  for (const button of dialog.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => dialog.close());
  }
}

/** Shows an error in a dialog, in full; null takes it away. */
export function showError(element, text) {
  setShown(element, text !== null);
  element.textContent = text ?? "";
}

/** Handles the submission of a form by `submit`, once at a time. */
export function onSubmit(form, button, submit) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.ariaDisabled === "true") return;
    // A disabled button would lose the focus.
    button.ariaDisabled = "true";
    try {
      await submit();
    } finally {
      button.ariaDisabled = null;
    }
  });
}

/** The dialog that asks for the token. */
export class TokenDialog {
  #dialog = byId("token-dialog");
  #input = byId("token-input");
  #onToken;
  /** The callers that wait for a token: functions that take whether one was given. */
  #waiting = [];

  /** `onToken` takes the token that the reader gives, or null if the one in use is to be forgotten. */
  constructor(onToken) {
    this.#onToken = onToken;
    closable(this.#dialog);
    byId("token-forget").addEventListener("click", () => {
      this.#onToken(null);
      this.#dialog.close();
    });
    this.#dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#take(this.#input.value.trim());
    });
    // This event comes a little later than the closing: somebody may have asked again by then.
    this.#dialog.addEventListener("close", () => this.#dialog.open || this.#answer(false));
  }

  /** Opens the dialog; `why` is what the daemon says, if it refused something. */
  open(why = null) {
    if (!this.#dialog.open) this.#dialog.showModal();
    showError(byId("token-asked"), why);
  }

  /** Asks for a token because of `why`, and resolves to whether one was given. */
  ask(why) {
    this.open(why);
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  #take(token) {
    if (!token) return;
    this.#onToken(token);
    this.#answer(true);
    this.#dialog.close();
  }

  #answer(isGiven) {
    // The token is nowhere but in the client.
    this.#input.value = "";
    for (const resolve of this.#waiting.splice(0)) resolve(isGiven);
  }
}

/** The changes: the texts of the dialog, the request, and the text once it is done. */
const CHANGES = {
  pause: {
    title: "Pause",
    hint: "No replica releases anything meanwhile. Requests on their way are not called back.",
    fields: ["for", "reason"],
    request: ["POST", "pause"],
    done: ({ name, sent }) => `${name} is paused ${lasting(sent)}.`,
  },
  resume: {
    title: "Resume",
    hint: "Ends the pause, also one that the API asked for. Slots come at the usual pace: paced does not catch up.",
    fields: ["reason"],
    request: ["POST", "resume"],
    done: ({ name }) => `${name} is resumed.`,
  },
  rate: {
    title: "Set a rate of",
    hint: "It replaces the file's rate, in all replicas at once, until its time is over or it is unset.",
    fields: ["rate", "limit", "for", "reason"],
    rateLabel: "Rate",
    request: ["PUT", "rate"],
    done: ({ name, sent }) => `The rate of ${sent.limit} of ${name} is ${sent.rate} ${lasting(sent)}.`,
  },
  unset: {
    title: "Unset the rate of",
    hint: "The rate of the file is in force again.",
    fields: ["reason"],
    request: ["DELETE", "rate"],
    done: ({ name, sent }) => `The rate of ${sent.limit} of ${name} is that of the file again.`,
  },
  reset: {
    title: "Reset",
    hint: "Its count starts at 0 again, in all replicas at once: what was used may be used again.",
    fields: ["confirm", "reason"],
    request: ["POST", "reset"],
    done: ({ name, sent }) => `The count of ${sent.limit} of ${name} starts at 0 again.`,
  },
  cancel: {
    title: "Cancel jobs",
    submit: "Cancel jobs",
    hint: "Jobs with these ids are not sent, also if they are parked, wait for a retry or come later. `paced cancel --undo` ends that.",
    forHint: "Such as 1d or 30d; empty: 366 days",
    fields: ["ids", "for", "reason"],
    request: ["POST", "cancel"],
    done: ({ name, sent }) => `${countOf(sent.ids.length, "id")} of ${name} cancelled for ${sent.for ?? "366d"}.`,
  },
  replay: {
    title: "Replay",
    hint: "Replayed letters become jobs again, oldest first. The pace only bounds how fast they come into the queue.",
    fields: ["rate", "reason"],
    rateLabel: "Pace (optional)",
    reasonKey: "audit",
    request: ["POST", "dead/replay"],
    worked: "replayed",
    done: ({ name, answer: { replayed, failed, passed, ...end } }) =>
      `${name}: ${countOf(replayed, "dead letter")} replayed, ${count(failed)} failed, ${count(passed)} passed over.${stopOf(end)}`,
  },
  purge: {
    title: "Purge",
    hint: "What is purged is gone for good.",
    fields: ["confirm", "reason"],
    reasonKey: "audit",
    request: ["POST", "dead/purge"],
    worked: "purged",
    done: ({ name, answer: { purged, passed, ...end } }) =>
      `${name}: ${countOf(purged, "dead letter")} purged, ${count(passed)} passed over.${stopOf(end)}`,
  },
};

/** What ended work on dead letters early, as a sentence. */
function stopOf({ stopped_by: by, error }) {
  const why = error == null ? "" : ` The last error: ${error}.`;
  if (by === "time") return ` Stopped, as its time was over: do it again for the others.${why}`;
  return by == null ? why : ` Stopped before all were examined.${why}`;
}

const FOR_HINT = "Such as 10m, 2h or 1d; empty: until somebody ends it";
const FIELDS = ["ids", "rate", "limit", "for", "confirm", "reason"];

function lasting({ for: span }) {
  return span ? `for ${span}` : "until somebody ends it";
}

/** The dialog for a change of a downstream. */
export class ChangeDialog {
  #dialog = byId("change-dialog");
  #client;
  #onOutcome;
  /** What is being asked: `{ change, name, fixed, finish }`. */
  #asked = null;

  /** `onOutcome` reports what was done. */
  constructor(client, onOutcome) {
    this.#client = client;
    this.#onOutcome = onOutcome;
    closable(this.#dialog);
    onSubmit(this.#dialog.querySelector("form"), byId("change-submit"), () => this.#submit());
    this.#dialog.addEventListener("close", () => this.#dialog.open || this.#finish(null));
  }

  /**
   * Asks for what a change needs, makes it, and resolves to what was done, or to null if the reader leaves. `subject` is
   * what of the downstream is changed, if not the whole, and `fixed` says that in the body of the request. The fields begin with
   * what is `given`.
   */
  open(change, { name, limits = [] }, { subject = null, fixed = {}, given = {} } = {}) {
    const { title, hint, fields, forHint = FOR_HINT, rateLabel = "", submit: text = title.split(" ")[0] } = CHANGES[change];
    byId("change-title").textContent = `${title} ${subject === null ? "" : `${subject} of `}${name}`;
    byId("change-hint").textContent = hint;
    for (const field of FIELDS) {
      setShown(inputOf(field).parentElement, fields.includes(field));
      inputOf(field).value = given[field] ?? "";
    }
    byId("change-for-hint").textContent = forHint;
    labelOf("rate").textContent = rateLabel;
    labelOf("confirm").textContent = `Type ${name} to confirm`;
    offerLimits(limits);
    const submit = byId("change-submit");
    submit.textContent = text;
    submit.classList.toggle("final", fields.includes("confirm"));
    showError(byId("change-error"), null);
    this.#dialog.showModal();
    inputOf(fields[0]).focus();
    return new Promise((finish) => {
      this.#asked = { change: CHANGES[change], name, fixed, finish };
    });
  }

  async #submit() {
    const asked = this.#asked;
    const { change, name, fixed } = asked;
    showError(byId("change-error"), null);
    if (change.fields.includes("confirm") && inputOf("confirm").value.trim() !== name) {
      showError(byId("change-error"), `Nothing was done: type ${name} to confirm.`);
      inputOf("confirm").focus();
      return;
    }
    const sent = { ...fixed, ...filledIn(change) };
    try {
      const answer = await this.#send(asked, sent);
      const outcome = change.done({ name, sent, answer });
      this.#onOutcome(outcome);
      // The reader may have left the dialog meanwhile, and opened it for another change.
      if (this.#asked === asked) this.#finish(outcome);
    } catch (error) {
      if (this.#asked === asked) showError(byId("change-error"), error.message);
      else this.#onOutcome(`${name}: ${error.message}`);
    }
  }

  /**
   * Sends the request. Work on letters that stops because its time is over continues by further requests, with what is left
   * of the bound, for as long as each does something and the dialog stays.
   */
  async #send(asked, sent) {
    const { request, worked } = asked.change;
    const path = pathOf(asked.name, request[1]);
    let { first } = sent;
    let done = 0;
    for (;;) {
      const answer = await this.#client.request(request[0], path, { ...sent, first });
      if (worked === undefined) return answer;
      done += answer[worked];
      const goesOn = answer.stopped_by === "time" && answer[worked] > 0 && this.#asked === asked;
      if (!goesOn) return { ...answer, [worked]: done };
      first -= answer[worked];
      byId("change-hint").textContent = `${countOf(done, "dead letter")} ${worked} so far…`;
    }
  }

  #finish(outcome) {
    this.#asked?.finish(outcome);
    this.#asked = null;
    if (this.#dialog.open) this.#dialog.close();
  }
}

function inputOf(field) {
  return byId(`change-${field}`);
}

function labelOf(field) {
  return inputOf(field).labels[0];
}

/** What the reader filled in, by the keys of the API. What is empty is left out. */
function filledIn({ fields, reasonKey = "reason" }) {
  // The daemon says what is wrong with no ids at all.
  const given = fields.filter((field) => field === "ids" || (field !== "confirm" && inputOf(field).value.trim()));
  const entry = (field) => {
    const text = inputOf(field).value.trim();
    if (field === "ids") return [field, text.split("\n").map((line) => line.trim()).filter(Boolean)];
    return [field === "reason" ? reasonKey : field, text];
  };
  return Object.fromEntries(given.map(entry));
}

/** The limits to choose from. The first one is that which `rate = "..."` in the file makes, if there is one. */
function offerLimits(limits) {
  const isUsual = ({ name }) => name === "leaky-bucket-0";
  const sorted = [...limits].sort((one, other) => isUsual(other) - isUsual(one));
  inputOf("limit").replaceChildren(...sorted.map(({ name, rate }) => new Option(`${name} (${rate})`, name)));
}
