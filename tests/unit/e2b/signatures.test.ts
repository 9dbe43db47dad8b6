import { expect, test } from "bun:test";
import { createHash } from "node:crypto";
import type { E2bError } from "../../../src/api/e2b/errors.ts";
import { SignedLinks } from "../../../src/api/e2b/signatures.ts";
import type { SandboxId } from "../../../src/domain/ids.ts";

/** More than are compared in one turn of the event loop, so that requests overtake each other. */
const SANDBOXES_COUNT = 600;
const LAST = `sandbox-${SANDBOXES_COUNT - 1}`;

function links() {
  const owners = Array.from({ length: SANDBOXES_COUNT }, (_, n) => ({
    sandboxId: `sandbox-${n}` as SandboxId,
    keyId: null,
  }));
  const credentials = {
    token: async (_use: string, { sandboxId }: { sandboxId: string }) => `token of ${sandboxId}`,
    isToken: async (token: string, _use: string, { sandboxId }: { sandboxId: string }) =>
      token === `token of ${sandboxId}`,
  };
  return new SignedLinks({ service: { e2b: { owners: () => owners, credentials } }, clock: () => 0 } as never);
}

function link(token: string): Request {
  const signature = createHash("sha256").update(`a:read::${token}`).digest("base64").replace(/=+$/, "");
  return new Request(`http://localhost/files?path=a&signature=${encodeURIComponent(`v1_${signature}`)}`);
}

const outcome = (search: Promise<unknown>) => search.catch((error: unknown) => (error as E2bError).status);

test("links that are valid are not refused for their number", async () => {
  const all = links();
  const results = await Promise.all(Array.from({ length: 100 }, () => outcome(all.find(link(`token of ${LAST}`)))));
  expect(new Set(results)).toEqual(new Set([LAST]));
});

test("links that are not valid are refused after 30, also at once, and then all of the address", async () => {
  const all = links();
  const results = await Promise.all(Array.from({ length: 50 }, () => outcome(all.find(link("x")))));
  expect([
    results.filter((status) => status === 401).length,
    results.filter((status) => status === 429).length,
  ]).toEqual([30, 20]);
  expect(await outcome(all.find(link(`token of ${LAST}`)))).toBe(429);
  expect(await outcome(all.findByToken(new Request("http://localhost/"), "x"))).toBe(429);
});
