import { afterAll, expect, spyOn, test } from "bun:test";
import { createApp } from "../../../src/api/app.ts";
import { silentLog } from "../../../src/log.ts";
import { createMetrics } from "../../../src/metrics.ts";
import type { Service } from "../../../src/service/service.ts";

const copies = spyOn(Headers.prototype, "toJSON");
afterAll(() => copies.mockRestore());

test("the headers of a request are not copied, and the response of a handler is not made again", async () => {
  const app = createApp({
    service: { status: { version: "" } } as Service,
    verifyToken: () => Promise.resolve(null),
    web: null,
    publicUrl: null,
    metrics: createMetrics(),
    log: silentLog,
  });
  const made: Response[] = [];
  app.get("/own", () => {
    const response = new Response("answer");
    made.push(response);
    return response;
  });
  const answer = await app.handle(new Request("http://localhost/own", { headers: { cookie: "name=value" } }));
  expect(await answer.text()).toBe("answer");
  expect(made[0]).toBe(answer);
  expect(copies).not.toHaveBeenCalled();
});
