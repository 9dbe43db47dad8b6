import { afterAll, beforeAll, expect, test } from "bun:test";
import { Type } from "@sinclair/typebox";
import { Elysia, sse } from "elysia";
import { accessPlugin } from "../../../src/api/access.ts";
import { answersPlugin } from "../../../src/api/answers.ts";
import { BodyRooms } from "../../../src/api/body/room.ts";
import { errorReply } from "../../../src/api/errors.ts";
import { RequestTracker } from "../../../src/api/request-tracker.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import { ApiError } from "../../../src/domain/errors.ts";
import type { AccountId } from "../../../src/domain/ids.ts";
import { silentLog } from "../../../src/log.ts";
import { createMetrics } from "../../../src/metrics.ts";

/*
 * A surface of another kind in addition to that of the specification: events, a WebSocket and a cookie, on the same hooks and
 * macros. It shows that these can be had without another structure.
 */
const requests = new RequestTracker({ metrics: createMetrics(), log: silentLog });
const access = accessPlugin(requests, new BodyRooms(new Accounts(), () => undefined));
let ended = 0;

const surface = new Elysia({ prefix: "/other" })
  .use(access)
  .get(
    "/events",
    async function* ({ principal, request }) {
      using _end = { [Symbol.dispose]: () => void ended++ };
      yield sse({ event: "hello", data: { account: principal.accountId } });
      const left = Promise.withResolvers<void>();
      request.signal.addEventListener("abort", () => left.resolve(), { once: true });
      await left.promise;
    },
    { reads: "images:read" },
  )
  .ws("/socket", {
    reads: "images:read",
    body: Type.Object({ text: Type.String() }),
    message(socket, { text }) {
      socket.send({ echo: text });
    },
  })
  .get("/visits", ({ cookie: { visits } }) => {
    const seen = Number(visits?.value ?? 0) + 1;
    visits?.set({ value: String(seen), httpOnly: true, sameSite: "strict", path: "/other" });
    return { seen };
  });

const app = new Elysia({ strictPath: true, systemRouter: false, normalize: false })
  .onRequest(({ request }) => {
    const grant = request.headers.get("x-grant");
    if (grant === null) return;
    requests.of(request).principal = { accountId: "alice" as AccountId, grants: new Set([grant]), tokenId: "t" };
  })
  .use(
    answersPlugin(
      requests,
      () => new ApiError("not_found", "no such route"),
      (cause) => errorReply(cause),
    ),
  )
  .use(surface);

let url = "";
beforeAll(() => {
  app.listen({ port: 0, hostname: "127.0.0.1" });
  url = `http://127.0.0.1:${app.server?.port}/other`;
});
afterAll(async () => {
  await app.stop(true);
});

const granted = { "x-grant": "images:read" };

test("events reach an authorised client as they happen, and end when it leaves", async () => {
  expect((await fetch(`${url}/events`)).status).toBe(401);
  expect((await fetch(`${url}/events`, { headers: { "x-grant": "files:read" } })).status).toBe(403);
  const client = new AbortController();
  const answer = await fetch(`${url}/events`, { headers: granted, signal: client.signal });
  expect(answer.headers.get("content-type")).toStartWith("text/event-stream");
  expect(answer.headers.get("x-request-id")).not.toBeNull();
  const reader = answer.body?.getReader();
  const { value } = (await reader?.read()) ?? {};
  expect(Buffer.from(value ?? []).toString()).toContain('event: hello\ndata: {"account":"alice"}');
  client.abort();
  while (ended === 0) await new Promise(setImmediate);
  expect(ended).toBe(1);
});

test("a WebSocket opens for an authorised client only, and its messages are validated", async () => {
  const opened = async (headers: Record<string, string>): Promise<string> => {
    const { promise, resolve } = Promise.withResolvers<string>();
    const socket = new WebSocket(`${url.replace("http", "ws")}/socket`, { headers });
    socket.onmessage = ({ data }) => resolve(String(data));
    socket.onclose = () => resolve("closed");
    socket.onopen = () => socket.send(JSON.stringify({ text: "hi" }));
    const first = await promise;
    socket.close();
    return first;
  };
  expect(await opened(granted)).toBe('{"echo":"hi"}');
  expect(await opened({})).toBe("closed");
});

test("a cookie is set, read, and hidden from scripts", async () => {
  const first = await fetch(`${url}/visits`);
  const cookie = first.headers.get("set-cookie") ?? "";
  expect(await first.json()).toEqual({ seen: 1 });
  expect(cookie).toContain("HttpOnly");
  expect(first.headers.get("x-request-id")).not.toBeNull();
  const second = await fetch(`${url}/visits`, { headers: { cookie: cookie.split(";")[0] ?? "" } });
  expect(await second.json()).toEqual({ seen: 2 });
});
