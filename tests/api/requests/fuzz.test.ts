import { afterAll, beforeAll, expect, test } from "bun:test";
import fc from "fast-check";
import { Api } from "../../support/api/api.ts";
import { requestArbitrary } from "../../support/api/fuzz.ts";
import { seedOfTests } from "../../support/random.ts";

const REQUESTS_COUNT = 10_000;
const FUZZ_MS_MAX = 180_000;

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

test(
  `no request that the description suggests brings a 5xx, or anything that is not described (seed ${seedOfTests()})`,
  async () => {
    const image = await api.addImage(
      [
        [
          { path: "f", type: "f", content: "content" },
          { path: "d", type: "d" },
          { path: "d/g", type: "f", content: "" },
          { path: "l", type: "l", target: "d/g" },
        ],
      ],
      { tag: "fuzz" },
    );
    const file = (await api.call("POST", "/v1/files", { body: "fuzz" })).json.uuid as string;
    const operation = (await api.call("POST", "/v1/instances", { json: { image, command: "true" } })).json
      .uuid as string;
    const { json: document } = await api.call("GET", "/openapi.json", { token: null });
    const statuses = new Map<number, number>();
    await fc.assert(
      fc.asyncProperty(requestArbitrary(document, [image, file, operation]), async (request) => {
        // A long poll would be valid and slow, as no operation ends here.
        fc.pre(!/[?&]wait=[1-9]/.test(request.path));
        // A stream of changes has no end.
        fc.pre(request.method !== "GET" || !/^\/v1\/changes(?:\?|$)/.test(request.path));
        const answer = await api.call(request.method, request.path, {
          headers: request.headers,
          ...(request.body === null ? {} : { body: request.body }),
        });
        statuses.set(answer.status, (statuses.get(answer.status) ?? 0) + 1);
        // Not being ready is an answer, not a failure.
        if (request.path !== "/readyz") expect(answer.status).toBeLessThan(500);
      }),
      { numRuns: REQUESTS_COUNT, endOnFailure: true, seed: seedOfTests() },
    );
    // The fuzz is worthless when every request is refused early.
    for (const status of [200, 201, 202, 400, 404, 422]) expect(statuses.get(status) ?? 0).toBeGreaterThan(20);
  },
  FUZZ_MS_MAX,
);
