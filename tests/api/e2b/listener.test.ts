import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { E2bScene } from "../../support/e2b/scene.ts";

let scene: E2bScene;
beforeAll(async () => {
  scene = await E2bScene.start();
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

describe("the listener", () => {
  test("says that it is healthy", async () => {
    const { status, text } = await scene.call("GET", "/health", { key: null });
    expect([status, text]).toEqual([204, ""]);
  });

  test("names tested clients for an unknown route", async () => {
    const { status, json } = await scene.call("GET", "/nowhere");
    expect([status, json]).toEqual([
      404,
      { code: 404, message: expect.stringContaining("tested clients: e2b for Python 2.20.3") },
    ]);
  });

  test("tells whether a sandbox runs", async () => {
    const sandbox = await scene.open();
    expect((await sandbox.envd("GET", "/health")).status).toBe(204);
    expect(scene.errors).toEqual([]);
  });
});
