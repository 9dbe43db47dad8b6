import { afterAll, expect, spyOn, test } from "bun:test";
import { createApp } from "../../../src/api/app.ts";
import { COMPOSED_EARLY } from "../../../src/api/server.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import { silentLog } from "../../../src/log.ts";
import { createMetrics } from "../../../src/metrics.ts";
import type { Service } from "../../../src/service/service.ts";

const copies = spyOn(Headers.prototype, "toJSON");
afterAll(() => copies.mockRestore());

function appWith() {
  return createApp({
    accounts: new Accounts(),
    service: { status: { version: "" } } as Service,
    verifyToken: () => Promise.resolve(null),
    web: null,
    publicUrl: null,
    metrics: createMetrics(),
    log: silentLog,
  });
}

test("the headers of a request are not copied, and the response of a handler is not made again", async () => {
  const app = appWith();
  const responses: Response[] = [];
  app.get("/own", () => {
    const response = new Response("answer");
    responses.push(response);
    return response;
  });
  const answer = await app.handle(new Request("http://localhost/own", { headers: { cookie: "name=value" } }));
  expect(await answer.text()).toBe("answer");
  expect(responses[0]).toBe(answer);
  expect(copies).not.toHaveBeenCalled();
});

test("Elysia gets no schemas of responses, of which it would make validators", () => {
  const served = appWith().routes as unknown as readonly { readonly hooks: { readonly response?: unknown } }[];
  expect(served.length).toBeGreaterThan(50);
  expect(served.filter(({ hooks }) => hooks.response !== undefined)).toEqual([]);
});

test("only routes are composed after the start", () => {
  const names = appWith().routes.map(({ method, path }) => `${method} ${path}`);
  expect(COMPOSED_EARLY.filter((name) => !names.includes(name))).toEqual([]);
});
