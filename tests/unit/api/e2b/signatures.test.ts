import { describe, expect, test } from "bun:test";
import { SignedLinks } from "../../../../src/api/e2b/signatures.ts";
import type { CredentialOwner } from "../../../../src/service/e2b/credentials.ts";
import { failureOf } from "../../../support/failures.ts";

const OWNERS = Array.from({ length: 200 }, () => ({ sandboxId: Bun.randomUUIDv7(), keyId: null }) as CredentialOwner);

/** Links of sandboxes whose tokens are their ids. */
function linksOf(owners: readonly CredentialOwner[]) {
  const counted = { comparisons: 0 };
  const token = async (_use: string, { sandboxId }: CredentialOwner) => {
    counted.comparisons++;
    return sandboxId;
  };
  const service = { e2b: { owners: () => owners, credentials: { token } } };
  const links = new SignedLinks({ service, clock: () => 0 } as never);
  return { links, counted };
}

function linkTo(id: string, address = "192.0.2.1"): Request {
  const digest = new Bun.CryptoHasher("sha256").update(`/f:read::${id}`).digest("base64").replace(/=+$/, "");
  const query = new URLSearchParams({ path: "/f", username: "", signature: `v1_${digest}` });
  return new Request(`http://localhost/files?${query}`, { headers: { "x-forwarded-for": address } });
}

describe("a search for the sandbox of a link", () => {
  test("compares the sandboxes that were found last before the others", async () => {
    const { links, counted } = linksOf(OWNERS);
    const [last, other] = [OWNERS.at(-1), OWNERS.at(-2)].map((owner) => owner?.sandboxId ?? ("" as never));
    for (const [id, most] of [
      [last, 200],
      [last, 1],
      [other, 200],
      [last, 2],
      [other, 2],
    ] as const) {
      counted.comparisons = 0;
      expect(await links.find(linkTo(id ?? ""))).toBe(id ?? ("" as never));
      expect(counted.comparisons).toBeLessThanOrEqual(most);
    }
    // It remembers a number of them, not all.
    for (const { sandboxId } of OWNERS) await links.find(linkTo(sandboxId));
    counted.comparisons = 0;
    await links.find(linkTo(OWNERS[0]?.sandboxId ?? ""));
    expect(counted.comparisons).toBeGreaterThan(1);
  });

  test("is refused after too many misses of an address, without a comparison", async () => {
    const { links, counted } = linksOf(OWNERS);
    for (let count = 0; count < 30; count++) await failureOf(links.find(linkTo("none")));
    counted.comparisons = 0;
    expect(await failureOf(links.find(linkTo("none")))).toMatchObject({ code: "too_many_requests" });
    expect(counted.comparisons).toBe(0);
    const [owner] = OWNERS;
    expect(await links.find(linkTo(owner?.sandboxId ?? "", "192.0.2.2"))).toBe(owner?.sandboxId as never);
  });
});
