/** Streams of events by WebSockets, which the page opens because browsers allow few connections to a host. */

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { Api } from "../../support/api/api.ts";
import { Page } from "../../support/api/page.ts";
import { heldTest } from "../../support/api/program.ts";
import { runningInstance } from "../../support/api/running.ts";
import { refusedHandshake, TestSocket } from "../../support/api/socket.ts";

setDefaultTimeout(150_000);

let api: Api;
let page: Page;
beforeAll(async () => {
  api = await Api.start();
  page = await Page.signIn(api);
});
afterAll(() => api[Symbol.asyncDispose]());

const EVENTS = "v1.events.coppice";
/** Largest number of bytes in flight to a page. */
const WINDOW_BYTES = 262_144;
const headers = () => ({ cookie: page.cookie, origin: api.url });

describe("a stream of events", () => {
  test("is the same by a WebSocket as by HTTP", async () => {
    using socket = await TestSocket.open(api, page.link("/v1/changes"), { headers: headers(), protocols: [EVENTS] });
    expect(socket.raw.protocol).toBe(EVENTS);
    await socket.until(() => socket.received.includes("event: resync"));
    socket.send(String(Buffer.byteLength(socket.received)));
    const image = await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "told" });
    expect((await page.send("DELETE", `/web/api/v1/images/${image}`)).status).toBeLessThan(300);
    await socket.until(() => socket.received.includes("event: deleted"));
  });

  heldTest("waits until the page has read it, and continues at the page's position", async () => {
    await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
    await using running = await runningInstance(api, "head -c 1000000 /dev/zero | tr '\\0' x; echo; cat", {
      spec: { stdin: "open" },
    });
    const path = page.link(`/v1/operations/${running.id}/events?follow=true`);
    using socket = await TestSocket.open(api, path, { headers: headers(), protocols: [EVENTS] });
    let receivedLength = 0;
    for (let text = ""; (text.match(/x/g)?.length ?? 0) < 1_000_000; text = socket.received.toString()) {
      await socket.until(() => socket.received.length > receivedLength);
      expect(socket.received.length).toBeLessThanOrEqual(receivedLength + WINDOW_BYTES);
      receivedLength = socket.received.length;
      socket.send(String(receivedLength));
    }
    const ids = [...socket.received.toString().matchAll(/^id: ?(\d+)$/gm)].map(([, id]) => Number(id));
    const seen = ids.at(-2) ?? 0;
    using later = await TestSocket.open(api, path, { headers: headers(), protocols: [EVENTS, `after.${seen}`] });
    await later.until(() => /^id:/m.test(later.received.toString()));
    expect(Number(/^id: ?(\d+)$/m.exec(later.received.toString())?.[1])).toBe(ids.at(-1) ?? 0);
  });

  test("is refused as its request would be, and a route without events has none", async () => {
    const offering = { ...headers(), "sec-websocket-protocol": EVENTS };
    const unknown = "/v1/operations/0197a1d0-5a5e-7000-8000-3c6e0b8a9c15/events";
    expect(await refusedHandshake(api, page.link(unknown), null, offering)).toMatchObject({ status: 404 });
    expect(await refusedHandshake(api, page.link("/v1/images"), null, offering)).toMatchObject({ status: 200 });
    const foreign = { ...offering, origin: "https://evil.example" };
    expect(await refusedHandshake(api, page.link("/v1/changes"), null, foreign)).toMatchObject({ status: 403 });
  });
});
