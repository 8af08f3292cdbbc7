// What all tests share: one stage, one browser, and the rule that no page may complain.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Browser } from "./browser.js";
import { Stage } from "./stage.js";

export const stage = await Stage.open();
export const browser = await Browser.open();

const scenes = [];

/** Waits until all scenes are over, and ends what they share. Node would do so after the first test that it skips by its name. */
export async function close() {
  await Promise.all(scenes);
  await browser.close();
  await stage.close();
}

/** A test of pages. They are closed at its end, and must not have logged an error under the content security policy. */
export function scene(name, run) {
  scenes.push(test(name, async (context) => {
    browser.problems.length = 0;
    try {
      await run(context);
    } catch (error) {
      for (const problem of browser.problems) context.diagnostic(problem);
      throw error;
    } finally {
      await browser.closePages();
    }
    assert.deepEqual(browser.problems, [], "errors of the page");
  }));
}

/** Asks the API of a daemon, as somebody who may do anything. */
export async function ask(url, path, { method = "GET", body } = {}) {
  const headers = { authorization: `Bearer ${stage.token}`, "content-type": "application/json" };
  const response = await fetch(`${url}api/v1/${path}`, { method, headers, body: JSON.stringify(body) });
  return { status: response.status, body: await response.json() };
}

/** Waits until something holds, and returns it; fails with what it was last. */
export async function until(what, seconds, probe) {
  const end = performance.now() + seconds * 1000;
  for (;;) {
    const found = await probe();
    if (found) return found;
    assert.ok(performance.now() < end, `not within ${seconds} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Whether the daemon serves dead letters; the answer to its list of them, if there are any. */
export async function hasDeadLetters(url) {
  return (await ask(url, "downstreams/crm-sync/dead?limit=1")).status !== 404;
}

export const NO_DEAD_LETTERS = "the daemon has no routes for dead letters (404)";

let prepared;

/** Starts two replicas. One downstream of theirs has dead letters, and another a rate that was set. */
export function replicas() {
  prepared ??= prepare();
  return prepared;
}

async function prepare() {
  const [a, b] = [await stage.start("a"), await stage.start("b")];
  await stage.answer("crm-sync", 422, '{"error": "<b>no</b> such customer"}');
  await stage.publish("a", "crm-sync", 7);
  await until("the API refuses seven jobs", 20, async () => (await stage.count("crm-sync")) === 7);
  const body = { rate: "8/s", limit: "leaky-bucket-0", for: "1h", reason: "<b>bold</b><img src=x onerror=alert(1)>" };
  const { status } = await ask(a.url, "downstreams/invoice-mailer/rate", { method: "PUT", body });
  assert.equal(status, 200);
  return { a, b };
}
