/** Requests that arrive together are served in turns, not in the order of their arrival. */

import { afterAll, beforeAll, expect, test } from "bun:test";
import type { AccountId } from "../../../src/domain/ids.ts";
import { Api } from "../../support/api/api.ts";

/** Fewer than the connections that a client makes. */
const MANY_COUNT = 200;
/** A busy client sends some of the requests after others have their answers. Without turns, the one is last in every round. */
const ROUNDS_COUNT = 4;

let api: Api;
beforeAll(async () => {
  api = await Api.start();
  for (let count = 0; count < 50; count++) api.operations.insert("alice" as AccountId, "instance", null, false);
});
afterAll(() => api[Symbol.asyncDispose]());

test.each(["/v1/operations?limit=50", "/v1/images?limit=50", "/contree/v1/operations?limit=50"])(
  "many requests for %s do not come before one of another account",
  async (path) => {
    const places: number[] = [];
    for (let round = 0; round < ROUNDS_COUNT; round++) {
      const answered: string[] = [];
      const ask = async (token: string, name: string) => {
        expect((await api.call("GET", path, { token })).status).toBe(200);
        answered.push(name);
      };
      const many = Array.from({ length: MANY_COUNT }, () => ask(api.token, "many"));
      await Promise.all([...many, ask(api.foreignToken, "one")]);
      places.push(answered.indexOf("one"));
    }
    expect(Math.min(...places)).toBeLessThan(MANY_COUNT / 2);
  },
);
