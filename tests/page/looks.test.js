// How the page looks, to people and to axe.

import assert from "node:assert/strict";

import { button, card, fits, giveToken, isAccessible, isDrawn } from "./browser.js";
import { browser, hasDeadLetters, NO_DEAD_LETTERS, replicas, scene, stage } from "./scene.js";

for (const colorScheme of ["light", "dark"]) {
  scene(`nothing is serious to axe, and nothing breaks the content security policy: ${colorScheme}`, async (context) => {
    const { a } = await replicas();
    const page = await browser.page(a.url, { colorScheme });
    await isDrawn(page);
    await page.locator("#fleet summary").click();
    for (const summary of await page.locator(".card summary").all()) await summary.click();
    await isAccessible(page, `${colorScheme} cards`);
    for (const action of ["Pause…", "Set rate…", "Find job…", "Cancel jobs…"]) {
      await button(page, action, "crm-sync").click();
      await isAccessible(page, `${colorScheme} ${action}`);
      await page.keyboard.press("Escape");
    }
    await page.getByRole("button", { name: "Reset… quota-1 of invoice-mailer" }).click();
    await isAccessible(page, `${colorScheme} Reset…`);
    await page.keyboard.press("Escape");
    await page.locator("#token-button").click();
    await isAccessible(page, `${colorScheme} token`);
    await page.keyboard.press("Escape");
    if (!(await hasDeadLetters(a.url))) {
      context.diagnostic(`the dialog of dead letters is skipped: ${NO_DEAD_LETTERS}`);
      return;
    }
    await giveToken(page, stage.token);
    await page.getByRole("button", { name: /dead letters?… of crm-sync/i }).click();
    await page.waitForSelector(".letter");
    await page.locator('.letter [data-part="requestSummary"]').first().click();
    await page.locator('.letter [data-part="body"]:visible').waitFor();
    await isAccessible(page, `${colorScheme} dead letters`);
    await page.locator("#dead-purge").click();
    await isAccessible(page, `${colorScheme} purge`);
  });
}

scene("all that comes from outside is shown as text", async () => {
  const { a } = await replicas();
  const page = await browser.page(a.url);
  await isDrawn(page);
  await page.getByText("<b>bold</b><img src=x onerror=alert(1)>").waitFor();
  assert.equal(await page.locator("main b, main img, dialog b, dialog img").count(), 0);
});

scene("an API that throttles is failing, and what it answers is shown as text", async () => {
  const { a } = await replicas();
  const page = await browser.page(a.url);
  await isDrawn(page);
  const throttling = card(page, "invoice-mailer");
  await stage.answer("invoice-mailer", 429, '{\r\n  "error": "<b>slow</b>\\u0007 \u001b[2Jdown\u202e"\r\n}');
  await stage.publish("a", "invoice-mailer", 20);
  // Each replica counts those that it meets in a row, and both share probes that come ever more seldom.
  await throttling.locator('[data-part="state"]', { hasText: "failing" }).waitFor({ timeout: 60_000 });
  await throttling.getByText(/^Failing since .*: 429 ×\d+; the downstream answered 429/).waitFor();
  await throttling.locator("summary").click();
  const failure = throttling.locator('[data-part="failures"] li').first();
  await failure.getByText(/^429 ×\d+: the downstream answered 429/).waitFor();
  const shown = await failure.locator("pre").textContent();
  assert.equal(shown, '{\n  "error": "<b>slow</b>\\u0007 \\u{1b}[2Jdown\\u{202e}"\n}');
  assert.equal(await throttling.locator("pre *").count(), 0);
  await fits(page, "an answer");
  await isAccessible(page, "an API that throttles");
  await stage.answer("invoice-mailer");
});

scene("on a phone, 320 px wide, nothing scrolls sideways", async (context) => {
  const { a } = await replicas();
  const page = await browser.page(a.url, { viewport: { width: 320, height: 740 }, hasTouch: true, isMobile: true });
  await isDrawn(page);
  await page.locator("#fleet summary").click();
  for (const summary of await page.locator(".card summary").all()) await summary.click();
  await fits(page, "cards");
  for (const action of ["Pause…", "Set rate…", "Find job…", "Cancel jobs…"]) {
    await button(page, action, "billing").click();
    await fits(page, action);
    await page.keyboard.press("Escape");
  }
  if (!(await hasDeadLetters(a.url))) {
    context.diagnostic(`the dialog of dead letters is skipped: ${NO_DEAD_LETTERS}`);
    return;
  }
  await giveToken(page, stage.token);
  await page.getByRole("button", { name: /dead letters?… of crm-sync/i }).click();
  await page.waitForSelector(".letter");
  await fits(page, "dead letters");
});
