// Takes the pictures in docs/images, of the live page, `paced top` and the demo: `make screenshots`.

import assert from "node:assert/strict";
import { mkdirSync, statSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { Browser, isDrawn } from "./browser.js";
import { Stage } from "./stage.js";
import { picture, record } from "./terminal.js";

const FOLDER = fileURLToPath(new URL("../../docs/images/", import.meta.url));
/** How long jobs are released before, so that the charts show something, in s. */
const SECONDS = Number(process.env.PAGE_SECONDS ?? 180);
/** The longest picture, in bytes. */
const LONGEST = 150_000;

/** Where the programs are that were built before. */
const PROGRAMS = process.env.PAGE_PROGRAMS ?? fileURLToPath(new URL("../../target/release/", import.meta.url));

const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

const browser = await Browser.open();
try {
  mkdirSync(FOLDER, { recursive: true });
  await takeLive();
  // The demo has servers of its own, and the machine for itself.
  await takeTerminal("demo", [`${PROGRAMS}/paced-demo`], { columns: 100, rows: 34 });
} finally {
  await browser.close();
}

async function takeLive() {
  const stage = await Stage.open();
  try {
    const [{ url }] = [await stage.start("a"), await stage.start("b")];
    await play(stage, url);
    await take(url, "page-light", { colorScheme: "light", viewport: { width: 1120, height: 720 } });
    await take(url, "page-dark", { colorScheme: "dark", viewport: { width: 1120, height: 720 } });
    await take(url, "page-phone", { colorScheme: "light", viewport: { width: 360, height: 740 } });
    await takeTerminal("top", [`${PROGRAMS}/paced`, "top", "--admin", url], { columns: 110, rows: 26, seconds: 5 });
  } finally {
    await stage.close();
  }
}

/** Has the downstreams do what downstreams do: one at its limit, one whose API fails, one that was slowed down, one at rest. */
async function play(stage, url) {
  await stage.publish("a", "exports", 1000);
  await stage.publish("a", "billing", 52 * SECONDS);
  await stage.publish("a", "invoice-mailer", 9 * SECONDS);
  await stage.publish("a", "crm-sync", 10 * SECONDS);
  await wait(SECONDS * 0.6);
  const body = JSON.stringify({ rate: "6/s", limit: "leaky-bucket-0", for: "2h", reason: "they are migrating" });
  const headers = { authorization: `Bearer ${stage.token}`, "content-type": "application/json" };
  await fetch(`${url}api/v1/downstreams/invoice-mailer/rate`, { method: "PUT", headers, body });
  await wait(SECONDS * 0.3);
  await stage.answer("crm-sync", 500, '{"error": "internal server error"}');
  await stage.publish("a", "crm-sync", 5 * SECONDS);
  await wait(SECONDS * 0.1);
}

async function take(url, name, options) {
  const page = await browser.page(url, { ...options, timezoneId: "UTC" });
  await isDrawn(page);
  await wait(2);
  const path = `${FOLDER}${name}.png`;
  await page.screenshot({ path, animations: "disabled" });
  await browser.closePages();
  judge(name, path);
}

async function takeTerminal(name, command, options) {
  const path = `${FOLDER}${name}.png`;
  await picture(browser, await record(command, options), { ...options, path });
  judge(name, path);
}

function judge(name, path) {
  const { size } = statSync(path);
  console.log(`docs/images/${name}.png: ${Math.round(size / 1000)} kB`);
  assert.ok(size < LONGEST, `${name} has ${size} bytes`);
}
