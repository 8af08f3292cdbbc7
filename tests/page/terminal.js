// Pictures of programs in a terminal: they run in a real one (`script`), and xterm.js draws what they wrote.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.PAGE_MODULES ?? new URL("../../target/page", import.meta.url).pathname}/`);
const XTERM = readFileSync(require.resolve("@xterm/xterm/lib/xterm.js"), "utf8");
const STYLE = readFileSync(require.resolve("@xterm/xterm/css/xterm.css"), "utf8");

const THEME = { background: "#14181d", foreground: "#d5dbe1", cursor: "#14181d" };

/** A word of a command line of the shell. */
const quoted = (word) => `'${word.replaceAll("'", "'\\''")}'`;

/**
 * Runs a program in a terminal of this size, and gives what it wrote. After this many seconds it is asked to end, by
 * the key q; without them it is waited for.
 */
export function record(command, { columns, rows, seconds, env = {} }) {
  const line = `stty cols ${columns} rows ${rows}; exec ${command.map(quoted).join(" ")}`;
  const child = spawn("script", ["-qefc", line, "/dev/null"], {
    stdio: ["pipe", "pipe", "inherit"],
    timeout: 180_000,
    env: { ...process.env, TERM: "xterm-256color", LC_ALL: "C.UTF-8", SHELL: "/bin/sh", ...env },
  });
  const written = [];
  child.stdout.on("data", (data) => written.push(data));
  // What is drawn at the end counts, so that what a program writes when it is asked to end is left out.
  let length;
  const timer = seconds && setTimeout(() => ((length = written.length), child.stdin.write("q")), seconds * 1000);
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code, signal) => {
      clearTimeout(timer);
      if (code !== 0) reject(new Error(`${command[0]} ended with ${code ?? signal}`));
      else resolve(Buffer.concat(written.slice(0, length)));
    });
  });
}

/** Draws what a program wrote, and takes a picture of the terminal. */
export async function picture(browser, written, { columns, rows, path }) {
  const page = await browser.page("about:blank", { viewport: { width: columns * 10 + 60, height: rows * 20 + 60 } });
  await page.setContent(`<style>${STYLE} body { margin: 0; background: ${THEME.background} }
    #terminal { display: inline-block; padding: 12px }</style><div id="terminal"></div>`);
  await page.addScriptTag({ content: XTERM });
  await page.evaluate(
    ([base64, cols, lines, theme]) => {
      const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      const terminal = new globalThis.Terminal({ cols, rows: lines, theme, fontSize: 14, fontFamily: "monospace", cursorInactiveStyle: "none" });
      terminal.open(document.getElementById("terminal"));
      return new Promise((resolve) => terminal.write(bytes, () => requestAnimationFrame(() => requestAnimationFrame(resolve))));
    },
    [written.toString("base64"), columns, rows, THEME],
  );
  await page.locator("#terminal").screenshot({ path, animations: "disabled" });
  await page.context().close();
}
