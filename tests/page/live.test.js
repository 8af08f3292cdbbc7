// Whether the page is live, and right.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { card, isDrawn, showsText } from "./browser.js";
import { ask, browser, replicas, scene, stage, until } from "./scene.js";

/** The number that a part of a card shows. */
async function figure(page, name, part) {
  const text = await card(page, name).locator(`[data-part="${part}"]`).first().textContent();
  return Number(text.replace(/[^\d.]/g, ""));
}

scene("figures and charts move with the jobs", async () => {
  const { a } = await replicas();
  const page = await browser.page(a.url);
  await isDrawn(page);
  assert.equal(await figure(page, "billing", "rate"), 0);
  const chart = card(page, "billing").locator(".chart .line");
  const before = await chart.getAttribute("d");
  await stage.publish("a", "billing", 1500);
  await until("jobs wait", 5, async () => (await figure(page, "billing", "waiting")) > 100);
  assert.equal(await card(page, "billing").locator('[data-part="state"]').textContent(), "at its limit");
  // The rate is that of the last ten seconds; that of the other replica comes some seconds later.
  await until("the rate is that of the limit", 25, async () => Math.abs((await figure(page, "billing", "rate")) - 50) <= 1.5);
  assert.notEqual(await chart.getAttribute("d"), before);
  const { step_ms: step, downstreams } = (await ask(a.url, "history")).body;
  const highest = (Math.max(...downstreams.billing.released) * 1000) / step;
  const shown = await figure(page, "billing", "highest");
  assert.ok(highest < 55 && shown < 55, `${highest} and ${shown} at an even pace of 50`);
  const waiting = await figure(page, "billing", "waiting");
  const latency = await card(page, "billing").locator('[data-part="latency"]').textContent();
  assert.match(latency, /^[\d.]+ (µs|ms|s), p99 [\d.]+ (µs|ms|s)$/);
  await until("fewer jobs wait", 5, async () => (await figure(page, "billing", "waiting")) < waiting);
  await until("nothing waits", 30, async () => (await figure(page, "billing", "waiting")) === 0);
  // A rate over two replicas is that of ten seconds which ended up to ten seconds ago.
  await until("it is idle", 30, async () => (await figure(page, "billing", "rate")) === 0);
});

scene("sums over two replicas agree with the count of the API", async (context) => {
  const { a, b } = await replicas();
  const JOBS = 1000;
  const name = "exports";
  const counted = await stage.count(name);
  const released = (await stage.status("a", name)).released;
  const page = await browser.page(b.url);
  await isDrawn(page);
  await showsText(page, "fleet-summary", "2 replicas");
  await card(page, name).locator("summary").click();
  await stage.publish("a", name, JOBS);
  const shares = card(page, name).locator('[data-part="replicas"] [data-part="rate"]');
  await until("both replicas release jobs", 10, async () =>
    (await shares.allTextContents()).filter((text) => parseFloat(text) > 0).length === 2);
  await until("all jobs come to the API", 30, async () => (await stage.count(name)) - counted >= JOBS);
  const arrived = (await stage.count(name)) - counted;
  const near = (sum) => Math.abs(sum - released - arrived) <= arrived / 100;
  await until("the page shows the sum", 10, async () => near(await shownReleased(page, name)));
  const shown = (await shownReleased(page, name)) - released;
  const reported = [];
  for (const replica of ["a", "b"]) {
    const status = () => stage.status(replica, name);
    await until(`\`paced status\` of ${replica} has the sum`, 10, async () => near((await status()).released));
    reported.push((await status()).released - released);
  }
  context.diagnostic(`${arrived} requests at the API; ${shown} on the page, ${reported.join(" and ")} by \`paced status\``);
});

/** The sum of the jobs that were released, as the page shows it. */
async function shownReleased(page, name) {
  const text = await card(page, name).locator('[data-part="totals"]').textContent();
  return Number(/^([\d,]+) released/.exec(text)?.[1].replaceAll(",", "") ?? "NaN");
}

