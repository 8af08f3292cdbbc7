// The tests of the live page: `make test-page`. They share one stage and one browser, so they run one after the other.

await import("./access.test.js");
await import("./looks.test.js");
await import("./live.test.js");
await import("./changes.test.js");
await import("./many.test.js");

const { close } = await import("./scene.js");
await close();
