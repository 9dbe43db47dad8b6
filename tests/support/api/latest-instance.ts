import { getOperation } from "../../../src/db/operations.ts";
import type { AccountId, OperationId } from "../../../src/domain/ids.ts";
import { until } from "../waiting.ts";
import type { Api } from "./api.ts";

export const ALICE = "alice" as AccountId;

/** Operations of alice. */
export function statusOf(api: Api, id: string) {
  return getOperation(api.parts.db, ALICE, id as OperationId)?.status;
}

async function listed(api: Api): Promise<{ readonly id: string }[]> {
  return (await api.call("GET", "/v1/operations?kind=instance&limit=1000")).json;
}

export async function instancesCount(api: Api): Promise<number> {
  return (await listed(api)).length;
}

/** Waits until alice has submitted `count` instances, and returns the id of the last one. */
export async function latestInstance(api: Api, count: number): Promise<string> {
  await until("it was submitted", async () => (await instancesCount(api)) === count);
  return (await listed(api))[0]?.id ?? "";
}
