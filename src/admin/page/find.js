// The dialog that finds a job by its id.

import { pathOf } from "./api.js";
import { causeOf } from "./dead.js";
import { closable, onSubmit, showError } from "./dialogs.js";
import { byId, setProse, setShown } from "./dom.js";
import { rfc3339 } from "./words.js";

/** Says where a job is, and cancels it. */
export class FindDialog {
  #dialog = byId("find-dialog");
  #client;
  #changeDialog;
  #name = null;
  /** How often it was opened: an answer to a question from before is not shown. */
  #opened = 0;
  /** The id that the answer is about. */
  #id = null;
  /** What is known of it, in lines, without what the search of dead letters has found. */
  #lines = [];

  constructor(client, changeDialog) {
    this.#client = client;
    this.#changeDialog = changeDialog;
    closable(this.#dialog);
    onSubmit(this.#dialog.querySelector("form"), byId("find-submit"), () => this.#find(byId("find-id").value.trim()));
    byId("find-dead").addEventListener("click", () => this.#findLetter());
    byId("find-cancel").addEventListener("click", () => this.#cancel());
  }

  open(name) {
    this.#opened += 1;
    this.#name = name;
    byId("find-title").textContent = `Find a job of ${name}`;
    byId("find-id").value = "";
    this.#clear();
    this.#dialog.showModal();
    byId("find-id").focus();
  }

  #clear() {
    this.#id = null;
    this.#show([]);
    showError(byId("find-error"), null);
    for (const button of ["find-dead", "find-cancel"]) setShown(byId(button), false);
  }

  #show(lines) {
    this.#lines = lines;
    this.#draw(lines);
  }

  #draw(lines) {
    byId("find-lines").replaceChildren(...lines.map((line) => {
      const item = document.createElement("li");
      setProse(item, line);
      return item;
    }));
  }

  async #find(id) {
    const path = `job?id=${encodeURIComponent(id)}`;
    const opened = this.#opened;
    let found = await this.#ask(path, () => this.#clear());
    if (found === null) return;
    if (found.jobs.length === 0 && found.not_asked.length > 0) {
      this.#show([...found.text, "asking the other replicas…"]);
      found = (await this.#ask(`${path}&others=true`, () => {})) ?? found;
      if (opened !== this.#opened) return;
    }
    this.#id = id;
    this.#show(found.text);
    setShown(byId("find-dead"), found.jobs.length === 0);
    setShown(byId("find-cancel"), !found.cancelled);
  }

  /** Only dead letters can be searched in the broker. Nobody else gets them meanwhile, so that this is asked for by itself. */
  async #findLetter() {
    const id = this.#id;
    const found = await this.#ask(`dead?limit=1&id=${encodeURIComponent(id)}`, () => showError(byId("find-error"), null));
    if (found !== null && id === this.#id) this.#draw([...this.#lines, letterText(found)]);
  }

  /** Asks, after `begin`. Null if there is no answer, or the dialog was opened again by then. */
  async #ask(path, begin) {
    const [name, opened] = [this.#name, this.#opened];
    begin();
    try {
      const answer = await this.#client.request("GET", pathOf(name, path));
      return opened === this.#opened ? answer : null;
    } catch (error) {
      if (opened === this.#opened) showError(byId("find-error"), error.message);
      return null;
    }
  }

  async #cancel() {
    const [name, id, opened] = [this.#name, this.#id, this.#opened];
    const outcome = await this.#changeDialog.open("cancel", { name }, { given: { ids: id } });
    if (outcome === null || opened !== this.#opened || !this.#dialog.open) return;
    await this.#find(id);
    // The button that had the focus may be hidden now.
    if (!this.#dialog.contains(document.activeElement)) byId("find-id").focus();
  }
}

function letterText({ letters, stopped_by: by }) {
  const [letter] = letters;
  if (letter === undefined) {
    return by == null ? "no dead letter has this id" : "not all dead letters could be examined; none of the others has this id";
  }
  const since = letter.dead_at == null ? "" : ` since ${rfc3339(letter.dead_at)}`;
  return `it is a dead letter${since}: ${causeOf(letter)}${letter.detail ? `; ${letter.detail}` : ""}`;
}
