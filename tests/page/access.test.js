// Who may look and who may change: attempts and answers, against every route that changes something.

import assert from "node:assert/strict";
import { createServer, request } from "node:http";

import { isDrawn } from "./browser.js";
import { ask, browser, hasDeadLetters, NO_DEAD_LETTERS, replicas, scene, stage } from "./scene.js";

const JSON_TYPE = "application/json";
const name = "billing";

/** The routes that change something, with a body that would. */
const CHANGES = [
  ["POST", "pause", { reason: "attempt" }],
  ["POST", "resume", {}],
  ["POST", "reset", {}],
  ["POST", "cancel", { ids: ["job-1"] }],
  ["PUT", "rate", { rate: "1/s" }],
  ["DELETE", "rate", {}],
];
const DEAD = [
  ["POST", "dead/replay", {}],
  ["POST", "dead/purge", {}],
];

/** What is tried: headers instead of those of an allowed change, and the answer that is right. */
const ATTEMPTS = [
  ["no token", { authorization: undefined }, 401],
  ["wrong token", { authorization: "Bearer correct-horse" }, 401],
  ["read token", { authorization: () => `Bearer ${stage.readToken}` }, 401],
  ["foreign origin", { origin: "https://evil.example" }, 403],
  ["no origin (null)", { origin: "null" }, 403],
  ["foreign host", { host: "evil.example" }, 421],
  ["form post", { "content-type": "application/x-www-form-urlencoded" }, 415],
  ["text/plain", { "content-type": "text/plain" }, 415],
  ["without a type", { "content-type": undefined }, 415],
];

/** Sends a request with exactly these headers, which `fetch` would not. */
function send(url, method, headers, body = "") {
  return new Promise((resolve, reject) => {
    const sending = request(url, { method, headers: { connection: "close", ...headers } }, (response) => {
      let text = "";
      response.setEncoding("utf8").on("data", (part) => (text += part));
      response.on("end", () => resolve({ status: response.statusCode, text }));
    });
    sending.on("error", reject);
    sending.end(body);
  });
}

/** What the daemon says of its downstreams, without what changes by itself. */
async function statesOf(url) {
  const { status, body } = await ask(url, "downstreams");
  assert.equal(status, 200);
  return body.downstreams.map(({ now, ...rest }) => rest);
}

scene("a client that may not change anything changes nothing: a table of attempts and answers", async (context) => {
  // Looking needs a token here too, so that there is a read token to try.
  const { url } = await stage.start("guarded");
  const changes = [...CHANGES];
  if (await hasDeadLetters(url)) changes.push(...DEAD);
  else context.diagnostic(`dead/replay and dead/purge are skipped: ${NO_DEAD_LETTERS}`);
  const before = await statesOf(url);
  const table = {};
  const wrong = [];
  const note = (attempt, change, status, right) => {
    (table[attempt] ??= {})[change] = status;
    if (status !== right) wrong.push(`${attempt}, ${change}: ${status} instead of ${right}`);
  };
  for (const [method, path, body] of changes) {
    const target = `${url}api/v1/downstreams/${name}/${path}`;
    const allowed = { authorization: `Bearer ${stage.token}`, "content-type": JSON_TYPE };
    for (const [attempt, replaced, right] of ATTEMPTS) {
      const headers = Object.entries({ ...allowed, ...replaced })
        .map(([header, value]) => [header, typeof value === "function" ? value() : value])
        .filter(([, value]) => value !== undefined);
      const { status } = await send(target, method, Object.fromEntries(headers), JSON.stringify(body));
      note(attempt, `${method} ${path}`, status, right);
      assert.deepEqual(await statesOf(url), before, `${attempt}: ${method} ${path} changed something`);
    }
    // A link or an image is a GET; that of a rate shows it.
    const { status } = await send(target, "GET", allowed);
    note("GET", `${method} ${path}`, status, path === "rate" ? 200 : 405);
    assert.deepEqual(await statesOf(url), before, `GET ${path} changed something`);
  }
  console.table(table);
  assert.deepEqual(wrong, []);
  // The same request as it should be does change something, so that the table proves something.
  const { status } = await ask(url, `downstreams/${name}/pause`, { method: "POST", body: {} });
  assert.equal(status, 200);
  assert.notDeepEqual(await statesOf(url), before);
  await ask(url, `downstreams/${name}/resume`, { method: "POST", body: {} });
});

scene("a page of another origin changes nothing, nor does it read anything", async () => {
  const { a } = await replicas();
  const foreign = createServer((_, response) => response.setHeader("content-type", "text/html").end("<title>foreign</title>"));
  await new Promise((resolve) => foreign.listen(0, "127.0.0.1", resolve));
  try {
    const before = await statesOf(a.url);
    const page = await browser.page(`http://127.0.0.1:${foreign.address().port}/`, { mayFail: true });
    const outcomes = await page.evaluate(async ([target, token]) => {
      const attempt = (path, options) => fetch(`${target}api/v1/${path}`, options).then(({ type }) => type, () => "refused");
      const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
      return [
        await attempt("status"),
        await attempt("downstreams/billing/pause", { method: "POST", headers, body: "{}" }),
        await attempt("downstreams/billing/pause", { method: "POST", mode: "no-cors", body: "{}" }),
      ];
    }, [a.url, stage.token]);
    // What is sent without leave to read the answer has an answer that says nothing.
    assert.deepEqual(outcomes, ["refused", "refused", "opaque"]);
    const answered = page.waitForResponse((response) => response.url().endsWith("/pause"));
    await page.evaluate((target) => {
      const form = Object.assign(document.createElement("form"), { method: "post", action: `${target}api/v1/downstreams/billing/pause` });
      document.body.append(form);
      form.submit();
    }, a.url);
    assert.equal((await answered).status(), 403);
    assert.deepEqual(await statesOf(a.url), before);
    // What the browser says of requests that it refuses by itself is right.
    browser.problems = browser.problems.filter((text) => !text.includes("blocked by CORS policy"));
  } finally {
    foreign.closeAllConnections();
    foreign.close();
  }
});

scene("where a read token is set, it is needed to see anything", async () => {
  const { url } = await stage.start("guarded");
  for (const file of ["", "page.js", "page.css"]) {
    const { status } = await send(`${url}${file}`, "GET", {});
    assert.equal(status, 200, `the file /${file} holds nothing of the daemon's`);
  }
  const bearer = (token) => ({ authorization: `Bearer ${token}` });
  for (const path of ["status", "events", "history", "downstreams", `downstreams/${name}`]) {
    assert.equal((await send(`${url}api/v1/${path}`, "GET", {})).status, 401, path);
    assert.equal((await send(`${url}api/v1/${path}`, "GET", bearer("wrong"))).status, 401, path);
    for (const token of [stage.readToken, stage.token]) {
      const response = await fetch(`${url}api/v1/${path}`, { headers: bearer(token) });
      assert.equal(response.status, 200, path);
      await response.body.cancel();
    }
  }
  const page = await browser.page(url, { mayFail: true });
  await page.waitForSelector("#token-dialog[open]");
  await page.keyboard.press("Escape");
  await page.locator("#cut").waitFor();
  assert.equal(await page.locator(".card").count(), 0);
  await page.locator("#cut-retry").click();
  await page.waitForSelector("#token-dialog[open]");
  await page.keyboard.type(stage.readToken);
  await page.keyboard.press("Enter");
  await isDrawn(page);
  await page.locator("#cut").waitFor({ state: "hidden" });
});
