// Many downstreams: how fast the page is drawn, and what it costs the daemon.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";

import { fits, isAccessible } from "./browser.js";
import { ask, browser, scene, stage, until } from "./scene.js";

const DOWNSTREAMS = 500;
/** The downstreams that have jobs all the time, one a second each. */
const BUSY = 50;
/** How long the daemon's processor time is measured, in s, and how often with a page. */
const SECONDS = 30;
const ROUNDS = 2;
/** After how long without a look the daemon takes it that nobody looks any more, and a little more, in s. */
const UNSEEN = 18;

/** The daemon. Its first start takes a while, as the broker makes its queues. */
let started;
function many() {
  started ??= stage.start("many");
  return started;
}

/** Waits until the rows are drawn. */
function isDrawn(page) {
  return page.waitForFunction(() => performance.getEntriesByName("paced:first-draw").length > 0);
}

/** How long it took from the first state until it was painted, in ms. */
async function firstDraw(page) {
  await isDrawn(page);
  return page.evaluate(() => performance.getEntriesByName("paced:first-draw")[0].duration);
}

const medianOf = (times) => times.toSorted((one, other) => one - other)[Math.floor(times.length / 2)];

scene("500 downstreams are drawn within 300 ms, ordered and filtered", async (context) => {
  const { url } = await many();
  const times = [];
  let page;
  for (let round = 0; round < 5; round += 1) {
    await page?.context().close();
    page = await browser.page(url, { viewport: { width: 1440, height: 900 } });
    times.push(Math.round(await firstDraw(page)));
  }
  context.diagnostic(`from the first state until it was painted: ${times.join(", ")} ms`);
  const median = medianOf(times);
  assert.ok(median < 300, `the median is ${median} ms`);
  assert.equal(await page.locator(".card").count(), DOWNSTREAMS);
  assert.equal(await page.locator(".card h3").nth(2).textContent(), "partner-2", "numbers are in their order");
  await page.locator("#filter").fill("partner-49");
  assert.equal(await page.locator(".card:not([hidden])").count(), 11);
  assert.equal(await page.locator("#filter-count").textContent(), `11 of ${DOWNSTREAMS}`);
  await isAccessible(page, "500 downstreams");
  await page.locator("#filter").fill("");
  assert.equal(await page.locator(".chart").count(), 0, "a row has no chart");
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  const last = page.locator(".card").last();
  // A row is drawn when it comes near; the dead letters of all these queues are known after a while.
  const figures = /rate ?\S+ of \S+ backlog ?\d+ parked ?(\d+|–) dead ?(\d+|–)/;
  await until("the last row", 15, async () => figures.test((await last.locator(".brief").textContent()).replace(/\s+/g, " ")));
  await last.getByRole("button", { name: /^Open partner-/ }).press("Enter");
  await last.locator(".chart .line[d^=M]").waitFor({ state: "attached" });
  assert.equal(await last.locator(".brief").isVisible(), false);
  await page.locator("#filter").fill(await last.locator("h3").textContent());
  await isAccessible(page, "an open row");
  await last.getByRole("button", { name: /^Close partner-/ }).press("Enter");
  await last.locator(".chart").waitFor({ state: "hidden" });
  const phone = await browser.page(url, { viewport: { width: 320, height: 640 }, hasTouch: true, isMobile: true });
  await isDrawn(phone);
  await fits(phone, "rows on a phone");
});

scene("1 000 downstreams are drawn in at most three times the time of 100", async (context) => {
  const { url } = await many();
  const { body: state } = await ask(url, "status");
  const of = (count) => {
    const named = (_, n) => ({ ...state.downstreams[n % state.downstreams.length], name: `partner-${n}` });
    return JSON.stringify({ ...state, downstreams: Array.from({ length: count }, named) });
  };
  const times = { 100: [], 1000: [] };
  for (let round = 0; round < 10; round += 1) {
    const count = round % 2 ? 1000 : 100;
    const page = await browser.page("about:blank", { viewport: { width: 1440, height: 900 } });
    // What this daemon says of its downstreams, of some or more than once.
    const answer = { contentType: "text/event-stream", body: `event: state\ndata: ${of(count)}\n\n` };
    let isAnswered = false;
    await page.route("**/api/v1/events", (route) => {
      // The page connects again. That stream stays open.
      if (!isAnswered) route.fulfill(answer);
      isAnswered = true;
    });
    await page.goto(url);
    times[count].push(await firstDraw(page));
    assert.equal(await page.locator(".card").count(), count);
    await page.context().close();
  }
  const [few, more] = [medianOf(times[100]), medianOf(times[1000])];
  context.diagnostic(`100 downstreams: ${few.toFixed(0)} ms, 1 000: ${more.toFixed(0)} ms (medians of 5)`);
  assert.ok(more <= 3 * few, `${more} ms, ${few} ms`);
});

scene("an open page with 500 downstreams costs the daemon less than 0.6 s of processor time a minute", async (context) => {
  const { url, pid } = await many();
  const busy = Array.from({ length: BUSY }, (_, n) => `partner-${n * 10}`);
  await stage.publish("many", busy, 12 * SECONDS);
  const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  await wait(UNSEEN);
  // Both kinds of phases take turns, since the daemon's other work is not the same all the time.
  const [unseen, seen] = [[await perMinute(pid)], []];
  for (let round = 0; round < ROUNDS; round += 1) {
    const page = await browser.page(url);
    await isDrawn(page);
    await wait(3);
    seen.push(await perMinute(pid));
    // A stream ends after 50 s. The page opens another one, and does not say a word.
    await wait(55 - SECONDS);
    const streams = () => performance.getEntriesByType("resource").filter(({ name }) => name.endsWith("/events")).length;
    assert.ok((await page.evaluate(streams)) >= 1, "a stream has ended");
    assert.ok(!(await page.locator("#cut").isVisible()));
    await page.context().close();
    await wait(UNSEEN);
    unseen.push(await perMinute(pid));
  }
  const costs = seen.map((open, round) => open - (unseen[round] + unseen[round + 1]) / 2);
  const cost = costs.reduce((sum, one) => sum + one) / ROUNDS;
  const figures = (all) => all.map((seconds) => seconds.toFixed(2)).join(", ");
  context.diagnostic(`without a page ${figures(unseen)} s a minute, with one ${figures(seen)}: it costs ${cost.toFixed(2)} s`);
  context.diagnostic(`${BUSY} of ${DOWNSTREAMS} downstreams released a job a second meanwhile`);
  if (process.env.PAGE_PROFILE === "dev") context.diagnostic("the cost is not judged: this is no release build");
  else assert.ok(cost < 0.6, `${cost} s`);
});

/** The processor time of a process, in s a minute. */
async function perMinute(pid) {
  const ticks = Number(execFileSync("getconf", ["CLK_TCK"]));
  const used = () => {
    // The name before them may have spaces; utime and stime are the 14th and the 15th field of all.
    const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
    return (Number(fields[11]) + Number(fields[12])) / ticks;
  };
  const [from, start] = [performance.now(), used()];
  await new Promise((resolve) => setTimeout(resolve, SECONDS * 1000));
  return ((used() - start) * 60_000) / (performance.now() - from);
}
