import { expect, test } from "bun:test";
import { setImmediate } from "node:timers/promises";
import { createApp } from "../../../src/api/app.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import { silentLog } from "../../../src/log.ts";
import { createMetrics } from "../../../src/metrics.ts";
import type { Service } from "../../../src/service/service.ts";

test("requests that arrive in one turn of the event loop begin in several, in their order", async () => {
  const begun: string[] = [];
  const app = createApp({
    accounts: new Accounts(),
    service: { status: { version: "" } } as Service,
    verifyToken: (token) => {
      begun.push(token);
      return Promise.resolve(null);
    },
    web: null,
    publicUrl: null,
    metrics: createMetrics(),
    log: silentLog,
  });
  const tokens = Array.from({ length: 100 }, (_, n) => `token-${n}`);
  const answers = tokens.map((token) =>
    app.handle(new Request("http://localhost/v1/images", { headers: { authorization: `Bearer ${token}` } })),
  );
  const counts = [begun.length];
  for (let before = begun.length; begun.length < tokens.length; before = begun.length) {
    await setImmediate();
    counts.push(begun.length - before);
  }
  expect(Math.max(...counts)).toBeLessThan(40);
  expect(begun).toEqual(tokens);
  expect((await Promise.all(answers)).map(({ status }) => status)).toEqual(tokens.map(() => 401));
});
