import { expect, test } from "bun:test";
import type { AccountId } from "../../src/domain/ids.ts";
import { branchUseCases } from "../../src/service/branches/use-cases.ts";
import type { ServiceParts } from "../../src/service/parts.ts";
import { alice, bob, importImage, testDatabase } from "../support/database.ts";

test("many previews of one account do not delay the preview of another", async () => {
  const { db } = testDatabase();
  const { previewDeletion } = branchUseCases({ db, layout: { keys: "/nonexistent" } } as unknown as ServiceParts);
  const order: AccountId[] = [];
  const { signal } = new AbortController();
  const preview = async (accountId: AccountId) => {
    const id = importImage(db, { accountId });
    await previewDeletion({ accountId, grants: new Set(["*"]), tokenId: "t" }, id, signal);
    order.push(accountId);
  };
  await Promise.all([...Array.from({ length: 20 }, () => preview(alice)), preview(bob)]);
  expect(order.indexOf(bob)).toBeLessThan(10);
});
