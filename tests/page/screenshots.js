// Takes the pictures of the live page in docs/images: `make screenshots`.

import assert from "node:assert/strict";
import { mkdirSync, statSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { Browser, isDrawn } from "./browser.js";
import { Stage } from "./stage.js";

const FOLDER = fileURLToPath(new URL("../../docs/images/", import.meta.url));
/** How long jobs are released before, so that the charts show something, in s. */
const SECONDS = Number(process.env.PAGE_SECONDS ?? 180);
/** The longest picture, in bytes. */
const LONGEST = 150_000;

const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

const stage = await Stage.open();
const browser = await Browser.open();
try {
  const [{ url }] = [await stage.start("a"), await stage.start("b")];
  await play(url);
  mkdirSync(FOLDER, { recursive: true });
  await take(url, "page-light", { colorScheme: "light", viewport: { width: 1120, height: 720 } });
  await take(url, "page-dark", { colorScheme: "dark", viewport: { width: 1120, height: 720 } });
  await take(url, "page-phone", { colorScheme: "light", viewport: { width: 360, height: 740 } });
} finally {
  await browser.close();
  await stage.close();
}

/** Has the downstreams do what downstreams do: one at its limit, one whose API fails, one that was slowed down, one at rest. */
async function play(url) {
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
  const { size } = statSync(path);
  console.log(`docs/images/${name}.png: ${Math.round(size / 1000)} kB`);
  assert.ok(size < LONGEST, `${name} has ${size} bytes`);
}
