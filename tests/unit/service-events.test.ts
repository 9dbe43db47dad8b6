import { expect, test } from "bun:test";
import { rm } from "node:fs/promises";
import type { OperationRow } from "../../src/db/operations.ts";
import { Accounts } from "../../src/domain/account/accounts.ts";
import { openEvents, operationLog } from "../../src/service/events.ts";
import type { ServiceParts } from "../../src/service/parts.ts";
import { EventLogs } from "../../src/storage/events/event-logs.ts";
import { dataLayout } from "../../src/storage/layout.ts";
import { wallClock } from "../../src/system/wall-clock.ts";
import { alice, newId } from "../support/database.ts";
import { throwing } from "../support/failures.ts";
import { testDirectory } from "../support/images/layer-files.ts";

const EVENTS_COUNT = 10_000;

test("the departure of a client ends the search of a long log for a missing event", async () => {
  const layout = dataLayout(testDirectory("service-events"));
  await layout.ensure();
  const eventLogs = new EventLogs(layout, new Accounts(), wallClock());
  const id = newId();
  const log = eventLogs.open(id);
  for (let step = 0; step < EVENTS_COUNT; step++) log.append(0, "progress", { step });
  await log.end();
  const instances = { firstEventOf: () => 0 };
  const principal = { accountId: alice, grants: new Set(["*"]), tokenId: "" };
  const left = new AbortController();
  const request = { spid: 7, since: -1, follow: false, signal: left.signal };
  const parts = { eventLogs, instances } as unknown as ServiceParts;
  const source = operationLog(parts, principal, { id, status: "EXECUTING" } as OperationRow);
  const events = openEvents(parts, principal, source, request);
  const next = events.next();
  left.abort(new Error("left"));
  expect(await throwing(next)).toThrow("left");
  events[Symbol.dispose]();
  log[Symbol.dispose]();
  expect(eventLogs.counts).toEqual({ feeds: 0, readers: 0 });
  await rm(layout.root, { recursive: true });
});
