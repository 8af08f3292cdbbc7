// The browser, and what the tests ask of a page.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

// The packages lie outside of the sources, where tests/support/test-page.sh installs them.
const require = createRequire(`${process.env.PAGE_MODULES ?? new URL("../../target/page", import.meta.url).pathname}/`);
const { chromium } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run"];

export function launch() {
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ARGS });
}

/** A browser that collects what its pages complain of. */
export class Browser {
  #browser;
  /** Errors and warnings of all pages. */
  problems = [];

  static async open() {
    const browser = new Browser();
    browser.#browser = await launch();
    return browser;
  }

  close() {
    return this.#browser.close();
  }

  async closePages() {
    for (const context of this.#browser.contexts()) await context.close();
  }

  /**
   * Opens a page. If it `mayFail`, what the browser logs of answers that are no success is expected; a breach of the content
   * security policy and an error of a script never are.
   */
  async page(url, { mayFail = false, ...options } = {}) {
    const context = await this.#browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
    const page = await context.newPage();
    page.setDefaultTimeout(15_000);
    page.on("pageerror", (error) => this.problems.push(error.stack));
    page.on("console", (message) => {
      const isExpected = mayFail && message.text().startsWith("Failed to load resource");
      if (["error", "warning"].includes(message.type()) && !isExpected) {
        this.problems.push(`${message.type()}: ${message.text()}`);
      }
    });
    await page.goto(url);
    return page;
  }
}

/** Waits until the first chart is drawn, which is after the first state and the history. */
export function isDrawn(page) {
  return page.waitForSelector(".card .chart .line[d^=M]", { state: "attached", timeout: 30_000 });
}

/** Gives the token to the page, as a reader does. */
export async function giveToken(page, token) {
  await page.locator("#token-button").click();
  await page.locator("#token-input").fill(token);
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Token: given" }).waitFor();
}

/** The button of a card: "Pause…", "Set rate…" and so on. */
export function button(page, action, name) {
  return page.getByRole("button", { name: `${action} ${name}`, exact: true });
}

/** The card of a downstream. */
export function card(page, name) {
  return page.locator(`.card[data-name="${name}"]`);
}

/** Waits until the page shows this outcome of a change. */
export function showsOutcome(page, text) {
  return page.waitForFunction((wanted) => document.getElementById("outcome-text").textContent.includes(wanted), text);
}

/** Waits until an element with this id shows this text. */
export function showsText(page, id, text) {
  return page.waitForFunction(([at, wanted]) => document.getElementById(at).textContent.includes(wanted), [id, text]);
}

/** Asks axe, and fails for each problem that it calls serious or critical. */
export async function isAccessible(page, what) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const lines = violations.map(({ id, impact, nodes }) => `${impact} ${id}: ${nodes.slice(0, 3).map(({ target }) => target)}`);
  if (lines.length) console.log(`  axe, ${what}: ${lines.join("; ")}`);
  assert.deepEqual(lines.filter((line) => /^(serious|critical)/.test(line)), [], what);
}

/** Checks that nothing scrolls sideways, neither the page nor its open dialog. */
export async function fits(page, what) {
  const excess = await page.evaluate(() => {
    const dialog = document.querySelector("dialog[open]");
    return [document.scrollingElement.scrollWidth - innerWidth, dialog ? dialog.scrollWidth - dialog.clientWidth : 0];
  });
  assert.ok(excess.every((pixels) => pixels <= 0), `${what}: ${excess} px too wide`);
}

/** The element with the focus: its id, its name, and whether its ring can be seen. */
export function focused(page) {
  return page.evaluate(() => {
    const element = document.activeElement;
    const { outlineStyle, outlineWidth } = getComputedStyle(element);
    return {
      id: element.id,
      name: element.getAttribute("aria-label") ?? element.textContent.trim().slice(0, 60),
      hasRing: element === document.body || (outlineStyle !== "none" && parseFloat(outlineWidth) >= 2),
    };
  });
}

/** Tabs to the element of this name, and checks that the focus can be seen all the way. */
export async function tabTo(page, name) {
  for (let presses = 0; presses < 80; presses += 1) {
    await page.keyboard.press("Tab");
    const at = await focused(page);
    assert.ok(at.hasRing, `no ring on ${JSON.stringify(at)}`);
    if (at.name === name) return;
  }
  assert.fail(`cannot reach ${name}`);
}
