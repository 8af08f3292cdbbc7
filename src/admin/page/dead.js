// The dialog with the dead letters of a downstream.

import { pathOf } from "./api.js";
import { closable, showError } from "./dialogs.js";
import { byId, setProse, setShown, setText, setTime, stamp, syncRows } from "./dom.js";
import { clock, count, countOf } from "./words.js";

/** How many letters are shown at first, and how many more each time that more are asked for. */
const PAGE = 50;

/** Lists dead letters, and lets them be replayed and purged, one by one, by their cause, or all. */
export class DeadDialog {
  #dialog = byId("dead-dialog");
  #client;
  #changeDialog;
  #name = null;
  /** How often it was opened: an answer to a question from before is not shown. */
  #opened = 0;
  #letters = [];
  #total = 0;
  /** When the daemon began the list that is shown, on its clock. */
  #listedAt = null;
  #wanted = PAGE;

  constructor(client, changeDialog) {
    this.#client = client;
    this.#changeDialog = changeDialog;
    closable(this.#dialog);
    // Bodies and answers do not stay on the page.
    this.#dialog.addEventListener("close", () => this.#clear());
    byId("dead-kind").addEventListener("change", () => this.#drawLetters());
    byId("dead-more").addEventListener("click", () => this.#load(this.#wanted + PAGE));
    for (const change of ["replay", "purge"]) {
      byId(`dead-${change}`).addEventListener("click", () => this.#change(change, this.#filter()));
    }
  }

  open(name) {
    this.#name = name;
    this.#clear();
    byId("dead-title").textContent = `Dead letters of ${name}`;
    this.#dialog.showModal();
    this.#load(PAGE);
  }

  #clear() {
    this.#opened += 1;
    this.#letters = [];
    this.#total = 0;
    this.#offerKinds();
    this.#drawLetters();
  }

  /** Asks for the letters again. `outcome` is what was done to them before. */
  async #load(wanted, outcome = "") {
    const [name, opened] = [this.#name, this.#opened];
    this.#wanted = wanted;
    byId("dead-status").textContent = outcome || "Asking the broker…";
    showError(byId("dead-error"), null);
    try {
      const { letters, total, listed_at: listedAt } = await this.#client.request("GET", pathOf(name, `dead?limit=${wanted}`));
      if (opened !== this.#opened) return;
      this.#letters = letters;
      this.#total = total;
      this.#listedAt = listedAt;
      byId("dead-status").textContent = `${outcome} ${this.#summary()}`.trim();
    } catch (error) {
      if (opened !== this.#opened) return;
      byId("dead-status").textContent = outcome;
      showError(byId("dead-error"), error.message);
    }
    this.#offerKinds();
    this.#drawLetters();
  }

  #summary() {
    const shown = this.#letters.length;
    if (this.#total === 0) return "There are no dead letters.";
    const all = countOf(this.#total, "dead letter");
    return shown < this.#total ? `The oldest ${count(shown)} of ${all}.` : `${all}, oldest first.`;
  }

  /** Offers all letters, or those of one cause. */
  #offerKinds() {
    const select = byId("dead-kind");
    const former = select.value;
    // Letters without a cause, such as those of the broker, are only chosen with all others, or by their id.
    const caused = this.#letters.filter(({ reason, status }) => reason != null || status != null);
    const kinds = new Map(caused.map((letter) => [kindOf(letter), `only ${causeOf(letter)}`]));
    const options = [...kinds].map(([kind, label]) => new Option(label, kind));
    select.replaceChildren(new Option("all", ""), ...options);
    select.value = kinds.has(former) ? former : "";
    setShown(byId("dead-tools"), this.#letters.length > 0);
  }

  /** The chosen cause, or all letters, as a filter of the API. */
  #filter() {
    return JSON.parse(byId("dead-kind").value || '{"all":true}');
  }

  #drawLetters() {
    const kind = byId("dead-kind").value;
    const chosen = this.#letters.filter((letter) => !kind || kindOf(letter) === kind);
    syncRows(byId("letters"), chosen, {
      key: (letter) => JSON.stringify([letter.id, letter.dead_at, letter.key]),
      make: (letter) => this.#makeLetter(letter),
      update: drawLetter,
    });
    setShown(byId("dead-more"), this.#letters.length >= this.#wanted && this.#total > this.#letters.length);
  }

  #makeLetter(listed) {
    const { id } = listed;
    const row = stamp("letter-template");
    // Only a letter whose job has an id can be named.
    setShown(row.request, id != null);
    row.requestSummary.setAttribute("aria-label", `${row.requestSummary.textContent} ${id}`);
    row.request.addEventListener("toggle", () => this.#showBody(row, listed));
    for (const change of ["replay", "purge"]) {
      const button = row[change];
      // A job that was published without an id can only be named by its cause.
      setShown(button, id != null);
      button.setAttribute("aria-label", `${button.textContent} ${id}`);
      button.addEventListener("click", () => this.#change(change, { id }));
    }
    return row;
  }

  /** Reads the body of a letter when it is opened: that is not in the list, and needs the role `admin`. */
  async #showBody({ request, about, body }, listed) {
    if (!request.open || !body.hidden) return;
    setText(about, "Asking the broker…");
    try {
      const letter = await this.#client.request("GET", pathOf(this.#name, `dead/letter?${nameOf(listed)}`));
      // Another job may have the same id: its body is not this letter's.
      if (letter.dead_at !== listed.dead_at || letter.key !== listed.key) {
        setText(about, "Another dead letter has the same id, so this one is not shown here; see `paced dead show`.");
        return;
      }
      setText(about, aboutBody(letter));
      setText(body, letter.body);
      setShown(body, letter.body !== "");
    } catch (error) {
      setText(about, error.message);
    }
  }

  async #change(change, filter) {
    const [name, opened] = [this.#name, this.#opened];
    const subject = describe(filter, this.#total);
    // What was not shown is not meant: letters that came since the list was made.
    const fixed = { ...filter, first: this.#total, died_until: this.#listedAt };
    const outcome = await this.#changeDialog.open(change, { name }, { subject, fixed });
    if (outcome === null || opened !== this.#opened || !this.#dialog.open) return;
    await this.#load(this.#wanted, outcome);
    // The button that had the focus may have gone with its letter, or be hidden because none is left.
    const focused = document.activeElement;
    const isThere = this.#dialog.contains(focused) && !focused.closest("[hidden]");
    if (!isThere) this.#dialog.querySelector("[data-close]").focus();
  }
}

/** A letter as a query of the API: what is not known of it is left out. */
function nameOf({ id, dead_at: at, key }) {
  const known = Object.entries({ id, dead_at: at, key }).filter(([, value]) => value != null);
  return new URLSearchParams(known).toString();
}

/** The cause of a letter as a filter of the API, in JSON: what is not known of it is left out. */
function kindOf({ reason, status }) {
  return JSON.stringify({ reason: reason ?? undefined, status: status ?? undefined });
}

/** The cause of a letter in words. */
export function causeOf({ reason, status }) {
  return [reason ?? "no known reason", status].filter((part) => part != null).join(", ");
}

function describe({ id, all, ...cause }, total) {
  const count = countOf(total, "dead letter");
  if (id !== undefined) return `dead letter ${id}`;
  return all ? count : `those with ${causeOf(cause)} among ${count}`;
}

function aboutBody({ bytes, content_type: type, content_encoding: encoding, is_cut: isCut }) {
  const size = `${countOf(bytes, "byte")}${isCut ? ", of which this is the beginning" : ""}`;
  return [size, type, encoding].filter(Boolean).join(" · ");
}

function drawLetter(row, letter) {
  const { id, attempts, key, method, path, dead_at: at, response } = letter;
  setText(row.reason, causeOf(letter));
  setProse(row.detail, letter.detail ?? "");
  setText(row.id, id ?? "without id");
  const facts = attempts == null ? [] : [countOf(attempts, "attempt")];
  if (key != null) facts.push(`key ${key}`);
  if (method != null || path != null) facts.push([method ?? "POST", path].filter(Boolean).join(" "));
  setText(row.facts, facts.map((fact) => `· ${fact}`).join(" "));
  setTime(row.when, at, at == null ? "" : `· ${clock(at)}`);
  setShown(row.answer, Boolean(response));
  setText(row.response, response ?? "");
  row.answerSummary.setAttribute("aria-label", `Answer of the API to ${id ?? "a job without id"}`);
}