scene("counts of 0 are not shown, and a quota has a bar with its reset", async () => {
  const { a } = await replicas();
  const page = await browser.page(a.url);
  await isDrawn(page);
  const [name, quota] = ["exports", card(page, "invoice-mailer").locator('[data-part="quotas"] li')];
  const counts = card(page, name).locator(".counts");
  // What was not known at first is shown for a while.
  await until("nothing is counted", 30, async () => counts.isHidden());
  assert.equal((await ask(a.url, `downstreams/${name}/pause`, { method: "POST", body: {} })).status, 200);
  await stage.publish("a", name, 20);
  const shown = counts.locator("div:visible");
  await until("the jobs wait", 15, async () => (await figure(page, name, "waiting")) === 20);
  // They came through the queue.
  await until("no other count is shown", 30, async () => (await shown.allTextContents()).join() === "waiting20");
  assert.equal((await ask(a.url, `downstreams/${name}/resume`, { method: "POST", body: {} })).status, 200);
  await until("nothing is counted any more", 30, async () => counts.isHidden());

  await stage.publish("a", "invoice-mailer", 3);
  await until("the bar says when the quota is whole again", 30, async () =>
    /^quota-1 29,999,\d{3} of 30,000,000 left whole again in \d+ (d|h|min)/.test(await text(quota)));
  const { value, max, label } = await quota.locator("meter").evaluate((meter) =>
    ({ value: meter.value, max: meter.max, label: meter.getAttribute("aria-label") }));
  assert.ok(value < max && max === 30_000_000 && label === "What is left of quota-1", `${value} of ${max}: ${label}`);
  assert.equal(await card(page, "billing").locator('[data-part="quotas"]').isHidden(), true, "a pace has none");
});

scene("attempts that failed have a line of their own on the chart", async () => {
  const { a } = await replicas();
  const page = await browser.page(a.url);
  await isDrawn(page);
  // What failed before both replicas knew of each other is not in the history.
  await stage.answer("invoice-mailer", 500, "no");
  await stage.publish("a", "invoice-mailer", 3);
  const failures = async () => (await stage.status("a", "invoice-mailer")).failed;
  await until("three attempts fail", 30, async () => (await failures()) >= 3);
  await stage.answer("invoice-mailer", null);
  const chart = card(page, "invoice-mailer").locator(".chart");
  const line = async (name) => (await card(page, name).locator(".chart .failed").getAttribute("d")) ?? "";
  await until("the failures are drawn", 40, async () => (await line("invoice-mailer")).startsWith("M"));
  assert.match(await chart.getAttribute("aria-label"), /; failed attempts: at most [\d.]+\/(s|min|h)/);
  assert.match(await card(page, "invoice-mailer").locator('[data-part="highest"]').textContent(), /^highest .*, .*\/(s|min|h) failed$/);
  assert.equal(await line("exports"), "", "none of its attempts failed");
  await until("the daemon's history has them", 30, async () => {
    const { failed = [], released } = (await ask(a.url, "history")).body.downstreams["invoice-mailer"];
    return failed.length === released.length && failed.reduce((sum, jobs) => sum + jobs, 0) >= 3;
  });
});

scene("replicas that leave and return are no wave of failures", async () => {
  const script = readFileSync(new URL("../../src/admin/page/history.js", import.meta.url), "utf8");
  const { History } = await import(`data:text/javascript,${encodeURIComponent(script)}`);
  const history = new History();
  const state = (now, failed, ids) =>
    ({ now, downstreams: new Map([["billing", { failed, released: 0, rate: 0, replicas: ids.map((id) => ({ id })) }]]) });
  const states = [
    state(0, 9000, ["a", "b"]),
    state(5000, 9020, ["b", "a"]),
    // The others are not known while the store is away.
    state(10_000, 40, ["a"]),
    state(15_000, 9100, ["a", "b"]),
    state(20_000, 9110, ["a", "b"]),
    // One is replaced by another.
    state(25_000, 9990, ["a", "c"]),
  ];
  states.forEach((each, at) => history.count(each, states[at - 1]));
  assert.deepEqual(history.of("billing", null).failures, [4, 0, 0, 2, 0]);
});

/** The text of an element, with single spaces. */
async function text(locator) {
  return (await locator.count()) === 0 ? "" : (await locator.first().textContent()).replace(/\s+/g, " ").trim();
}

scene("a daemon that is away is reported, and read again once it is back", async () => {
  const { a, b } = await replicas();
  const [page, other] = [await browser.page(a.url, { mayFail: true }), await browser.page(b.url)];
  await isDrawn(page);
  await isDrawn(other);
  await stage.stop("a");
  await page.locator("#cut").waitFor();
  assert.match(await page.locator("#cut-text").textContent(), /^Not live since \d\d:\d\d:\d\d: the daemon does not answer\./);
  await showsText(other, "fleet-summary", "1 replica");
  await stage.start("a");
  await page.locator("#cut-retry").click();
  await page.locator("#cut").waitFor({ state: "hidden" });
  await showsText(page, "fleet-summary", "2 replicas");
  await showsText(other, "fleet-summary", "2 replicas");
});
